-- signal: adds a token to a wake stream, so that bridges look at the queue at once.
-- Uses: base
-- KEYS[1] wake (stream)
-- ARGV[1] field (string, the subject of the token)
-- Returns: integer, 1
-- Complexity: O(1)
-- If a command fails here: nothing is changed.
-- Run twice: harmless.
local wake = KEYS[1]
local bad = wrong_type({wake, 'stream'})
if bad then return bad end

redis.call('XDEL', wake, '0-0') -- removes nothing; after this write a full server accepts the others
redis.call('XADD', wake, 'MAXLEN', 1, '*', ARGV[1], '1')
return 1
