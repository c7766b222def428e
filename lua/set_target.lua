-- set_target: writes the push target of a group, which is the URL to which its messages are posted, with settings; does
--   nothing if another call has changed the target since the caller read it.
-- Uses: base
-- KEYS[1] push (hash)
-- ARGV[1] group (string)
-- ARGV[2] before (string, JSON: the target as it was read, '' = there was none)
-- ARGV[3] target (string, JSON)
-- ARGV[4] most (integer, how many targets a queue may have)
-- Returns: integer: 1 = written, 0 = the target is not as in before, or it is new and the queue has too many targets
-- Complexity: O(1)
-- If a command fails here: nothing is changed.
-- Run twice: harmless; the second run finds another target than before, or writes the same.
local push = KEYS[1]
local group, before, target, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local bad = wrong_type({push, 'hash'})
if bad then return bad end
if not most then return redis.error_reply('ERR most does not parse') end

local stored = redis.call('HGET', push, group) or ''
if stored ~= before or stored == '' and redis.call('HLEN', push) >= most then return 0 end
-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('HDEL', push, SEP)
redis.call('HSET', push, group, target)
return 1
