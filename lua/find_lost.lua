-- find_lost: finds a group's pending entries that are not in the stream any more; writes nothing, so that users who may
--   only read can call it.
-- Uses: base
-- KEYS[1] stream (stream)
-- ARGV[1] group (string)
-- ARGV[2...] entry (string)
-- Returns: per entry an integer: 1 = the entry is pending in the group and not in the stream, 0 = it is in the stream,
--   or not pending, -9 = not looked at, because the entries before it came to 1 MiB: ask again
-- Complexity: O(entries); it reads the whole entries, because no command tells whether one exists
-- If a command fails here: nothing was changed.
-- Run twice: harmless; it only reads.
local stream = KEYS[1]
local group = ARGV[1]
local bad = wrong_type({stream, 'stream'})
if bad then return bad end

local reply, bytes = {}, 0
for i = 2, #ARGV do
  local lost = 0
  if bytes >= MOST_BYTES then
    lost = LATER
  else
    local found = redis.call('XRANGE', stream, ARGV[i], ARGV[i])
    if found[1] then
      bytes = bytes + bytes_of(found[1][2])
    elseif #redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1) > 0 then
      lost = 1
    end
  end
  reply[#reply + 1] = lost
end
return reply
