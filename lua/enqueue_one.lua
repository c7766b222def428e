-- enqueue_one: takes one message with a fresh ID into the schedule of a queue without a history. It costs the server
--   about three fifths of what enqueue_fresh costs. The payload passes through the script, so the script is for small
--   payloads.
-- Uses: base
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] wake (stream)
-- KEYS[5] seen (zset)
-- KEYS[6] policy (hash)
-- ARGV[1] when (string, '+ms' or Unix ms)
-- ARGV[2] id (string that no other message ever had, so only a repeat looks for a message with this ID)
-- ARGV[3] body (string, the payload)
-- ARGV[4] token (string, the name of this call, so that a repeat after a lost reply changes nothing; '' = none; the
--   script remembers the token if the message is due within token_ms, or if again = '1')
-- ARGV[5] token_ms (integer, ms that the token is remembered)
-- ARGV[6] done (string, the token of the caller's previous call, if the reply of that call has arrived and refused no
--   message: the script forgets this token; '' or absent = none)
-- ARGV[7] fields (string, the meta; '' or absent = none)
-- ARGV[8] again (string, '1' = the server may have executed an earlier try of this call, or may execute it later; ''
--   or absent = the first try)
-- Returns: asked_ms (integer, Unix ms: the time from which '+ms' counts) if the message was scheduled; the list
--   {asked_ms} if an earlier try of this call has scheduled the message; 0 if the message was not scheduled, because
--   the queue keeps a history: call enqueue_fresh
-- Complexity: O(log n), n = scheduled messages
-- If a command fails here: a full server refuses the first write. After any other refusal the script deletes what it
--   has written. If the user may not delete a payload or a meta, the sweep for orphans deletes it.
--   On Redis 6.2, if a user without the right to ZREM on seen is refused the ZADD on due, the token stays remembered.
-- Run twice: harmless with the same token, with again = '1', and within token_ms. One exception: the message was due
--   after token_ms, and somebody cancelled the message or made it due between the two runs. Then the second run
--   schedules the message again. Without a token, the second run schedules every message again that has left the
--   schedule.
local due, payload, meta, wake, seen, policy = unpack(KEYS) -- cheaper than one by one
local when, id, body, token, token_ms, done, fields, again = unpack(ARGV)
done, fields = done or '', fields or ''
-- is_call makes the same checks. Here they are cheaper: no function is called, and one search finds SEP in the token or
-- in the ID.
if token == 'dead' or #token_ms > 15 or not string.find(token_ms, '^%d+$') then
  return redis.error_reply('ERR token or token_ms does not parse')
end
if #ARGV > 8 or string.find(token .. id, SEP, 1, true) then
  return redis.error_reply('ERR token or ID does not parse')
end
if redis.call('HGET', policy, 'history') then return 0 end

local now = now_ms()
local at = due_at(when, now)
if not at then return redis.error_reply('ERR when does not parse') end
-- If the message is due after token_ms, a repeat within token_ms finds it in the schedule, unless somebody cancelled
-- the message or made it due. So the script does not remember the first try of such a message. It remembers a repeat,
-- because the server may execute the first try after the repeat.
local mark, mark_ends = SEP .. token, now + token_ms
local remembers = token ~= '' and (again == '1' or at <= mark_ends)
local scheduled_at = again == '1' and redis.call('ZSCORE', due, id)
if scheduled_at then
  -- A full server refuses this write. The repeat still changes nothing.
  if remembers then redis.pcall('ZADD', seen, digits(mark_ends), mark) end
  return {now - at + (tonumber(scheduled_at) or at)}
end
-- If an earlier try has left its mark, this try changes nothing.
local marked_until = token ~= '' and redis.call('ZSCORE', seen, mark)
if marked_until then return {marked_until - token_ms} end
local text = digits(at)
local is_head = redis.call('ZCOUNT', due, '-inf', text) == 0

-- The script ignores the errors of these two commands below. So it refuses a user without the rights to them here,
-- before the first write.
local may = redis.acl_check_cmd
if may and is_head and not may('XADD', wake, '0', '0', '0') then error('NOPERM', 0) end
if may and (done ~= '' or remembers) and not may('ZREM', seen, '0') then error('NOPERM', 0) end

-- Everything is known before the first write, and is taken back if a later one is refused.
-- Each write returns the number of new fields or members: 0 or 1. A refused write returns an error. A full server
-- refuses the first write.
local added = redis.pcall('HSET', payload, id, body)
local wrote_payload, wrote_meta, wrote_mark = added == 1, false, false
if fields ~= '' and (added == 0 or added == 1) then
  added = redis.pcall('HSET', meta, id, fields)
  wrote_meta = added == 1
end
-- The mark is written late: if it stayed after a refusal, the next call with this token would take the message for
-- scheduled.
if remembers and (added == 0 or added == 1) then
  added = redis.pcall('ZADD', seen, digits(mark_ends), mark)
  wrote_mark = added == 1
end
if added == 0 or added == 1 then added = redis.pcall('ZADD', due, text, id) end
if added ~= 0 and added ~= 1 then
  if wrote_mark then redis.pcall('ZREM', seen, mark) end
  if wrote_payload then redis.pcall('HDEL', payload, id) end
  if wrote_meta then redis.pcall('HDEL', meta, id) end
  error(added, 0)
end
if done ~= '' then redis.pcall('ZREM', seen, SEP .. done) end
-- wake_up does the same, but would make the text of the due time a second time.
if is_head then redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', text) end
return now
