-- register: adds queues and their partition counts to the registry that bridges read. A count that was ever registered stays.
-- Uses: base
-- KEYS[1] queues (hash)
-- ARGV[1...] queue, counts (string; integers, comma separated)
-- Returns: integer, how many of the queues were not registered, or not with all of these counts
-- Complexity: O(1) per queue
-- If a command fails here: nothing can after the type check.
-- Run twice: harmless.
local queues = KEYS[1]
local bad = wrong_type({queues, 'hash'})
if bad then return bad end

-- The union of both lists of counts, sorted.
local function union(a, b)
  local seen, counts = {}, {}
  for one in string.gmatch(a .. ',' .. b, '[^,]+') do
    local n = string.find(one, '^%d+$') and tonumber(one) or 0
    if n > 0 and n <= 256 and not seen[n] then
      seen[n], counts[#counts + 1] = true, n
    end
  end
  table.sort(counts)
  return '' .. table.concat(counts, ',') -- the in-process server leaves a single number a number
end

redis.call('HDEL', queues, SEP) -- removes nothing; after this write a full server accepts the others
local changed = 0
for i = 1, #ARGV, 2 do
  local known = redis.call('HGET', queues, ARGV[i]) or ''
  local counts = union(#known <= 1024 and known or '', ARGV[i + 1]) -- all counts there can be are 914 bytes
  if counts ~= known then
    redis.call('HSET', queues, ARGV[i], counts)
    changed = changed + 1
  end
end
return changed
