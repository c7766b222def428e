-- heartbeat: records that a bridge is alive, and returns the live bridges.
-- Uses: base
-- KEYS[1] bridges (zset)
-- ARGV[1] bridge (string, the identity of the calling bridge, new at each start)
-- ARGV[2] timeout (integer, ms: a bridge is gone if its heartbeat is older than the timeout, or further than the
--   timeout ahead of the clock)
-- Returns: now (integer, Unix ms), then the live bridges (strings) with the caller among them, and any other member of
--   at most 256 bytes that somebody added. If there are more than 5,000 bridges, or 1 MiB of names, only those with the
--   newest heartbeats are returned: this does no harm, because the owner of a queue among all bridges is also its owner
--   among fewer bridges that include it
-- Complexity: O(b), b = bridges
-- If a command fails here: the bridge keeps its last assignment.
-- Run twice: harmless.
local bridges, bridge, timeout = KEYS[1], ARGV[1], tonumber(ARGV[2])
-- Everything is known before the first write.
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', bridges, '-inf', digits(now - timeout))
redis.call('ZREMRANGEBYSCORE', bridges, '(' .. digits(now + timeout), '+inf')
redis.call('ZADD', bridges, digits(now), bridge)
-- The members are read from the newest heartbeat on, 50 at a time.
local reply, found, bytes, last = {now}, false, 0, -1
while last >= -5000 and bytes < MOST_BYTES do
  local some = redis.call('ZRANGE', bridges, last - 49, last)
  for _, one in ipairs(some) do
    bytes = bytes + #one
    if #one <= 256 then reply[#reply + 1], found = one, found or one == bridge end
  end
  if #some < 50 then break end
  last = last - 50
end
if not found then reply[#reply + 1] = bridge end
return reply
