-- reschedule: changes the due time of a message that is still scheduled.
-- Uses: base history entry free key
-- KEYS[1] due (zset)
-- KEYS[2] wake (stream)
-- KEYS[3] policy (hash)
-- KEYS[4] history (stream)
-- KEYS[5] meta (hash)
-- KEYS[6] turns (zset)
-- ARGV[1] id (string)
-- ARGV[2] when ('+ms' or Unix ms)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[4] is given)
-- Returns: two integers: 1 = changed, 0 = not scheduled; then the new due time (Unix ms)
-- Complexity: O(log n)
-- If a command fails here: the due time is changed, but no wake token is added, so the message may be late by at most a
--   bridge's longest sleep.
-- Run twice: harmless with an absolute time; a relative one counts from the last run.
local due, wake = KEYS[1], KEYS[2]
local policy, history, meta, turns = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
if not is_time(ARGV[2]) then return redis.error_reply('ERR when does not parse: ' .. ARGV[2]) end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XDEL', wake, '0-0')
local now = now_ms()
local at = due_at(ARGV[2], now)
local before = earliest_due(due)
local was = redis.call('ZSCORE', due, ARGV[1])
if not was then return {0, at} end
-- If the message waits in line for its ordering key, note_place finds its place in turns, and leave_line below removes
-- the place: the new due time decides about the message's next place.
local k = {turns = turns, places = {}}
note_place(k, meta, was, ARGV[1])
-- Everything is known before the first write.
redis.call('ZADD', due, 'XX', digits(at), ARGV[1])
if k.places[1] then pcall(leave_line, k) end
wake_if_earlier(wake, before, at)
if record then
  note_member(record, 'rescheduled', ARGV[1], ',"due_ms":"' .. digits(at) .. '","was_ms":"' .. due_of(was) .. '"}')
end
if record then pcall(write_record, record) end
return {1, at}
