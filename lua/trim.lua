-- trim: frees entries that every group has acknowledged (for workers that only XACK), and dedup windows that have ended.
-- Uses: base free
-- KEYS[1] stream (stream)
-- KEYS[2] seen (zset)
-- ARGV[1] cursor (entry ID from which to sweep behind a pending entry, '0-0' at first)
-- ARGV[2] limit (integer, entries at most; 100 of the head are always within it)
-- ARGV[3] max_bytes (integer, bytes of entries after which the sweep stops)
-- Returns: freed (integer), cursor (entry ID to sweep on from, '0-0' = came round), groups (integer), windows (integer, dedup windows removed)
-- Complexity: O(limit + groups)
-- If a command fails here: the rest stays for the next pass.
-- Run twice: harmless.
local stream, seen = KEYS[1], KEYS[2]
local cursor, limit, max_bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local bad = wrong_type({stream, 'stream', seen, 'zset'})
if bad then return bad end

local ended = redis.call('ZRANGEBYSCORE', seen, '-inf', digits(now_ms()), 'LIMIT', 0, limit)
in_chunks('ZREM', seen, ended)
local groups = groups_of(stream)
if #groups == 0 then return {0, '0-0', 0, #ended} end

local bound, delivered = bounds(stream, groups)
local freed = trim_below(stream, bound, limit)
if freed > 0 then return {freed, cursor, #groups, #ended} end

-- Behind a long-pending entry: delete what no group holds, in steps of a size that follows the entries' own.
local from, looked, bytes, step = cursor, 0, 0, 1
if less(from, bound) then from = bound end
while looked < limit and bytes < max_bytes and not less(delivered, from) do
  local range = redis.call('XRANGE', stream, from, delivered, 'COUNT', math.min(step, limit - looked))
  if #range == 0 then from = '0-0' break end
  local ids = {}
  for i, one in ipairs(range) do
    ids[i] = one[1]
    for _, part in ipairs(one[2]) do bytes = bytes + #part end
  end
  freed = freed + delete_unneeded(stream, groups, ids, ids[1], ids[#ids])
  looked = looked + #ids
  from = successor(ids[#ids])
  step = math.max(1, math.min(100, math.floor(4000 / #groups), math.floor(max_bytes / 4 * looked / (bytes + 1)))) -- delete_unneeded looks at 4,000 pairs at most
end
if less(delivered, from) then from = '0-0' end
return {freed, from, #groups, #ended}
