-- find_orphans: finds orphans, which are fields of the hash payload or meta whose message is not in the schedule;
--   writes nothing, so that users who may only read can call it.
-- Uses: base orphans
-- KEYS[1] due (zset)
-- KEYS[2] fields (hash)
-- ARGV[1] cursor (integer, of HSCAN)
-- ARGV[2] limit (integer, about how many fields to scan)
-- ARGV[3...] field (string, a field to check in addition to the scan)
-- Returns: cursor (string, for the next call; '0' = the scan is complete), looked (integer, how many fields were
--   scanned), then the orphans (strings): first those among the given fields, then those that the scan found
-- Complexity: O(limit + given fields); a scan returns the values, too, so it ends after 1 MiB, and exceeds that by at
--   most one bucket of the hash, which is the least that HSCAN returns
-- If a command fails here: nothing was changed.
-- Run twice: harmless; it only reads.
local due, fields = KEYS[1], KEYS[2]
local cursor, limit = ARGV[1], tonumber(ARGV[2])
local bad = wrong_type({due, 'zset', fields, 'hash'})
if bad then return bad end

local reply = {cursor, 0}
for i = 3, #ARGV do
  if redis.call('HEXISTS', fields, ARGV[i]) == 1 and not redis.call('ZSCORE', due, ARGV[i]) then
    reply[#reply + 1] = ARGV[i]
  end
end
reply[1], reply[2] = scan_orphans(due, fields, cursor, limit, function(field) reply[#reply + 1] = field end)
return reply
