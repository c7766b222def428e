-- enqueue_one: takes one message with a fresh ID into the schedule of a queue without a history. It costs the server
--   about three quarters of enqueue_fresh, or seven eighths if the message is due within token_ms. The payload passes
--   through the script, so it is for small payloads.
-- Uses: base token
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] wake (stream)
-- KEYS[5] seen (zset)
-- KEYS[6] policy (hash)
-- ARGV[1] token (string, the name of this call, so that a repeat after a lost reply changes nothing; '' = none; it is
--   remembered if the message is due within token_ms, and by a repeat)
-- ARGV[2] done (string, the token of the caller's previous call, if its reply has arrived and it refused no message: it
--   need not be remembered any longer; '' = none)
-- ARGV[3] token_ms (integer, ms that the token is remembered)
-- ARGV[4] again (string, '1' = the server may have executed an earlier try of this call, or may execute it later; ''
--   = the first try)
-- ARGV[5] when (string, '+ms' or Unix ms)
-- ARGV[6] id (string that no other message ever had, so only a repeat looks for it)
-- ARGV[7] body (string, the payload)
-- ARGV[8] fields (string, the meta; '' = none)
-- Returns: verdict (1 = scheduled, 3 = taken by an earlier try of this call, 0 = not taken, because the queue keeps a
--   history: call enqueue_fresh), asked_ms (integer, Unix ms: the time from which '+ms' counts)
-- Complexity: O(log n), n = scheduled messages
-- If a command fails here: a full server refuses the first write. After any other refusal the script deletes what it
--   has written. If the user may not delete a payload or a meta, the sweep for orphans deletes it.
-- Run twice: harmless with the same token, with again = '1', and within token_ms. One exception: the message was due
--   after token_ms, and somebody cancelled it or made it due between the two runs. Then it is scheduled again.
--   Without a token, every message that has left the schedule is scheduled again.
local due, payload, meta, wake, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, done, token_ms, again = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local when, id, body, fields = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local policy = KEYS[6]
if not is_call(token, token_ms) then return redis.error_reply('ERR token or token_ms does not parse') end
if not is_time(when) then return redis.error_reply('ERR when does not parse') end
if #ARGV ~= 8 or string.find(id, SEP, 1, true) then return redis.error_reply('ERR ID does not parse') end
if redis.call('HGET', policy, 'history') then return {0, 0} end
token_ms = tonumber(token_ms)

local now = now_ms()
local at = due_at(when, now)
-- A repeat within token_ms finds a message that is due later in the schedule, unless somebody cancelled it or made it
-- due. So the first try of such a message is not remembered. A repeat is remembered, because the server may execute
-- the first try after the repeat.
local remembers = token ~= '' and (again == '1' or at - now <= token_ms)
local function remember()
  return remembers and redis.call('ZADD', seen, digits(now + token_ms), SEP .. token) == 1
end
local scheduled_at = again == '1' and redis.call('ZSCORE', due, id)
if scheduled_at then
  pcall(remember) -- a full server refuses it, and the repeat changes nothing nevertheless
  return {3, number_of(scheduled_at) - (at - now)}
end
local mark = token ~= '' and redis.call('ZSCORE', seen, SEP .. token)
if mark then return {3, tonumber(mark) - token_ms} end
local text = digits(at)
local is_head = redis.call('ZCOUNT', due, '-inf', text) == 0

-- The script ignores the errors of these two commands below. So it refuses a user without the rights to them here,
-- before the first write.
local may = redis.acl_check_cmd
if may and is_head and not may('XADD', wake, '0', '0', '0') then error('NOPERM', 0) end
if may and (done ~= '' or remembers) and not may('ZREM', seen, '0') then error('NOPERM', 0) end

-- What this call has written so far.
local wrote_payload, wrote_meta, wrote_mark = false, false, false
local function schedule()
  wrote_payload = redis.call('HSET', payload, id, body) == 1 -- a full server refuses this first write
  wrote_meta = fields ~= '' and redis.call('HSET', meta, id, fields) == 1
  wrote_mark = remember()
  redis.call('ZADD', due, text, id)
end
local function take_back()
  if wrote_payload then redis.pcall('HDEL', payload, id) end
  if wrote_meta then redis.pcall('HDEL', meta, id) end
  if wrote_mark then redis.pcall('ZREM', seen, SEP .. token) end
end
-- Everything is known before the first write, and is taken back if a later one is refused.
local scheduled, refusal = pcall(schedule)
if not scheduled then
  take_back()
  error(refusal, 0)
end
if done ~= '' then redis.pcall('ZREM', seen, SEP .. done) end
if is_head then wake_up(wake, at) end
return {1, now}
