-- Shared by the scripts that change a message's state: records the changes in the history of the queue, if it keeps
-- one.

local MAX_TOLD_BYTES = 1024 -- of a value
local MOST_TOLD = 16 -- changes in one entry of the history
local DEFAULT_HISTORY_MS = '86400000'

-- Starts the record of a call by an actor. most and age are settings of the policy. Returns nil if most does not ask
-- for a history.
local function begin_story(history, actor, most, age)
  if type(most) ~= 'string' or not is_count(most) then return nil end
  local known_age = type(age) == 'string' and is_count(age)
  return {
    history = history, most = most, age = known_age and age or DEFAULT_HISTORY_MS,
    actor = string.sub(actor, 1, 256), changes = {},
  }
end

-- begin_story for most scripts. Returns nil, too, if the caller gave no history key. A caller that gives one also gives
-- the actor as the last argument, which is removed here. A policy that cannot be read counts as empty: nothing depends
-- on a history.
local function story_of(policy, history, args)
  if not history then return nil end
  local actor = table.remove(args)
  local most = redis.pcall('HGET', policy, 'history')
  if type(most) ~= 'string' then return nil end
  return begin_story(history, actor, most, redis.pcall('HGET', policy, 'history_ms'))
end

-- A text as a JSON literal, cut to MAX_TOLD_BYTES.
local function told_text(s)
  return quoted(#s > MAX_TOLD_BYTES and string.sub(s, 1, MAX_TOLD_BYTES) or s)
end

-- Records a change of state of a message. rest: the JSON text that follows the ID, up to the closing brace.
local function note(story, event, id, rest)
  add_pair(story.changes, event, '{"id":' .. told_text(id) .. rest)
end

-- Records a change of state of a schedule member, a message or one of its retries. rest: as in note.
local function note_member(story, event, member, rest)
  local id, group = string.match(member, '^([^' .. SEP .. ']*)' .. SEP .. '(.*)' .. SEP)
  note(story, event, id or member, (group and group ~= '' and ',"group":' .. told_text(group) or '') .. rest)
end

-- The fields that are recorded, and their names in the history. Further fields of an entry are the message's own.
local TOLD_READY = {id = 'id', attempt = 'attempt', due_ms = 'due_ms', ['for'] = 'group'}
local TOLD = {
  id = 'id', attempt = 'attempt', due_ms = 'due_ms', ['for'] = 'group',
  group = 'group', entry = 'entry', reason = 'reason', error = 'error',
}

-- Records a change of state from the values of an entry or a dead letter. id: an entry ID, recorded under name.
-- consumer and idle: as holder returns them.
local function note_values(story, event, name, id, values, consumer, idle)
  local told = {'{"' .. name .. '":"' .. id .. '"'}
  local names = event == 'ready' and TOLD_READY or TOLD
  for i = 1, #values, 2 do
    local as, value = names[values[i]], values[i + 1]
    if as and value ~= '' then told[#told + 1] = '"' .. as .. '":' .. told_text(value) end
  end
  if consumer and consumer ~= '' then
    told[#told + 1] = '"idle_ms":"' .. idle .. '"'
    if story.actor ~= 'worker ' .. consumer then told[#told + 1] = '"consumer":' .. told_text(consumer) end
  end
  add_pair(story.changes, event, table.concat(told, ',') .. '}')
end

-- Returns the consumer that holds an entry, and the ms since it was delivered or last extended; '' and '' if it is not
-- pending. It is called before the entry leaves the pending list. story.holders: the pending entries before a claim.
local function holder(story, stream, group, entry)
  for _, held in ipairs(story.holders or redis.pcall('XPENDING', stream, group, entry, entry, 1)) do
    if held[1] == entry then return held[2], digits(held[3]) end
  end
  return '', ''
end

-- Writes the recorded changes, as the last step of a call: nothing depends on them, and a refusal changes nothing else.
-- Changes older than the policy allows are trimmed, a part at a time. The whole history expires when nothing happens
-- for so long.
local function tell(story)
  local changes = story.changes
  for first = 1, #changes, 2 * MOST_TOLD do
    local last = math.min(first + 2 * MOST_TOLD - 1, #changes)
    redis.call('XADD', story.history, '*', 'by', story.actor, unpack(changes, first, last))
  end
  if #changes > 0 then
    redis.call('XTRIM', story.history, 'MAXLEN', '~', story.most, 'LIMIT', 1000) -- more than a call adds
    redis.call('XTRIM', story.history, 'MINID', '~', digits(math.max(0, now_ms() - tonumber(story.age))), 'LIMIT', 1000)
    redis.call('PEXPIRE', story.history, story.age)
  end
end
