-- drop_groups: destroys groups of a stream that has no entries; a group stays if it still holds an entry that was
--   deleted.
-- Uses: base
-- KEYS[1] stream (stream)
-- ARGV[1...] group (string)
-- Returns: integer, how many were destroyed
-- Complexity: O(1) per group
-- If a command fails here: some groups are destroyed, the others not.
-- Run twice: harmless.
local stream = KEYS[1]
local bad = wrong_type({stream, 'stream'})
if bad then return bad end
if redis.call('XLEN', stream) > 0 then return 0 end

local dropped = 0
for i = 1, #ARGV do
  local held = redis.pcall('XPENDING', stream, ARGV[i], '-', '+', 1)
  if not held.err and #held == 0 then
    dropped = dropped + redis.call('XGROUP', 'DESTROY', stream, ARGV[i])
  end
end
return dropped
