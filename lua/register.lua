-- register: makes a queue known to the bridges.
-- Uses: base
-- KEYS[1] queues (hash)
-- KEYS[2] wake (stream)
-- ARGV[1...] queue (string)
-- Returns: integer, how many of them were new
-- Complexity: O(1) per queue
-- If a command fails here: a queue may be registered without the wake token; bridges see it at the ceiling.
-- Run twice: harmless.
local queues, wake = KEYS[1], KEYS[2]
local bad = wake ~= queues and wrong_type({queues, 'hash', wake, 'stream'}) -- the same key: the caller adds the token
if bad then return bad end

redis.call('HDEL', queues, SEP) -- removes nothing, and opens a full server for the rest
local new = 0
for _, queue in ipairs(ARGV) do
  new = new + redis.call('HSETNX', queues, queue, '1')
end
if new > 0 and wake ~= queues then redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'queues', tostring(new)) end
return new
