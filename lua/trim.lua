-- trim: frees entries that every group has acknowledged (for workers that only XACK), and dedup windows that have ended.
-- Uses: base entry exit
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

-- The entry ID that follows id.
local function successor(id)
  local ms, seq = id_parts(id)
  if #seq > 14 then return id end
  return ms .. '-' .. digits(tonumber(seq) + 1)
end

-- Everything below bound is done with; delivered is the last entry that every group has been given.
local bound, delivered
for _, group in ipairs(groups) do
  local own = successor(group.last)
  if group.pending > 0 then
    local oldest = redis.call('XPENDING', stream, group.name, '-', '+', 1)
    if oldest[1] and less(oldest[1][1], own) then own = oldest[1][1] end
  end
  if not bound or less(own, bound) then bound = own end
  if not delivered or less(group.last, delivered) then delivered = group.last end
end

-- Whole nodes first, by a limit; exactly only when no whole node is left, and then it is less than one (of 100 entries, unless configured:
-- a limit below that would trim no node, and then everything at once).
local freed = redis.call('XTRIM', stream, 'MINID', '~', bound, 'LIMIT', math.max(limit, 100))
if freed == 0 then freed = redis.call('XTRIM', stream, 'MINID', bound) end
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
  freed = freed + free(stream, ids)
  looked = looked + #ids
  from = successor(ids[#ids])
  step = math.max(1, math.min(100, math.floor(4000 / #groups), math.floor(max_bytes / 4 * looked / (bytes + 1)))) -- free() takes 4,000 at most
end
if less(delivered, from) then from = '0-0' end
return {freed, from, #groups, #ended}
