-- find_entries: finds the entries, or the dead letters, of one message; it looks at a part of the stream in each call,
--   because no key tells which entries a message has; writes nothing.
-- Uses: base
-- KEYS[1] entries (stream)
-- ARGV[1] cursor (entry ID of the last entry that earlier calls looked at; '0-0' at first)
-- ARGV[2] limit (integer, entries to look at)
-- ARGV[3] id (string)
-- Returns: 1 = there may be further entries, 0 = there are none; the next cursor; the number of entries looked at; and
--   for each entry that was found its entry ID
-- Complexity: O(limit); it reads at most 1 MiB and one entry more
-- If a command fails here: nothing was changed.
-- Run twice: harmless; it only reads.
local entries = KEYS[1]
local cursor, limit, id = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local bad = wrong_type({entries, 'stream'})
if bad then return bad end
if not limit or not string.find(cursor, '^%d+%-%d+$') then
  return redis.error_reply('ERR cursor, or limit, does not parse: ' .. cursor)
end

-- The message ID of an entry. If another program added the entry without a field id, it is the entry ID.
local function message_of(entry)
  local message, fields = entry[1], entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'id' then message = fields[i + 1] end
  end
  return message
end

local reply, bytes, looked = {1, cursor, 0}, 0, 0
while looked < limit and bytes < MOST_BYTES do -- one by one, because the next may be of any size
  local entry = redis.call('XRANGE', entries, '(' .. cursor, '+', 'COUNT', 1)[1]
  if not entry then
    reply[1] = 0
    break
  end
  cursor = entry[1]
  looked = looked + 1
  bytes = bytes + bytes_of(entry[2])
  if message_of(entry) == id then reply[#reply + 1] = cursor end
end
reply[2], reply[3] = cursor, looked
return reply
