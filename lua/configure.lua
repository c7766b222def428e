-- configure: writes settings of one partition of a queue, the defaults of all queues, or fields of the registry.
-- Uses: base
-- KEYS[1] settings (hash)
-- ARGV[1...] field, value (field: string; value: string, '' = remove the field)
-- Returns: integer, how many fields were added or removed
-- Complexity: O(1) per field
-- If a command fails here: no command can fail after the type check.
-- Run twice: harmless.
local settings = KEYS[1]
local bad = wrong_type({settings, 'hash'})
if bad then return bad end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('HDEL', settings, SEP)
local changed = 0
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then changed = changed + redis.call('HDEL', settings, ARGV[i])
  else changed = changed + redis.call('HSET', settings, ARGV[i], ARGV[i + 1]) end
end
return changed
