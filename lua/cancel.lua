-- cancel: takes messages out of the schedule, for good; their IDs may be scheduled again at once.
-- Uses: base
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] seen (zset)
-- ARGV[1...] id (string)
-- Returns: per message an integer: 1 cancelled, it will never be delivered; 0 not scheduled
-- Complexity: O(log n) per message
-- If a command fails here: nothing can after the type check.
-- Run twice: harmless; the second run answers 0.
local due, payload, meta, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash', seen, 'zset'})
if bad then return bad end

local reply = {}
for i, id in ipairs(ARGV) do
  reply[i] = redis.call('ZREM', due, id)
  if reply[i] == 1 then
    redis.call('HDEL', payload, id)
    redis.call('HDEL', meta, id)
    redis.call('ZREM', seen, id)
  end
end
return reply
