-- Shared by the scripts of recurrences: what is remembered of one, and what was planned of it.

-- What stands for version and times of a recurrence that was removed while something of its messages may be left.
local GONE = 'gone'

-- '<version> <times> <spans> <used> <recent>' as a table: of which spec it is, and of which times of one; which stretches of time are planned, the
-- last one the one that goes on; how many occurrences were; and of the newest, what stands behind '@' in their IDs.
local function plan_of(text)
  local version, times, spans, used, recent = string.match(text or '', '^(%w+) (%w+) (%d+%-%d[%d,-]*) (%d+) ([^ ]*)$')
  local plan = {version = version, times = times, spans = {}, used = tonumber(used), recent = {}}
  for from, to in string.gmatch(spans or '', '(%d+)%-(%d+)') do plan.spans[#plan.spans + 1] = {from = tonumber(from), to = tonumber(to)} end
  for one in string.gmatch(recent or '', '[^,]+') do plan.recent[#plan.recent + 1] = one end
  return plan
end

-- What tells the next state of all recurrences from any before, so that whoever remembers it reads all specs again; also where all was lost
-- since, and begins anew. Anybody may have counted it up, or written it.
local function next_revision(planned)
  local known, now, us = redis.call('HGET', planned, ''), now_ms()
  local n = known and #known <= 16 and string.find(known, '^%d+$') and tonumber(known) or 0
  return digits(math.max(n < 8e15 and n + 1 or 0, now * 1000 + us))
end

local function plan_text(plan)
  local first, spans = math.max(1, #plan.recent - 199), {} -- older ones are ordinary messages by now
  for i = math.max(1, #plan.spans - 7), #plan.spans do spans[#spans + 1] = digits(plan.spans[i].from) .. '-' .. digits(plan.spans[i].to) end
  return plan.version .. ' ' .. plan.times .. ' ' .. table.concat(spans, ',') .. ' ' .. digits(plan.used) .. ' ' .. table.concat(plan.recent, ',', first)
end

-- When an occurrence is, in Unix ms; 0 for what people have run.
local function time_of(one)
  return string.find(one, '^%d+$') and tonumber(one) or 0
end

-- Keeps of the recent ones those that are in the schedule, those that left it before their time, behind what is planned, and the last that left.
local function forget_left(due, name, plan)
  local kept, left = {}, nil
  for _, one in ipairs(plan.recent) do
    if redis.call('ZSCORE', due, name .. '@' .. one) or time_of(one) > plan.spans[#plan.spans].to then kept[#kept + 1] = one else left = one end
  end
  if left then table.insert(kept, 1, left) end
  plan.recent = kept
end

-- Splits the recent ones: what is to be taken back, and what stays. Taken back is what was planned for later than from, and is in the schedule
-- for later. What people have run stays. Each stretch of time ends before what is taken back of it. The latest come first, 16 MiB and one
-- message more at most; and whether more is left: then the plan is still that of its spec, and may be gone on with.
local function split_plan(due, payload, meta, name, plan, from)
  local found, back, taken, stay, spans, n, freed = {}, {}, {}, {}, {}, #plan.spans, 0
  for _, one in ipairs(plan.recent) do
    local at, id = time_of(one), name .. '@' .. one
    local score = redis.call('ZSCORE', due, id)
    if score and at > from and number_of(score) > from then found[#found + 1] = {one = one, at = at, id = id} end
  end
  table.sort(found, function(a, b) return a.at > b.at end)
  for i, f in ipairs(found) do
    if freed >= 16 * MOST_BYTES then break end
    freed = freed + #f.id + redis.call('HSTRLEN', payload, f.id) + redis.call('HSTRLEN', meta, f.id)
    back[i], taken[f.one] = f.id, true
    for _, span in ipairs(plan.spans) do
      if f.at > span.from and f.at <= span.to then span.to = f.at - 1 end
    end
  end
  for _, one in ipairs(plan.recent) do
    if not taken[one] then stay[#stay + 1] = one end
  end
  for i, span in ipairs(plan.spans) do
    if span.from < span.to or i == n then spans[#spans + 1] = span end
  end
  plan.recent, plan.spans, plan.used = stay, spans, math.max(0, plan.used - #back)
  return back, #back < #found
end

-- Takes messages out of the schedule.
local function take_back(due, payload, meta, ids, story)
  for _, id in ipairs(story and ids or {}) do note(story, 'cancelled', id, '}') end
  in_chunks('ZREM', due, ids)
  in_chunks('HDEL', payload, ids)
  in_chunks('HDEL', meta, ids)
end
