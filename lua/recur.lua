-- recur: writes a recurrence, or changes it: what was planned of the former spec for later, and has not left the schedule, is taken back.
-- Uses: base history recur
-- KEYS[1] recurring (hash)
-- KEYS[2] planned (hash)
-- KEYS[3] due (zset)
-- KEYS[4] payload (hash)
-- KEYS[5] meta (hash)
-- KEYS[6] policy (hash)
-- KEYS[7] history (stream)
-- ARGV[1] name (string)
-- ARGV[2] before (bytes, the spec that is to be changed; '' = whatever there is)
-- ARGV[3] version (string, SHA-1 of the spec in hex)
-- ARGV[4] spec (bytes, JSON)
-- ARGV[5] paused (integer, 1 = the spec says so: everything that was planned is taken back)
-- ARGV[6] times (string, word that stands for the times of the spec: with others than before it begins from now, else what nobody has planned is made up for)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[7])
-- Returns: verdict (1 = written, 2 = it is there already, 0 = another spec is, -9 = not yet, because what was taken back came to 16 MiB: send it again; the former spec is in force until then), taken back (integer), plan (string, what is remembered now)
-- Complexity: O(log n) per occurrence that is planned; 200 of them at most are taken back, of 16 MiB and one message more
-- If a command fails here: the first write is one that a full server refuses, unless it pauses, and then nothing was written; refused later, what was planned of the former spec stays.
-- Run twice: harmless; the second run changes nothing, or goes on.
local recurring, planned, due, payload, meta, policy, history = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local story = story_of(policy, history, ARGV)
local name, before, version, spec, paused, times = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6]
local bad = wrong_type({recurring, 'hash', planned, 'hash', due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end
if name == '' or not string.find(version .. times, '^%w+$') or times == '' then return redis.error_reply('ERR name, version or times does not parse') end

-- Whether the spec there is this one; what is longer or shorter need not be read.
local function holds(text)
  return redis.call('HSTRLEN', recurring, name) == #text and redis.call('HGET', recurring, name) == text
end
local known = redis.call('HGET', planned, name) or ''
local plan = plan_of(known)
if plan.version == version and holds(spec) then return {2, 0, known} end
if before ~= '' and not holds(before) and not holds(spec) then return {0, 0, known} end -- this one: of a call that was cut off
local now = now_ms()
plan.used = plan.version ~= GONE and plan.used or 0
local back, more = split_plan(due, payload, meta, name, plan, paused and 0 or now)
if not more then
  if plan.times ~= times then plan.spans = {{from = now, to = now}} end
  plan.version, plan.times = version, times
end
local revision = next_revision(planned)
-- Everything is known before the first write.
if paused then redis.call('HDEL', planned, SEP) end -- removes nothing, and opens a full server for the rest
if not more then redis.call('HSET', recurring, name, spec) end
redis.call('HSET', planned, name, plan_text(plan), '', revision)
take_back(due, payload, meta, back, story) -- behind what is remembered: nothing is left out for it
if story then pcall(tell, story) end
return {more and LATER or 1, #back, plan_text(plan)}
