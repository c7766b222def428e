-- enqueue_one: takes one message with a fresh ID into the schedule of a queue without a history. It costs the server
--   about two thirds of enqueue_fresh. The payload passes through the script, so it is for small payloads.
-- Uses: base token
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] wake (stream)
-- KEYS[5] seen (zset)
-- KEYS[6] policy (hash)
-- ARGV[1] token (string, the name of this call, so that a repeat after a lost reply changes nothing; '' = none; it is
--   remembered only if the message is due within token_ms)
-- ARGV[2] done (string, the token of the caller's previous call, if its reply has arrived and it refused no message: it
--   need not be remembered any longer; '' = none)
-- ARGV[3] token_ms (integer, ms that the token is remembered)
-- ARGV[4] when (string, '+ms' or Unix ms)
-- ARGV[5] id (string that no other message ever had, so it is not compared)
-- ARGV[6] body (string, the payload)
-- ARGV[7] fields (string, the meta; '' = none)
-- Returns: verdict (1 = scheduled, 3 = taken by an earlier try of this call, 0 = not taken, because the queue keeps a
--   history: call enqueue_fresh), asked_ms (integer, Unix ms: the time from which '+ms' counts)
-- Complexity: O(log n), n = scheduled messages
-- If a command fails here: a full server refuses the first write. After any other refusal the script takes back what it
--   has written. If it may not do that, a payload or meta without a message is left, and the sweep for orphans deletes
--   it.
-- Run twice: harmless with the same token. Without a token, or if the message was due after token_ms, a message that
--   has left the schedule is taken again: somebody cancelled it, or made it due, between the two runs.
local due, payload, meta, wake, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, done, token_ms, when, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local body, fields = ARGV[6], ARGV[7]
local policy = KEYS[6]
if not is_call(token, token_ms) then return redis.error_reply('ERR token or token_ms does not parse') end
if not is_time(when) then return redis.error_reply('ERR when does not parse') end
if #ARGV ~= 7 or string.find(id, SEP, 1, true) then return redis.error_reply('ERR ID does not parse') end
if redis.call('HGET', policy, 'history') then return {0, 0} end
token_ms = tonumber(token_ms)

local now = now_ms()
local at = due_at(when, now)
-- A message that is due after token_ms is still scheduled when the call is repeated. So the schedule tells that an
-- earlier try has taken it, and the token need not be remembered.
local remembers = token ~= '' and at - now <= token_ms
local mark = remembers and redis.call('ZSCORE', seen, SEP .. token)
if mark then return {3, tonumber(mark) - token_ms} end
local text = digits(at)
local is_head = redis.call('ZCOUNT', due, '-inf', text) == 0

-- What this call has written so far.
local wrote_payload, wrote_meta, wrote_mark = false, false, false
local function schedule()
  wrote_payload = redis.call('HSET', payload, id, body) == 1 -- a full server refuses this first write
  wrote_meta = fields ~= '' and redis.call('HSET', meta, id, fields) == 1
  wrote_mark = remembers and redis.call('ZADD', seen, digits(now + token_ms), SEP .. token) == 1
  return redis.call('ZADD', due, 'NX', text, id) == 1
end
local function take_back()
  if wrote_payload then redis.pcall('HDEL', payload, id) end
  if wrote_meta then redis.pcall('HDEL', meta, id) end
  if wrote_mark then redis.pcall('ZREM', seen, SEP .. token) end
end
-- Everything is known before the first write, and is taken back if a later one is refused.
local ended, scheduled = pcall(schedule)
if not ended then
  take_back()
  error(scheduled)
end
if not scheduled then
  return {3, number_of(redis.call('ZSCORE', due, id)) - (at - now)}
end
if done ~= '' then redis.pcall('ZREM', seen, SEP .. done) end
if is_head then wake_up(wake, at) end
return {1, now}
