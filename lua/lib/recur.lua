-- Shared by the scripts of recurrences: reads, changes and writes the plan of a recurrence.

-- The version and the times in the plan of a recurrence that was removed while messages of it may be unfinished.
local GONE = 'gone'

-- Parses a plan, '<version> <times> <spans> <used> <recent>', into a table. version and times stand for the spec and
-- its times. spans are the planned stretches of time; planning goes on at the end of the last one. used is the number
-- of planned occurrences. recent lists the newest occurrences, each by the part of its message ID after '@'.
local function plan_of(text)
  local version, times, spans, used, recent = string.match(text or '', '^(%w+) (%w+) (%d+%-%d[%d,-]*) (%d+) ([^ ]*)$')
  local plan = {version = version, times = times, spans = {}, used = tonumber(used), recent = {}}
  for from, to in string.gmatch(spans or '', '(%d+)%-(%d+)') do
    plan.spans[#plan.spans + 1] = {from = tonumber(from), to = tonumber(to)}
  end
  for one in string.gmatch(recent or '', '[^,]+') do plan.recent[#plan.recent + 1] = one end
  return plan
end

-- A new revision of the queue's recurrences. It differs from any earlier one, so that planners that remember an older
-- one read all specs again. It is at least the clock in µs, so it also differs after all data was lost. Other clients
-- may have increased or overwritten the stored value.
local function next_revision(planned)
  local known = redis.call('HGET', planned, '')
  local now, us = now_ms()
  local n = known and #known <= 16 and string.find(known, '^%d+$') and tonumber(known) or 0
  return digits(math.max(n < 8e15 and n + 1 or 0, now * 1000 + us))
end

local function plan_text(plan)
  local spans = {}
  for i = math.max(1, #plan.spans - 7), #plan.spans do
    spans[#spans + 1] = digits(plan.spans[i].from) .. '-' .. digits(plan.spans[i].to)
  end
  local first = math.max(1, #plan.recent - 199) -- older ones are ordinary messages by now
  local recent = table.concat(plan.recent, ',', first)
  return table.concat({plan.version, plan.times, table.concat(spans, ','), digits(plan.used), recent}, ' ')
end

-- The time of an occurrence, in Unix ms; 0 for one that was run by hand.
local function time_of(one)
  return string.find(one, '^%d+$') and tonumber(one) or 0
end

-- Removes from plan.recent the occurrences that have left the schedule. It keeps the last of them, and those that left
-- early: their time is after the planned spans.
local function forget_left(due, name, plan)
  local kept, left = {}, nil
  for _, one in ipairs(plan.recent) do
    if redis.call('ZSCORE', due, name .. '@' .. one) or time_of(one) > plan.spans[#plan.spans].to then
      kept[#kept + 1] = one
    else
      left = one
    end
  end
  if left then table.insert(kept, 1, left) end
  plan.recent = kept
end

-- Splits the recent occurrences into those to take back and those that stay. An occurrence is taken back if both its
-- planned time and its due time in the schedule are later than from. Occurrences run by hand stay. Each span is cut to
-- end before the occurrences taken back. The latest are taken first, up to 16 MiB and one message more. Returns the IDs
-- to take back, and whether more are left: then the plan still belongs to its spec, and the next call goes on.
local function split_plan(due, payload, meta, name, plan, from)
  local found = {} -- those that may be taken back
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

-- Takes messages out of the schedule.
local function take_back(due, payload, meta, ids, story)
  for _, id in ipairs(story and ids or {}) do note(story, 'cancelled', id, '}') end
  in_chunks('ZREM', due, ids)
  in_chunks('HDEL', payload, ids)
  in_chunks('HDEL', meta, ids)
end
