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
-- Everything is known before the first write.
local args, reply, acked = ARGV, {}, {}
local n, m = 0, 0 -- the lengths of reply and acked; a counter is cheaper than #
local bytes = 0 -- the bytes of all entries that were compared
for i = 2, #args, 2 do
  local entry, id, won = args[i], args[i + 1], LATER
  if id ~= '' then id = id_without_key(k, entry, id) end
  if bytes < MOST_BYTES then
    local same, read = true, 0
    if id ~= '' then same, read = has_id(k.stream, entry, id) end
    bytes = bytes + read
    won = same and redis.call('XACK', k.stream, group, entry) or 0
  end
  n = n + 1
  reply[n] = won
  if won == 1 then
    m = m + 1
    acked[m] = entry
    if record then note_acknowledged(record, entry, id, group) end
  end
end
-- Deletes the entries that no group needs any more. Entries with an ordering key are kept apart in k.left: end_turns
-- deletes them, too, and makes the next message of each key due.
free(k.stream, group, part_keyed(k, acked))
if k.left then pcall(end_turns, k) end
if record then pcall(write_record, record) end
return reply
