-- ack: takes entries out of a group's pending list as done, and deletes those that no other group needs.
-- Uses: base entry exit
-- KEYS[1] stream (stream)
-- ARGV[1] group (string)
-- ARGV[2...] entry, id (entry ID; message ID to compare before, '' = not compared: entry IDs may repeat after a failover)
-- Returns: per entry an integer: 1 acknowledged, 0 lost (it was no longer pending)
-- Complexity: O(log n) per entry, and one range of at most 1,000 pending entries per group
-- If a command fails here: acknowledged entries may stay in the stream until trim.
-- Run twice: harmless; the second run answers 0.
local stream, group = KEYS[1], ARGV[1]
local bad = wrong_type({stream, 'stream'})
if bad then return bad end

local reply, acked = {}, {}
for i = 2, #ARGV, 2 do
  local entry, id, same = ARGV[i], ARGV[i + 1], true
  if id ~= '' then
    local found = redis.call('XRANGE', stream, entry, entry)
    if found[1] then same = entry == id end -- without a field id, the entry ID counts as the ID
    for f = 1, found[1] and #found[1][2] or 0, 2 do
      if found[1][2][f] == 'id' then same = found[1][2][f + 1] == id end
    end
  end
  local won = same and redis.call('XACK', stream, group, entry) or 0
  reply[#reply + 1] = won
  if won == 1 then acked[#acked + 1] = entry end
end
free(stream, acked)
return reply
