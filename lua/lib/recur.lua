-- Shared by the scripts of recurrences: reads, changes and writes the plan of a recurrence, a field of the hash
-- planned.

-- Stands in a plan for the version and the times, if the recurrence was removed while messages of it may be unfinished.
local GONE = 'gone'

-- A plan as text: see plan_of. It holds at most 8 spans and 200 recent occurrences, the newest ones.
local function plan_text(plan)
  local spans = {}
  for i = math.max(1, #plan.spans - 7), #plan.spans do
    spans[#spans + 1] = digits(plan.spans[i].from) .. '-' .. digits(plan.spans[i].to)
  end
  local first = math.max(1, #plan.recent - 199) -- occurrences before these are not taken back any more
  local recent = table.concat(plan.recent, ',', first)
  return table.concat({plan.version, plan.times, table.concat(spans, ','), digits(plan.used), recent}, ' ')
end

-- Parses a plan, '<version> <times> <spans> <used> <recent>', into a table:
--  version  the SHA-1 of the spec that was planned, or GONE
--  times    a word that changes with the times of the spec
--  spans    the planned stretches of time, <from>-<to> in Unix ms; planning goes on at the end of the last one
--  used     the number of occurrences that were planned
--  recent   the newest planned occurrences, each as the part of its message ID after '@'
-- If plan_text would not write this text, another client has written it: it counts as no plan, and version is nil.
local function plan_of(text)
  local version, times, spans, used, recent = string.match(text or '', '^(%w+) (%w+) (%d+%-%d[%d,-]*) (%d+) ([^ ]*)$')
  local plan = {version = version, times = times, spans = {}, used = tonumber(used), recent = {}}
  for from, to in string.gmatch(spans or '', '(%d+)%-(%d+)') do
    plan.spans[#plan.spans + 1] = {from = tonumber(from), to = tonumber(to)}
  end
  for one in string.gmatch(recent or '', '[^,]+') do plan.recent[#plan.recent + 1] = one end
  if not version then return plan end
  local too_long = string.find(spans .. ' ' .. used, string.rep('%d', 16)) -- ParsePlan takes 15 digits at most
  if too_long or plan_text(plan) ~= text then return {spans = {}, recent = {}} end
  return plan
end

-- A new revision of the queue's recurrences, greater than the stored one, so that planners that remember another one
-- read all specs again. It is at least the clock in µs, so that it is new also after all data was lost. A stored value
-- that is not a number, or that is too large, counts as 0, because other clients may have overwritten it.
local function next_revision(planned)
  local known = redis.call('HGET', planned, '')
  local now, us = now_ms()
  local n = known and #known <= 16 and string.find(known, '^%d+$') and tonumber(known) or 0
  return digits(math.max(n < 8e15 and n + 1 or 0, now * 1000 + us))
end

-- The planned time of an occurrence, in Unix ms; 0 if the occurrence was run by hand (run_recurrence).
local function time_of(one)
  return string.find(one, '^%d+$') and tonumber(one) or 0
end

-- Removes from plan.recent the occurrences whose messages have left the schedule, except the last of these. An
-- occurrence whose time is after the planned spans stays, too: its message left the schedule early.
local function forget_delivered(due, name, plan)
  local kept, last_delivered = {}, nil
  for _, one in ipairs(plan.recent) do
    if redis.call('ZSCORE', due, name .. '@' .. one) or time_of(one) > plan.spans[#plan.spans].to then
      kept[#kept + 1] = one
    else
      last_delivered = one
    end
  end
  if last_delivered then table.insert(kept, 1, last_delivered) end
  plan.recent = kept
end

-- Removes from a plan the occurrences that are to be taken back. These are the occurrences whose planned time, and
-- whose message's due time in the schedule, are both later than from; occurrences run by hand stay. Each span is cut to
-- end before the occurrences that were in it. The latest are taken first. One call takes 16 MiB of messages, and at
-- most one message more. Returns the IDs of the messages, and whether more are left: then the plan still belongs to its
-- former spec, and the next call goes on.
local function split_plan(due, payload, meta, name, plan, from)
  local found = {} -- the occurrences that may be taken back
  for _, one in ipairs(plan.recent) do
    local at, id = time_of(one), name .. '@' .. one
    local score = redis.call('ZSCORE', due, id)
    if score and at > from and number_of(score) > from then found[#found + 1] = {one = one, at = at, id = id} end
  end
  table.sort(found, function(a, b) return a.at > b.at end)
  local back, taken, freed = {}, {}, 0
  for i, f in ipairs(found) do
    if freed >= 16 * MOST_BYTES then break end
    freed = freed + #f.id + redis.call('HSTRLEN', payload, f.id) + redis.call('HSTRLEN', meta, f.id)
    back[i] = f.id
    taken[f.one] = true
    for _, span in ipairs(plan.spans) do
      if f.at > span.from and f.at <= span.to then span.to = f.at - 1 end
    end
  end
  local stay, spans = {}, {}
  for _, one in ipairs(plan.recent) do
    if not taken[one] then stay[#stay + 1] = one end
  end
  for i, span in ipairs(plan.spans) do
    if span.from < span.to or i == #plan.spans then spans[#spans + 1] = span end
  end
  plan.recent = stay
  plan.spans = spans
  plan.used = math.max(0, plan.used - #back)
  return back, #back < #found
end

-- Takes messages back: removes them from the schedule, and records this if record is not nil.
local function take_back(due, payload, meta, ids, record)
  for _, id in ipairs(record and ids or {}) do note(record, 'cancelled', id, '}') end
  in_chunks('ZREM', due, ids)
  in_chunks('HDEL', payload, ids)
  in_chunks('HDEL', meta, ids)
end
