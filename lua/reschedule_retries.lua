-- reschedule_retries: changes the due time of waiting retries, and redriven letters, of messages; it scans a part of
--   the schedule in each call, because no key lists the members of a message.
-- Uses: base history entry free key waiting
-- KEYS[1] due (zset)
-- KEYS[2] wake (stream)
-- KEYS[3] policy (hash)
-- KEYS[4] history (stream)
-- KEYS[5] meta (hash)
-- KEYS[6] turns (zset)
-- ARGV[1] cursor ('0' at first, then the cursor of the last reply, on the same connection)
-- ARGV[2] limit (integer, members to look at)
-- ARGV[3] group (string, '' = every group)
-- ARGV[4] when ('+ms' or Unix ms)
-- ARGV[5...] id (string)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[4] is given)
-- Returns: the next cursor ('0' = all were looked at); then for each retry that was changed: member, id, group ('' = a
--   redriven letter for every group), due (Unix ms)
-- Complexity: O(limit)
-- If a command fails here: the due times are changed, but no wake token is added, so a message may be late by at most a
--   bridge's longest sleep.
-- Run twice: harmless with an absolute time; a relative one counts from the last run.
local due, wake = KEYS[1], KEYS[2]
local policy, history, meta, turns = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local cursor, limit, group = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local bad = wrong_type({due, 'zset', wake, 'stream'})
if bad then return bad end
if string.find(cursor, '[^0-9]') or cursor == '' or not limit then
  return redis.error_reply('ERR cursor, or limit, does not parse: ' .. cursor)
end
if not is_time(ARGV[4]) then return redis.error_reply('ERR when does not parse: ' .. ARGV[4]) end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XDEL', wake, '0-0')
local at = digits(due_at(ARGV[4], now_ms()))
local before = earliest_due(due)
local ids = {}
for i = 5, #ARGV do ids[i - 4] = ARGV[i] end
local following, found = waiting(due, cursor, limit, group, ids)
-- The retries that wait in line for their ordering keys give up their places: note_place finds the places, and
-- leave_line below removes them.
local reply, k = {following}, {turns = turns, places = {}}
for i = 1, #found, 4 do note_place(k, meta, found[i + 3], found[i]) end
for i = 1, #found, 4 do
  redis.call('ZADD', due, 'XX', at, found[i])
  if record then
    local was = due_of(found[i + 3])
    note_member(record, 'rescheduled', found[i], ',"due_ms":"' .. at .. '","was_ms":"' .. was .. '"}')
  end
  found[i + 3] = at
  for j = i, i + 3 do reply[#reply + 1] = found[j] end
end
if k.places[1] then pcall(leave_line, k) end
wake_if_earlier(wake, before, earliest_due(due))
if record then pcall(write_record, record) end
return reply
