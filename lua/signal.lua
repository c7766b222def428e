-- signal: adds a token to a wake stream, so that bridges look at once at the queue, or at all queues.
-- Uses: base
-- KEYS[1] wake (stream)
-- ARGV[1] field (string, the name of the token's field; it tells bridges why they were woken)
-- Returns: integer, 1
-- Complexity: O(1)
-- If a command fails here: nothing is changed.
-- Run twice: harmless.
local wake = KEYS[1]
local bad = wrong_type({wake, 'stream'})
if bad then return bad end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XDEL', wake, '0-0')
redis.call('XADD', wake, 'MAXLEN', 1, '*', ARGV[1], '1')
return 1
