-- ack: acknowledges entries of a group, and deletes those that no other group needs; if a deleted entry's message had
--   an ordering key, the next message of that key becomes due.
-- Uses: base history entry free key
-- KEYS[1] stream (stream)
-- KEYS[2] due (zset)
-- KEYS[3] wake (stream)
-- KEYS[4] turns (zset)
-- KEYS[5] policy (hash)
-- KEYS[6] history (stream)
-- ARGV[1] group (string)
-- ARGV[2...] entry, id (entry: entry ID; id: the message ID, or SEP <ordering key> SEP <message ID>, or ''. An entry
--   with another message ID is not acknowledged, because entry IDs may repeat after a failover. '' = the message ID is
--   not compared. If the message has an ordering key and id does not contain the key, only the sweep of keys makes the
--   next message of that key due)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[6] is given)
-- Returns: per entry an integer: 1 = acknowledged, 0 = lost (the entry was no longer pending, or has another message
--   ID), -9 = not looked at, because the entries compared before it came to 1 MiB: send it again
-- Complexity: O(log n) for each pair of an entry and a group that holds entries, at most 4,000 pairs, or 16 entries
--   with XDELEX; it reads at most 1 MiB and one entry more, and no entry if no message ID is given
-- If a command fails here: acknowledged entries may stay in the stream until trim.
-- Run twice: harmless; the second run answers 0.
local policy, history, group = KEYS[5], KEYS[6], ARGV[1]
local k = {stream = KEYS[1], due = KEYS[2], wake = KEYS[3], turns = KEYS[4]}
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local group_json = record and ',"group":' .. told_text(group) .. '}'
-- Everything is known before the first write.
local bytes = 0

-- Whether the entry has the given message ID. True if the entry was deleted: it is pending all the same.
local function has_id(entry, id)
  local found = redis.call('XRANGE', k.stream, entry, entry)
  bytes = bytes + bytes_of(found[1] and found[1][2])
  local same = not found[1] or entry == id -- without a field id, the entry ID counts as the message ID
  for f = 1, found[1] and #found[1][2] or 0, 2 do
    if found[1][2][f] == 'id' then same = found[1][2][f + 1] == id end
  end
  return same
end

local KEY_AND_ID = '^' .. SEP .. '([^' .. SEP .. ']*)' .. SEP .. '(.*)$'
local args, reply, acked = ARGV, {}, {}
local n, m = 0, 0 -- the lengths of reply and acked; to count is cheaper than #
-- Replaces each id by the message ID alone, and stores the ordering keys in k.key_of.
for i = 3, #args, 2 do
  local key, id = nil, nil
  if args[i] ~= '' then key, id = string.match(args[i], KEY_AND_ID) end
  if key then
    args[i] = id
    k.key_of = k.key_of or {}
    k.key_of[args[i - 1]] = key ~= '' and key or nil
  end
end
for i = 2, #args, 2 do
  local entry, id, won = args[i], args[i + 1], 0
  if bytes >= MOST_BYTES then won = LATER
  elseif id == '' or has_id(entry, id) then won = redis.call('XACK', k.stream, group, entry) end
  n = n + 1
  reply[n] = won
  if won == 1 then
    m = m + 1
    acked[m] = entry
    if record then
      local id_json = id ~= '' and ',"id":' .. told_text(id) or ''
      add_pair(record.changes, 'acknowledged', '{"entry":' .. told_text(entry) .. id_json .. group_json)
    end
  end
end
-- Deletes the entries that no group needs any more. Entries with an ordering key are kept apart in k.left: end_turns
-- deletes them, too, and makes the next message of each key due.
free(k.stream, part_keyed(k, acked))
if k.left then pcall(end_turns, k) end
if record then pcall(write_record, record) end
return reply
