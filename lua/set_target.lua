-- set_target: writes the URL and the settings to which a group's messages are posted, unless somebody else has changed
--   them.
-- Uses: base
-- KEYS[1] push (hash)
-- ARGV[1] group (string)
-- ARGV[2] before (string, JSON: the target as it was read, '' = there was none)
-- ARGV[3] target (string, JSON)
-- ARGV[4] most (integer, how many targets a queue may have)
-- Returns: integer: 1 written, 0 = the target is another one by now, or it is new and the queue has too many
-- Complexity: O(1)
-- If a command fails here: nothing is changed.
-- Run twice: harmless; the second run finds another target than before, or writes the same.
local push = KEYS[1]
local group, before, target, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local bad = wrong_type({push, 'hash'})
if bad then return bad end
if not most then return redis.error_reply('ERR most does not parse') end

local now = redis.call('HGET', push, group) or ''
if now ~= before or now == '' and redis.call('HLEN', push) >= most then return 0 end
redis.call('HDEL', push, SEP) -- removes nothing; after this write a full server accepts the others
redis.call('HSET', push, group, target)
return 1
