-- plan: adds occurrences of a recurrence to the schedule, as ordinary messages, and updates its plan in the same step.
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
-- ARGV[2] before (string, the plan as the caller has read it; if another call has planned since, or changed the spec,
--   the stored plan is another one, and this call does nothing)
-- ARGV[3] spans (string, <from>-<to> in Unix ms with commas, 8 at most: the stretches of time that are planned when
--   this call is done; the next call goes on at the end of the last one)
-- ARGV[4] body (bytes, payload of each message; '' = none)
-- ARGV[5] fields (string, meta of each message: JSON object of strings; '' = none)
-- ARGV[6...] at, due_ms (at: Unix ms, the time in the message's ID; due_ms: Unix ms, 0 = the occurrence is counted, but
--   gets no message)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[8] is given)
-- Returns: verdict (1 = planned, 0 = the plan is another one, or there is no such recurrence), plan (string, the
--   current plan)
-- Complexity: O(log n) per occurrence, n = scheduled messages
-- If a command fails here: a full server refuses the first write, and then nothing was planned; after a later refusal
--   the same occurrences are planned again under the same IDs. Messages that were added before then count as foreign
--   messages: they are delivered, and not taken back when the recurrence is removed.
-- Run twice: harmless; the second run finds another plan.
local recurring, planned, due, payload, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wake, policy, history = KEYS[6], KEYS[7], KEYS[8]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local name, before, spans, body, fields = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local bad = wrong_type({recurring, 'hash', planned, 'hash', due, 'zset', payload, 'hash', meta, 'hash', wake, 'stream'})
if bad then return bad end
local args = ARGV
local known = redis.call('HGET', planned, name) or ''
local plan = plan_of(before)
-- plan_of parses only a whole plan, so the spans are put into one: the version v, the times t and the count 0 are
-- dummies.
plan.spans = plan_of('v t ' .. spans .. ' 0 ').spans
-- There are 5 arguments and then 2 for each occurrence, of which a call plans at most 100.
local parses = plan.version and plan.spans[1] and #args % 2 == 1 and #args <= 205 and #spans <= 248
for i = 6, #args do parses = parses and string.find(args[i], '^%d+$') and #args[i] <= 15 end
if not parses then return redis.error_reply('ERR what is remembered, or a time, does not parse') end
if known ~= before or redis.call('HEXISTS', recurring, name) == 0 then return {0, known} end
-- A call without occurrences skips some, because an earlier message of the recurrence may be unfinished. Such a call
-- forgets no message.
if #args > 5 then forget_delivered(due, name, plan) end
local head_before, soonest = earliest_due(due), nil
local members, bodies, metas = {}, {}, {}
for i = 6, #args, 2 do
  local id = name .. '@' .. args[i]
  -- A foreign message with the ID is neither overwritten nor taken back. If the caller has found it in another
  -- partition, the caller passes 0 as due_ms.
  if args[i + 1] ~= '0' and not redis.call('ZSCORE', due, id) then
    plan.recent[#plan.recent + 1] = args[i]
    soonest = math.min(soonest or math.huge, tonumber(args[i + 1]))
    add_pair(members, args[i + 1], id)
    if body ~= '' then add_pair(bodies, id, body) end
    if fields ~= '' then add_pair(metas, id, fields) end
    if record then note(record, 'scheduled', id, ',"due_ms":"' .. args[i + 1] .. '"}') end
  end
end
plan.used = plan.used + (#args - 5) / 2
-- Everything is known before the first write.
in_chunks('HSET', payload, bodies)
in_chunks('HSET', meta, metas)
in_chunks('ZADD', due, members)
redis.call('HSET', planned, name, plan_text(plan))
wake_if_earlier(wake, head_before, soonest)
if record then pcall(write_record, record) end
return {1, plan_text(plan)}
