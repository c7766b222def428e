-- remove_recurrence: removes a recurrence, and takes back its planned messages that are still scheduled.
-- Uses: base history recur
-- KEYS[1] recurring (hash)
-- KEYS[2] planned (hash)
-- KEYS[3] due (zset)
-- KEYS[4] payload (hash)
-- KEYS[5] meta (hash)
-- KEYS[6] policy (hash)
-- KEYS[7] history (stream)
-- ARGV[1] name (string)
-- ARGV[2] gone (integer, 1 = clean up: do nothing if the recurrence is in the key recurring; else delete what an
--   earlier removal has left in the key planned)
-- ARGV[3] remember (integer, 1 = the recurrence's messages must not overlap, so those that may be unfinished stay in
--   the plan, until this script is called with gone = 1 and remember = 0, or the recurrence is added again)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[7] is given)
-- Returns: removed (integer, 1 = removed, 0 = there was no such recurrence, -9 = not removed yet, because the messages
--   taken back came to 16 MiB: send it again), taken back (integer, how many messages)
-- Complexity: O(log n) per planned occurrence; one call takes back at most 200 messages, and stops after the message
--   that reaches 16 MiB
-- If a command fails here: no command can fail after the type check.
-- Run twice: harmless; the second run finds no recurrence, or goes on with the messages that are left.
local recurring, planned, due, payload, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local policy, history = KEYS[6], KEYS[7]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local name, gone, remember = ARGV[1], ARGV[2] == '1', ARGV[3] == '1'
local bad = wrong_type({recurring, 'hash', planned, 'hash', due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end
if name == '' then return redis.error_reply('ERR name does not parse') end
if gone and redis.call('HEXISTS', recurring, name) == 1 then return {0, 0} end -- the recurrence was added again
local plan = plan_of(redis.call('HGET', planned, name))
local revision = next_revision(planned)
local back, more = {}, false
if plan.version then back, more = split_plan(due, payload, meta, name, plan, 0) end
-- The plan is kept if it still has occurrences that may be unfinished, and either this call asks for that, or an
-- earlier removal has kept the plan and this call is not the clean-up.
local may_be_unfinished = not more and plan.version and plan.recent[1]
local keep = may_be_unfinished and (remember or plan.version == GONE and not gone)
if keep then
  plan.version = GONE
  plan.times = GONE
end

-- Whether a hash has no fields besides the given ones.
local function has_only(key, ...)
  local n = redis.call('HLEN', key)
  for _, field in ipairs({...}) do n = n - redis.call('HEXISTS', key, field) end
  return n == 0
end

local REVISION = '' -- the field of planned with the revision of the queue's recurrences
local is_last_recurrence = not keep and has_only(recurring, name) and has_only(planned, name, REVISION)
-- Everything is known before the first write.
local removed = more and LATER or redis.call('HDEL', recurring, name)
take_back(due, payload, meta, back, record)
if more or keep then
  redis.call('HSET', planned, name, plan_text(plan), REVISION, revision)
elseif is_last_recurrence then
  redis.call('HDEL', planned, name, REVISION) -- without recurrences the queue needs no revision
elseif redis.call('HDEL', planned, name) + removed > 0 then
  redis.call('HSET', planned, REVISION, revision) -- a plan or a recurrence was deleted, so planners must read again
end
if record then pcall(write_record, record) end
return {removed, #back}
