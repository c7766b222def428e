-- delete_empty: deletes the keys of a partition that holds no message, no recurrence and no push target.
-- Uses: base
-- KEYS[1] due (zset)
-- KEYS[2] stream (stream)
-- KEYS[3] dead (stream)
-- KEYS[4] recurring (hash)
-- KEYS[5] push (hash)
-- KEYS[6] payload, meta, wake, policy, seen, calm, planned (hash; hash; stream; hash; zset; hash; hash)
-- KEYS[13] turns, leases, rate, changes, progress (zset; zset; string; stream; hash)
-- ARGV[1] hold (string: '1' = keep the policy, and set its field held to 1, so that no message becomes ready; '' =
--   delete the policy, too)
-- Returns: integer, 1 = deleted, 0 = not deleted, because the partition holds something
-- Complexity: O(1) per key; their contents are freed in the background
-- If a command fails here: the partition may be held already, and none of its keys deleted: run it again.
-- Run twice: harmless.
local due, stream, dead, recurring, push = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local payload, meta, wake, policy, seen = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local calm, planned, turns, leases = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local rate, changes, progress = KEYS[15], KEYS[16], KEYS[17]
local bad = wrong_type({due, 'zset', stream, 'stream', dead, 'stream', recurring, 'hash', push, 'hash',
  payload, 'hash', meta, 'hash', wake, 'stream', policy, 'hash', seen, 'zset',
  calm, 'hash', planned, 'hash', turns, 'zset', leases, 'zset', rate, 'string', changes, 'stream',
  progress, 'hash'})
if bad then return bad end

local holds = redis.call('ZCARD', due) + redis.call('XLEN', stream) + redis.call('XLEN', dead)
holds = holds + redis.call('HLEN', recurring) + redis.call('HLEN', push)
if holds > 0 then return 0 end
if ARGV[1] == '1' then
  -- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
  redis.call('HDEL', policy, SEP)
  redis.call('HSET', policy, 'held', '1')
  redis.call('UNLINK', due, stream, dead, recurring, push, payload, meta, wake)
  redis.call('UNLINK', seen, calm, planned, turns, leases, rate, changes, progress)
  return 1
end
redis.call('UNLINK', due, stream, dead, recurring, push,
  payload, meta, wake, policy, seen, calm, planned, turns, leases, rate, changes, progress)
return 1
