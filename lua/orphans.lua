-- orphans: deletes hash fields that have been without a member of the schedule for long enough, and scans for more.
-- Uses: base orphans
-- KEYS[1] due (zset)
-- KEYS[2] fields (hash)
-- ARGV[1] cursor (integer, of HSCAN)
-- ARGV[2] limit (integer, fields looked at, roughly)
-- ARGV[3...] field, length, ripe (string; integer, bytes of its value when it was found, '' = not compared; '1' =
--   delete it, '0' = only look)
-- Returns: deleted (integer), cursor (string), then for each given field an integer (bytes of its value: it is an
--   orphan still, or was until now; -1: it has a member, or its value has changed: it must be found again before it may
--   be deleted), then for each orphan found now two values (field, string; bytes of its value, integer)
-- Complexity: O(limit + given fields); it reads 1 MiB more than one bucket of the hash holds at most, because a scan
--   always returns the values
-- If a command fails here: the rest stays for the next pass.
-- Run twice: harmless.
local due, fields = KEYS[1], KEYS[2]
local cursor, limit = ARGV[1], tonumber(ARGV[2])
local bad = wrong_type({due, 'zset', fields, 'hash'})
if bad then return bad end

local reply, deleted = {0, cursor}, 0
for i = 3, #ARGV, 3 do
  local field, length, now = ARGV[i], ARGV[i + 1], -1
  if not redis.call('ZSCORE', due, field) then now = redis.call('HSTRLEN', fields, field) end
  if length ~= '' and now ~= tonumber(length) then now = -1 end
  if now >= 0 and ARGV[i + 2] == '1' then deleted = deleted + redis.call('HDEL', fields, field) end
  reply[#reply + 1] = now
end
cursor = scan_orphans(due, fields, cursor, limit, function(field, size) add_pair(reply, field, size) end)
reply[1], reply[2] = deleted, cursor
return reply
