-- find_orphans: finds hash fields without a member of the schedule; writes nothing, for users who may only read.
-- Uses: base orphans
-- KEYS[1] due (zset)
-- KEYS[2] fields (hash)
-- ARGV[1] cursor (integer, of HSCAN)
-- ARGV[2] limit (integer, fields looked at, roughly)
-- ARGV[3...] field (string, to be checked, too)
-- Returns: cursor (string), looked (integer, how many fields were scanned), then the orphans (string): those of the
--   given fields, and those found by the scan
-- Complexity: O(limit + given fields); it reads 1 MiB more than one bucket of the hash holds at most, because a scan
--   always returns the values
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
