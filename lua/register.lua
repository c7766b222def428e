-- register: adds queues and their partition counts to the registry. A count stays until the queue is deleted.
-- Uses: base
-- KEYS[1] queues (hash)
-- ARGV[1...] queue, counts (queue: string; counts: integers, comma separated; with '-,' before the first one, counts
--   that the queue had when it was deleted are not added)
-- Returns: integer, how many of the queues were not registered, or not with all of these counts
-- Complexity: O(1) per queue
-- If a command fails here: no command can fail after the type check.
-- Run twice: harmless.
local queues = KEYS[1]
local bad = wrong_type({queues, 'hash'})
if bad then return bad end

-- Adds the counts in a text to a set. Returns the set.
local function add_counts(set, text)
  for one in string.gmatch(text, '[^,]+') do
    local n = string.find(one, '^%d+$') and tonumber(one) or 0
    if n > 0 and n <= 256 then set[n] = true end
  end
  return set
end

-- The counts of a set as text, sorted.
local function text_of(set)
  local counts = {}
  for n in pairs(set) do counts[#counts + 1] = n end
  table.sort(counts)
  return '' .. table.concat(counts, ',') -- on the in-process server, concat of a single number is not a string
end

-- The counts in a field of the registry, as a set and as text.
local function counts_in(field)
  local text = redis.call('HGET', queues, field) or ''
  return add_counts({}, #text <= 1024 and text or ''), text -- the longest valid text has 914 bytes
end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('HDEL', queues, SEP)
local changed = 0
for i = 1, #ARGV, 2 do
  local queue, given = ARGV[i], add_counts({}, ARGV[i + 1])
  local counts, known = counts_in(queue)
  -- The field '/deleted/<queue>' has the counts that the queue had when it was deleted.
  local deleted, stored_deleted = counts_in('/deleted/' .. queue)
  local skip_deleted = string.sub(ARGV[i + 1], 1, 1) == '-'
  for n in pairs(given) do
    if not (skip_deleted and deleted[n]) then counts[n], deleted[n] = true, nil end
  end
  if text_of(counts) ~= known then
    redis.call('HSET', queues, queue, text_of(counts))
    changed = changed + 1
  end
  local still_deleted = text_of(deleted)
  if still_deleted == '' and stored_deleted ~= '' then redis.call('HDEL', queues, '/deleted/' .. queue)
  elseif still_deleted ~= stored_deleted then redis.call('HSET', queues, '/deleted/' .. queue, still_deleted) end
end
return changed
