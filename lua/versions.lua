-- versions: returns the version of each scheduled message, so that `cancel` can cancel exactly that one; writes
--   nothing.
-- Uses: base version
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- ARGV[1...] id (string)
-- Returns: per message a string: its version; '' = not scheduled; '-9' = not looked at, because the messages before it
--   came to 1 MiB: ask again
-- Complexity: O(1) per message, and O(bytes of meta)
-- If a command fails here: nothing was changed.
-- Run twice: harmless; it only reads.
local due, payload, meta = KEYS[1], KEYS[2], KEYS[3]
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end

local reply, bytes = {}, 0
for i, id in ipairs(ARGV) do
  if bytes >= MOST_BYTES then
    reply[i] = digits(LATER)
  else
    local version, read = version_of(due, payload, meta, id)
    reply[i], bytes = version, bytes + #id + read
  end
end
return reply
