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
-- ARGV[2] gone (integer, 1 = only if its spec is gone: then the rest of its plan is removed, too)
-- ARGV[3] remember (integer, 1 = its messages must not overlap: those that may be unfinished stay in the plan, until it
--   is called with gone alone, or the recurrence is added again)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[7])
-- Returns: removed (integer, 0 = there was none, -9 = not yet, because the messages taken back came to 16 MiB: send it
--   again), taken back (integer)
-- Complexity: O(log n) per occurrence that is planned; 200 of them at most are taken back, of 16 MiB and one message
--   more
-- If a command fails here: nothing can after the type check.
-- Run twice: harmless; the second run finds none, or goes on.
local recurring, planned, due, payload, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local policy, history = KEYS[6], KEYS[7]
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
local name, gone, remember = ARGV[1], ARGV[2] == '1', ARGV[3] == '1'
local bad = wrong_type({recurring, 'hash', planned, 'hash', due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end
if name == '' then return redis.error_reply('ERR name does not parse') end
if gone and redis.call('HEXISTS', recurring, name) == 1 then return {0, 0} end -- it was added again
local plan = plan_of(redis.call('HGET', planned, name))
local revision = next_revision(planned)
local back, more = {}, false
if plan.version then back, more = split_plan(due, payload, meta, name, plan, 0) end
local keep = not more and plan.version and plan.recent[1] and (remember or plan.version == GONE and not gone)
if keep then
  plan.version = GONE
  plan.times = GONE
end

-- Whether a hash has no other fields.
local function is_alone(key, ...)
  local n = redis.call('HLEN', key)
  for _, field in ipairs({...}) do n = n - redis.call('HEXISTS', key, field) end
  return n == 0
end
local last = not keep and is_alone(recurring, name) and is_alone(planned, name, '')
-- Everything is known before the first write.
local removed = more and LATER or redis.call('HDEL', recurring, name)
take_back(due, payload, meta, back, story)
if more or keep then
  redis.call('HSET', planned, name, plan_text(plan), '', revision)
elseif last then
  redis.call('HDEL', planned, name, '') -- nobody needs revisions any more
elseif redis.call('HDEL', planned, name) + removed > 0 then
  redis.call('HSET', planned, '', revision)
end
if story then pcall(tell, story) end
return {removed, #back}
