-- drop_consumer: deletes the consumers that hold no entry; to delete a consumer that holds entries would lose these.
-- Uses: base
-- KEYS[1] stream (stream)
-- ARGV[1] group (string)
-- ARGV[2...] consumer (string)
-- Returns: integer, how many were deleted
-- Complexity: O(1) per consumer
-- If a command fails here: some consumers are deleted, the others not.
-- Run twice: harmless.
local stream, group = KEYS[1], ARGV[1]
local bad = wrong_type({stream, 'stream'})
if bad then return bad end

local dropped = 0
for i = 2, #ARGV do
  local held = redis.pcall('XPENDING', stream, group, '-', '+', 1, ARGV[i])
  if not held.err and #held == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, ARGV[i])
    dropped = dropped + 1
  end
end
return dropped
