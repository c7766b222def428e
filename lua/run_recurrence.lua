-- run_recurrence: schedules a message of a recurrence for now, in addition to the planned ones.
-- Uses: base history recur
-- KEYS[1] recurring (hash)
-- KEYS[2] planned (hash)
-- KEYS[3] due (zset)
-- KEYS[4] payload (hash)
-- KEYS[5] meta (hash)
-- KEYS[6] wake (stream)
-- KEYS[7] policy (hash)
-- KEYS[8] history (stream)
-- ARGV[1] name (string)
-- ARGV[2] body (bytes, payload of the message; '' = none)
-- ARGV[3] fields (string, meta of the message: JSON object of strings; '' = none)
-- ARGV[4] alone (integer, 1 = messages planned for later are taken back, and planned again when this message is
--   finished)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[8] is given)
-- Returns: due_ms (integer, Unix ms; -1 = there is no such recurrence, -9 = not scheduled yet, because the messages
--   taken back came to 16 MiB: call again), id (string, the ID of the message)
-- Complexity: O(log n), n = scheduled messages; it takes back messages until they come to 16 MiB
-- If a command fails here: a full server refuses the first write, and then nothing was written; after a later refusal
--   the message is scheduled, but is not in the plan.
-- Run twice: another message is scheduled.
local recurring, planned, due, payload, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wake, policy, history = KEYS[6], KEYS[7], KEYS[8]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local name, body, fields, alone = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local bad = wrong_type({recurring, 'hash', planned, 'hash', due, 'zset', payload, 'hash', meta, 'hash', wake, 'stream'})
if bad then return bad end
if redis.call('HEXISTS', recurring, name) == 0 then return {-1, ''} end
local now = now_ms()
local plan = plan_of(redis.call('HGET', planned, name))
local newest = plan.recent[#plan.recent]
local at, run, id = now, nil, nil
repeat -- two runs in one millisecond get different names
  run = digits(at) .. '-run'
  id = name .. '@' .. run
  at = at + 1
until newest ~= run and not redis.call('ZSCORE', due, id)
local head_before = earliest_due(due)
local revision = next_revision(planned)
local back, must_repeat = {}, false -- must_repeat: messages are left to take back, so nothing is scheduled yet
if plan.version then
  if alone then back, must_repeat = split_plan(due, payload, meta, name, plan, now) end
  if not must_repeat then plan.recent[#plan.recent + 1] = run end
end
-- Everything is known before the first write.
if not must_repeat then
  if body ~= '' then redis.call('HSET', payload, id, body) end
  if fields ~= '' then redis.call('HSET', meta, id, fields) end
  redis.call('ZADD', due, digits(now), id)
  if record then note(record, 'scheduled', id, ',"due_ms":"' .. digits(now) .. '"}') end
end
if plan.version then
  redis.call('HSET', planned, name, plan_text(plan), '', revision)
  take_back(due, payload, meta, back, record)
end
if record then pcall(write_record, record) end
if must_repeat then return {LATER, ''} end
wake_if_earlier(wake, head_before, now)
return {now, id}
