-- trim: frees entries that every group has acknowledged (for workers that only call XACK), and removes dedup windows
--   that have ended.
-- Uses: base free token lease progress
-- KEYS[1] stream (stream)
-- KEYS[2] seen (zset)
-- KEYS[3] turns (zset)
-- KEYS[4] leases (zset)
-- KEYS[5] progress (hash)
-- ARGV[1] cursor (entry ID from which to sweep entries behind one that stays pending; '0-0' at first)
-- ARGV[2] limit (integer, entries at most; the trim at the beginning of the stream takes at least 100)
-- ARGV[3] max_bytes (integer, bytes of entries after which the sweep stops)
-- Returns: freed (integer, entries), cursor (entry ID from which to go on; '0-0' = the sweep came to the end), groups
--   (integer, groups of the stream), windows (integer, dedup windows removed), turns (integer, 1 = a message has an
--   ordering key), leases and progress (integers, leases and cursors removed, because no consumer holds their entries
--   any more)
-- Complexity: O(limit + groups), and O(log n) for each of 200 leases and about 100 cursors; the sweep looks at no
--   more than 4,000 pairs of an entry and a group with pending entries
-- If a command fails here: a later call does what this one did not do.
-- Run twice: harmless.
local stream, seen, turns, leases, progress = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local cursor, limit, max_bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local LEASES_LOOKED_AT = 200

-- Removes leases of entries that no consumer holds. pending: how many entries all groups hold. Returns how many leases
-- it removed.
local function tidy_leases(pending)
  local known = redis.pcall('ZCARD', leases)
  if type(known) ~= 'number' or known == 0 then return 0 end -- a key of another type has no leases
  if pending > 0 then return forget_leases(leases, stream, known, LEASES_LOOKED_AT) end
  local removed = redis.pcall('ZREMRANGEBYRANK', leases, 0, 999) -- no entry is held, so all leases may go
  return type(removed) == 'number' and removed or 0
end

redis.call('XLEN', stream) -- if the key has another type, the script ends here
local has_turns = redis.call('EXISTS', turns)
-- Everything is known before the first write.
local is_zset, ended = pcall(forget_ended, seen, now_ms(), limit)
if not is_zset then -- if seen has another type, entries are freed all the same
  if not string.find(error_of(ended), 'WRONGTYPE', 1, true) then error(ended) end
  ended = 0
end
local groups = groups_of(stream)
local pending = 0
for _, group in ipairs(groups) do pending = pending + group.pending end
local forgotten = leases and tidy_leases(pending) or 0
local cursors = forget_progress(progress, stream, pending)
if #groups == 0 then return {0, '0-0', 0, ended, has_turns, forgotten, cursors} end

local bound, delivered = bounds(stream, groups)
local freed = trim_below(stream, bound, limit)
if freed > 0 then return {freed, cursor, #groups, ended, has_turns, forgotten, cursors} end

-- The sweep: behind an entry that stays pending, deletes the entries that no group holds. It reads them one by one,
-- because the next may be of any size.
local from = cursor
if less(from, bound) then from = bound end
local ids, bytes = {}, 0
local most = math.min(limit, lookup_limit(groups))
while #ids < most and bytes < max_bytes and not less(delivered, from) do
  local one = redis.call('XRANGE', stream, from, delivered, 'COUNT', 1)[1]
  if not one then from = '0-0' break end
  ids[#ids + 1] = one[1]
  bytes = bytes + bytes_of(one[2])
  from = successor(one[1])
end
if #ids > 0 then freed = #delete_unneeded(stream, groups, ids, ids[1], ids[#ids]) end
if less(delivered, from) then from = '0-0' end
return {freed, from, #groups, ended, has_turns, forgotten, cursors}
