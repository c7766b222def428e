-- recur: adds or changes a recurrence. Messages that were planned by the former spec are taken back if they are due
--   later and still scheduled.
-- Uses: base history recur
-- KEYS[1] recurring (hash)
-- KEYS[2] planned (hash)
-- KEYS[3] due (zset)
-- KEYS[4] payload (hash)
-- KEYS[5] meta (hash)
-- KEYS[6] policy (hash)
-- KEYS[7] history (stream)
-- ARGV[1] name (string)
-- ARGV[2] before (bytes, the spec that the caller wants to change; '' = any spec, or none)
-- ARGV[3] version (string, SHA-1 of the spec in hex)
-- ARGV[4] spec (bytes, JSON)
-- ARGV[5] paused (integer, 1 = the spec is paused: all planned messages are taken back)
-- ARGV[6] times (string, a word that stands for the times of the spec: if it differs from the stored one, planning
--   begins from now; else planning goes on where it was, also for times that have passed unplanned)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[7] is given)
-- Returns: verdict (1 = written, 2 = this spec is stored already, 0 = another spec than before is stored, -9 = not
--   written yet, because the messages taken back came to 16 MiB: send it again; until then the former spec stays in
--   force), taken back (integer, how many messages), plan (string, the current plan)
-- Complexity: O(log n) per planned occurrence; one call takes back at most 200 messages, and stops after the message
--   that reaches 16 MiB
-- If a command fails here: a full server refuses the first write, and nothing is written. It refuses no write if the
--   spec is paused. After a later failure planned messages of the former spec stay.
-- Run twice: harmless; the second run changes nothing, or goes on with the messages that are left.
local recurring, planned, due, payload, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local policy, history = KEYS[6], KEYS[7]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local name, before, version, spec, times = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local paused = ARGV[5] == '1'
local bad = wrong_type({recurring, 'hash', planned, 'hash', due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end
if name == '' or not string.find(version .. times, '^%w+$') or times == '' then
  return redis.error_reply('ERR name, version or times does not parse')
end

-- Whether the stored spec is this text. If the lengths differ, the stored spec need not be read.
local function is_stored(text)
  return redis.call('HSTRLEN', recurring, name) == #text and redis.call('HGET', recurring, name) == text
end
local known = redis.call('HGET', planned, name) or ''
local plan = plan_of(known)
if plan.version == version and is_stored(spec) then return {2, 0, known} end
-- An earlier call that failed part way may have stored the new spec.
if before ~= '' and not is_stored(before) and not is_stored(spec) then return {0, 0, known} end

local now = now_ms()
-- The occurrences of a recurrence that was removed and is added again are counted from 0.
plan.used = plan.version ~= GONE and plan.used or 0
local back, more = split_plan(due, payload, meta, name, plan, paused and 0 or now)
if not more then
  if plan.times ~= times then plan.spans = {{from = now, to = now}} end
  plan.version = version
  plan.times = times
end
local revision = next_revision(planned)
-- Everything is known before the first write.
if paused then
  -- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
  redis.call('HDEL', planned, SEP)
end
if not more then redis.call('HSET', recurring, name, spec) end
redis.call('HSET', planned, name, plan_text(plan), '', revision) -- the field '' holds the revision
take_back(due, payload, meta, back, record) -- after the plan was written, so that no occurrence is missed
if record then pcall(write_record, record) end
return {more and LATER or 1, #back, plan_text(plan)}
