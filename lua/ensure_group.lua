-- ensure_group: creates a consumer group at the beginning of the stream unless it exists.
-- Uses: base
-- KEYS[1] stream (stream)
-- ARGV[1] group (string)
-- Returns: integer: 1 = created, 0 = the group existed
-- Complexity: O(1)
-- If a command fails here: nothing is changed.
-- Run twice: harmless.
local stream, group = KEYS[1], ARGV[1]
local bad = wrong_type({stream, 'stream'})
if bad then return bad end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XACK', stream, group, '0-0')
local made = redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
if made.err then
  if string.find(made.err, 'BUSYGROUP', 1, true) then return 0 end
  return made
end
return 1
