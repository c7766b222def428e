-- recur: writes or changes a recurrence: planned messages of the former spec that are due later, and still scheduled,
--   are taken back.
-- Uses: base history recur
-- KEYS[1] recurring (hash)
-- KEYS[2] planned (hash)
-- KEYS[3] due (zset)
-- KEYS[4] payload (hash)
-- KEYS[5] meta (hash)
-- KEYS[6] policy (hash)
-- KEYS[7] history (stream)
-- ARGV[1] name (string)
-- ARGV[2] before (bytes, the spec that is to be changed; '' = any, or none)
-- ARGV[3] version (string, SHA-1 of the spec in hex)
-- ARGV[4] spec (bytes, JSON)
-- ARGV[5] paused (integer, 1 = the spec is paused: all planned messages are taken back)
-- ARGV[6] times (string, a word that stands for the times of the spec: if it changes, planning begins from now; else it
--   goes on, also for times that have passed unplanned)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[7])
-- Returns: verdict (1 = written, 2 = the spec is there already, 0 = there is another spec than before, -9 = not yet,
--   because the messages taken back came to 16 MiB: send it again; the former spec stays in force until then), taken
--   back (integer), plan (string, the current one)
-- Complexity: O(log n) per occurrence that is planned; 200 of them at most are taken back, of 16 MiB and one message
--   more
-- If a command fails here: a full server refuses the first write, unless it pauses, and then nothing was written; after
--   a later refusal planned messages of the former spec stay.
-- Run twice: harmless; the second run changes nothing, or goes on.
local recurring, planned, due, payload, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local policy, history = KEYS[6], KEYS[7]
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
local name, before, version, spec, times = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local paused = ARGV[5] == '1'
local bad = wrong_type({recurring, 'hash', planned, 'hash', due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end
if name == '' or not string.find(version .. times, '^%w+$') or times == '' then
  return redis.error_reply('ERR name, version or times does not parse')
end

-- Whether the stored spec is this one; if the lengths differ, it need not be read.
local function holds(text)
  return redis.call('HSTRLEN', recurring, name) == #text and redis.call('HGET', recurring, name) == text
end
local known = redis.call('HGET', planned, name) or ''
local plan = plan_of(known)
if plan.version == version and holds(spec) then return {2, 0, known} end
-- The stored spec may be this one, of a call that was cut off.
if before ~= '' and not holds(before) and not holds(spec) then return {0, 0, known} end

local now = now_ms()
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
  redis.call('HDEL', planned, SEP) -- removes nothing; after this write a full server accepts the others
end
if not more then redis.call('HSET', recurring, name, spec) end
redis.call('HSET', planned, name, plan_text(plan), '', revision)
take_back(due, payload, meta, back, story) -- after the plan was written, so that no occurrence is missed
if story then pcall(tell, story) end
return {more and LATER or 1, #back, plan_text(plan)}
