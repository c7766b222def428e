-- reschedule: moves the due time of a message that is still scheduled.
-- Uses: base
-- KEYS[1] due (zset)
-- KEYS[2] wake (stream)
-- ARGV[1] id (string)
-- ARGV[2] when ('+ms' or Unix ms)
-- Returns: two integers: 1 moved or 0 not scheduled; due Unix ms
-- Complexity: O(log n)
-- If a command fails here: the due time is moved and the wake token missing: late by the ceiling at most.
-- Run twice: harmless with an absolute time; a relative one counts from the last run.
local due, wake = KEYS[1], KEYS[2]
if not is_time(ARGV[2]) then return redis.error_reply('ERR when does not parse: ' .. ARGV[2]) end

redis.call('XDEL', wake, '0-0') -- removes nothing, and opens a full server for the rest
local now = now_ms()
local at = due_at(ARGV[2], now)
local before = head(due)
if not redis.call('ZSCORE', due, ARGV[1]) then return {0, at} end
-- Everything is known before the first write.
redis.call('ZADD', due, 'XX', digits(at), ARGV[1])
wake_if_earlier(wake, before, at)
return {1, at}
