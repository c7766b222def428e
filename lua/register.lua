-- register: adds queues and partition counts to the registry. They stay until the queue is deleted.
-- Uses: base
-- KEYS[1] queues (hash)
-- ARGV[1...] queue, counts (string; integers, comma separated; prefix '-,' = leave out those of a deleted queue)
-- Returns: integer, how many of the queues were not registered, or not with all of these counts
-- Complexity: O(1) per queue
-- If a command fails here: nothing can after the type check.
-- Run twice: harmless.
local queues = KEYS[1]
local bad = wrong_type({queues, 'hash'})
if bad then return bad end

-- Adds the counts of a text to a set.
local function add_counts(set, text)
  for one in string.gmatch(text, '[^,]+') do
    local n = string.find(one, '^%d+$') and tonumber(one) or 0
    if n > 0 and n <= 256 then set[n] = true end
  end
  return set
end

-- The counts of a set, sorted.
local function text_of(set)
  local counts = {}
  for n in pairs(set) do counts[#counts + 1] = n end
  table.sort(counts)
  return '' .. table.concat(counts, ',') -- the in-process server leaves a single number a number
end

-- The counts that the registry has in a field, as a set and as text.
local function counts_in(field)
  local text = redis.call('HGET', queues, field) or ''
  return add_counts({}, #text <= 1024 and text or ''), text -- the longest valid text has 914 bytes
end

redis.call('HDEL', queues, SEP) -- removes nothing; after this write a full server accepts the others
local changed = 0
for i = 1, #ARGV, 2 do
  local queue, given = ARGV[i], add_counts({}, ARGV[i + 1])
  local counts, known = counts_in(queue)
  local deleted, noted = counts_in('/deleted/' .. queue)
  local remembered = string.sub(ARGV[i + 1], 1, 1) == '-'
  for n in pairs(given) do
    if not (remembered and deleted[n]) then counts[n], deleted[n] = true, nil end
  end
  if text_of(counts) ~= known then
    redis.call('HSET', queues, queue, text_of(counts))
    changed = changed + 1
  end
  local left = text_of(deleted)
  if left == '' and noted ~= '' then redis.call('HDEL', queues, '/deleted/' .. queue)
  elseif left ~= noted then redis.call('HSET', queues, '/deleted/' .. queue, left) end
end
return changed
