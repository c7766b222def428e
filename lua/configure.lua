-- configure: writes settings of a queue, or the defaults of all queues; with expected values it does so only if nobody
--   has changed them since the caller read them.
-- Uses: base
-- KEYS[1] settings (hash)
-- ARGV[1] expected (integer, how many of the first pairs are values that the fields must have)
-- ARGV[2...] field, value (field: string; value: string, '' = remove the field, or of an expected value: no field)
-- Returns: integer, how many fields were added or removed; -1 = a field has neither the expected nor the new value, and
--   nothing was changed
-- Complexity: O(1) per field
-- If a command fails here: no command can fail after the type check.
-- Run twice: harmless.
local settings, expected = KEYS[1], tonumber(ARGV[1])
local bad = wrong_type({settings, 'hash'})
if bad then return bad end
if not expected then return redis.error_reply('ERR expected does not parse') end

local first = 2 * expected + 2 -- of the fields to write
local wanted = {}
for i = first, #ARGV, 2 do wanted[ARGV[i]] = ARGV[i + 1] end
-- A field may have its new value already, by an earlier run of this call.
for i = 2, first - 1, 2 do
  local stored = redis.call('HGET', settings, ARGV[i]) or ''
  if stored ~= ARGV[i + 1] and stored ~= wanted[ARGV[i]] then return -1 end
end
-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('HDEL', settings, SEP)
local changed = 0
for i = first, #ARGV, 2 do
  if ARGV[i + 1] == '' then changed = changed + redis.call('HDEL', settings, ARGV[i])
  else changed = changed + redis.call('HSET', settings, ARGV[i], ARGV[i + 1]) end
end
return changed
