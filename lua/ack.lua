-- ack: acknowledges entries of a group, and deletes those that no other group needs; then the next message of their key
--   becomes due.
-- Uses: base history entry free key
-- KEYS[1] stream (stream)
-- KEYS[2] due (zset)
-- KEYS[3] wake (stream)
-- KEYS[4] turns (zset)
-- KEYS[5] policy (hash)
-- KEYS[6] history (stream)
-- ARGV[1] group (string)
-- ARGV[2...] entry, id (entry ID; message ID that the entry must carry, '' = not compared: entry IDs may repeat after a
--   failover; it may be preceded by SEP, the key of the message, and SEP; without the key, the next message of that key
--   waits for the sweep of keys)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[6])
-- Returns: per entry an integer: 1 acknowledged, 0 lost (it was no longer pending), -9 not looked at because the
--   entries compared before it came to 1 MiB: send it again
-- Complexity: O(log n) per entry and group that holds any, 4,000 such pairs at most; it reads 1 MiB and one entry more
--   at most, and nothing without message IDs
-- If a command fails here: acknowledged entries may stay in the stream until trim.
-- Run twice: harmless; the second run answers 0.
local policy, history, group = KEYS[5], KEYS[6], ARGV[1]
local k = {stream = KEYS[1], due = KEYS[2], wake = KEYS[3], turns = KEYS[4]}
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
local of_group = story and ',"group":' .. told_text(group) .. '}'
-- Everything is known before the first write.
local bytes = 0

-- Whether the entry still carries the message that was delivered.
local function is_same(entry, id)
  local found = redis.call('XRANGE', k.stream, entry, entry)
  bytes = bytes + bytes_of(found[1] and found[1][2])
  local same = not found[1] or entry == id -- without a field id, the entry ID counts as the ID
  for f = 1, found[1] and #found[1][2] or 0, 2 do
    if found[1][2][f] == 'id' then same = found[1][2][f + 1] == id end
  end
  return same
end

local KEY_AND_ID = '^' .. SEP .. '([^' .. SEP .. ']*)' .. SEP .. '(.*)$'
local args, reply, acked = ARGV, {}, {}
local n, m = 0, 0 -- lengths of reply and acked: cheaper than #
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
  elseif id == '' or is_same(entry, id) then won = redis.call('XACK', k.stream, group, entry) end
  n = n + 1
  reply[n] = won
  if won == 1 then
    m = m + 1
    acked[m] = entry
    if story then
      local of_message = id ~= '' and ',"id":' .. told_text(id) or ''
      add_pair(story.changes, 'acknowledged', '{"entry":' .. told_text(entry) .. of_message .. of_group)
    end
  end
end
free(k.stream, part_keyed(k, acked))
if k.left then pcall(end_turns, k) end
if story then pcall(tell, story) end
return reply
