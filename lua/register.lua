-- register: makes queues known to the bridges.
-- Uses: base
-- KEYS[1] queues (hash)
-- ARGV[1...] queue (string)
-- Returns: integer, how many of them were new
-- Complexity: O(1) per queue
-- If a command fails here: nothing can after the type check.
-- Run twice: harmless.
local queues = KEYS[1]
local bad = wrong_type({queues, 'hash'})
if bad then return bad end

redis.call('HDEL', queues, SEP) -- removes nothing, and opens a full server for the rest
local new = 0
for _, queue in ipairs(ARGV) do
  new = new + redis.call('HSETNX', queues, queue, '1')
end
return new
