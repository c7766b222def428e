-- heartbeat: says that a bridge lives, and tells which do.
-- Uses: base
-- KEYS[1] bridges (zset)
-- ARGV[1] bridge (string, random per start)
-- ARGV[2] timeout (integer, ms without a heartbeat, or ahead of the clock, after which a bridge is gone)
-- Returns: now (integer, Unix ms), then the live bridges (strings)
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
return {now, unpack(redis.call('ZRANGE', bridges, 0, 999))}
