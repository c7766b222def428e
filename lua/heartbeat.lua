-- heartbeat: says that a bridge lives, and tells which do.
-- Uses: base
-- KEYS[1] bridges (zset)
-- ARGV[1] bridge (string, random per start)
-- ARGV[2] timeout (integer, ms without a heartbeat, or ahead of the clock, after which a bridge is gone)
-- Returns: now (integer, Unix ms), then the live bridges (strings): all of them, the caller among them. Of more than 5,000 the newest heartbeats; whoever owns a queue by all of them owns it by any of them and itself
-- Complexity: O(b), b = bridges
-- If a command fails here: the bridge keeps its last assignment.
-- Run twice: harmless.
local bridges, bridge, timeout = KEYS[1], ARGV[1], tonumber(ARGV[2])
local bad = wrong_type({bridges, 'zset'})
if bad then return bad end

local now = now_ms()
redis.call('ZREMRANGEBYSCORE', bridges, '-inf', digits(now - timeout))
redis.call('ZREMRANGEBYSCORE', bridges, '(' .. digits(now + timeout), '+inf')
redis.call('ZADD', bridges, digits(now), bridge)
local reply, found = {now}, false
for i, one in ipairs(redis.call('ZRANGE', bridges, -5000, -1)) do
  reply[i + 1], found = one, found or one == bridge
end
if not found then reply[#reply + 1] = bridge end
return reply
