-- Shared by the scripts of recurrences: what is remembered of one, and what was planned of it.

-- '<version> <planned_ms> <used> <recent>' as a table: the version of the spec that it is of; up to which point in time all is planned; how
-- many occurrences were; and of the newest, what stands behind '@' in their IDs: those in the schedule, and one that has left it.
local function plan_of(text)
  local version, planned, used, recent = string.match(text or '', '^(%w+) (%d+) (%d+) ([^ ]*)$')
  local plan = {version = version, planned = tonumber(planned), used = tonumber(used), recent = {}}
  for one in string.gmatch(recent or '', '[^,]+') do plan.recent[#plan.recent + 1] = one end
  return plan
end

-- What the count of changes is next, so that whoever remembers it reads all specs again. Anybody may have written it.
local function next_revision(planned)
  local known = redis.call('HGET', planned, '')
  return digits((known and #known <= 15 and string.find(known, '^%d+$') and tonumber(known) or 0) + 1)
end

local function plan_text(plan)
  local first = math.max(1, #plan.recent - 199) -- older ones are ordinary messages by now
  return plan.version .. ' ' .. digits(plan.planned) .. ' ' .. digits(plan.used) .. ' ' .. table.concat(plan.recent, ',', first)
end

-- Keeps of the recent ones those that are in the schedule, and the last one that has left it.
local function forget_left(due, name, plan)
  local kept, left = {}, nil
  for _, one in ipairs(plan.recent) do
    if redis.call('ZSCORE', due, name .. '@' .. one) then kept[#kept + 1] = one else left = one end
  end
  if left then table.insert(kept, 1, left) end
  plan.recent = kept
end

-- Splits the recent ones: what is to be taken back, and what stays. Taken back is what was planned for later than from, and has not left
-- the schedule. What people have run stays.
local function split_plan(due, name, plan, from)
  local back, stay, latest = {}, {}, 0
  for _, one in ipairs(plan.recent) do
    local at = string.find(one, '^%d+$') and tonumber(one) or 0
    local id = name .. '@' .. one
    local waits = redis.call('ZSCORE', due, id)
    if at > from and waits then
      back[#back + 1] = id
    else
      stay[#stay + 1] = one
      if not waits then latest = math.max(latest, at) end
    end
  end
  plan.recent, plan.used = stay, math.max(0, plan.used - #back)
  return back, latest
end

-- Takes messages out of the schedule.
local function take_back(due, payload, meta, ids, story)
  for _, id in ipairs(story and ids or {}) do note(story, 'cancelled', id, '}') end
  in_chunks('ZREM', due, ids)
  in_chunks('HDEL', payload, ids)
  in_chunks('HDEL', meta, ids)
end
