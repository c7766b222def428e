-- orphans: deletes fields of the hash payload or meta whose message has not been in the schedule for long enough, and
--   scans for more such fields.
-- Uses: base orphans
-- KEYS[1] due (zset)
-- KEYS[2] fields (hash)
-- ARGV[1] cursor (integer, of HSCAN)
-- ARGV[2] limit (integer, about how many fields to scan)
-- ARGV[3...] field, length, ripe (field: string; length: integer, bytes of the field's value when it was found, '' = do
--   not compare; ripe: '1' = delete the field, '0' = only look at it)
-- Returns: deleted (integer), cursor (string), then for each given field an integer (the bytes of its value if it is an
--   orphan, also if this call deleted it; -1 if its message is in the schedule, or its value has changed, so that it
--   must be found again before it may be deleted), then for each orphan that the scan found two values (field: string;
--   bytes of its value: integer)
-- Complexity: O(limit + given fields); a scan returns the values, too, so it ends after 1 MiB, and exceeds that by at
--   most one bucket of the hash, which is the least that HSCAN returns
-- If a command fails here: fields that were not deleted are deleted by a later call.
-- Run twice: harmless.
local due, fields = KEYS[1], KEYS[2]
local cursor, limit = ARGV[1], tonumber(ARGV[2])
local bad = wrong_type({due, 'zset', fields, 'hash'})
if bad then return bad end

local reply, deleted = {0, cursor}, 0
for i = 3, #ARGV, 3 do
  local field, length, ripe = ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1'
  local size = -1
  if not redis.call('ZSCORE', due, field) then size = redis.call('HSTRLEN', fields, field) end
  if length ~= '' and size ~= tonumber(length) then size = -1 end
  if size >= 0 and ripe then deleted = deleted + redis.call('HDEL', fields, field) end
  reply[#reply + 1] = size
end
cursor = scan_orphans(due, fields, cursor, limit, function(field, size) add_pair(reply, field, size) end)
reply[1], reply[2] = deleted, cursor
return reply
