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
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[4])
-- Returns: two integers: 1 moved or 0 not scheduled; due Unix ms
-- Complexity: O(log n)
-- If a command fails here: the due time is changed and the wake token missing: late by the ceiling at most.
-- Run twice: harmless with an absolute time; a relative one counts from the last run.
local due, wake = KEYS[1], KEYS[2]
local policy, history, meta, turns = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
if not is_time(ARGV[2]) then return redis.error_reply('ERR when does not parse: ' .. ARGV[2]) end

redis.call('XDEL', wake, '0-0') -- removes nothing; after this write a full server accepts the others
local now = now_ms()
local at = due_at(ARGV[2], now)
local before = head(due)
local was = redis.call('ZSCORE', due, ARGV[1])
if not was then return {0, at} end
local k = {turns = turns, places = {}}
note_place(k, meta, was, ARGV[1]) -- at the new time it is due, and waits behind messages that were due before
-- Everything is known before the first write.
redis.call('ZADD', due, 'XX', digits(at), ARGV[1])
if k.places[1] then pcall(leave_line, k) end
wake_if_earlier(wake, before, at)
if story then
  note_member(story, 'rescheduled', ARGV[1], ',"due_ms":"' .. digits(at) .. '","was_ms":"' .. due_of(was) .. '"}')
end
if story then pcall(tell, story) end
return {1, at}
