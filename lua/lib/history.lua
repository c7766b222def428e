-- Shared by the scripts that change a message's state: records the changes in the history of the queue, if it keeps
-- one.

local MAX_VALUE_BYTES = 1024 -- longer values are cut
local MOST_CHANGES = 16 -- in one entry of the history
local DEFAULT_HISTORY_MS = '86400000' -- one day

-- Starts the record of a call: a table that collects the changes, for write_record. actor: who calls. most and age: the
-- policy's settings history (entries) and history_ms. Returns nil if the policy asks for no history.
local function begin_record(history, actor, most, age)
  if type(most) ~= 'string' or not is_count(most) then return nil end
  local known_age = type(age) == 'string' and is_count(age)
  return {
    history = history, most = most, age = known_age and age or DEFAULT_HISTORY_MS,
    actor = string.sub(actor, 1, 256), changes = {},
  }
end

-- Reads the policy and calls begin_record. history: the key of the history; nil if the caller gave none, and then nil
-- is returned. A caller that gives the key also gives the actor as the last argument, which is removed from args here.
-- A policy that cannot be read counts as empty, because nothing depends on a history.
local function record_of(policy, history, args)
  if not history then return nil end
  local actor = table.remove(args)
  local most = redis.pcall('HGET', policy, 'history')
  if type(most) ~= 'string' then return nil end
  return begin_record(history, actor, most, redis.pcall('HGET', policy, 'history_ms'))
end

-- A text as a JSON literal, cut to MAX_VALUE_BYTES.
local function told_text(s)
  return quoted(#s > MAX_VALUE_BYTES and string.sub(s, 1, MAX_VALUE_BYTES) or s)
end

-- Records a change of a message's state. rest: the JSON text that follows the ID, with the closing brace.
local function note(record, event, id, rest)
  add_pair(record.changes, event, '{"id":' .. told_text(id) .. rest)
end

-- Records a change of a member of the schedule, which is a message or one of its retries. rest: as in note.
local function note_member(record, event, member, rest)
  local id, group = string.match(member, '^([^' .. SEP .. ']*)' .. SEP .. '(.*)' .. SEP)
  note(record, event, id or member, (group and group ~= '' and ',"group":' .. told_text(group) or '') .. rest)
end

-- The fields that are recorded, and their names in the history. TOLD_READY is for entries: a field group, entry or
-- reason of an entry belongs to the message's sender, and error is that of the attempt before.
local TOLD_READY = {id = 'id', attempt = 'attempt', due_ms = 'due_ms', ['for'] = 'group'}
local TOLD = {
  id = 'id', attempt = 'attempt', due_ms = 'due_ms', ['for'] = 'group',
  group = 'group', entry = 'entry', reason = 'reason', error = 'error',
}

-- Records a change of a message's state, from the values of an entry or a dead letter. id: an entry ID, recorded under
-- name. consumer and idle: as holder returns them.
local function note_values(record, event, name, id, values, consumer, idle)
  local told = {'{"' .. name .. '":"' .. id .. '"'}
  local names = event == 'ready' and TOLD_READY or TOLD
  for i = 1, #values, 2 do
    local as, value = names[values[i]], values[i + 1]
    if as and value ~= '' then told[#told + 1] = '"' .. as .. '":' .. told_text(value) end
  end
  if consumer and consumer ~= '' then
    told[#told + 1] = '"idle_ms":"' .. idle .. '"'
    if record.actor ~= 'worker ' .. consumer then told[#told + 1] = '"consumer":' .. told_text(consumer) end
  end
  add_pair(record.changes, event, table.concat(told, ',') .. '}')
end

-- Records that a group acknowledged an entry. id: the message ID; '' = unknown.
local function note_acknowledged(record, entry, id, group)
  local id_json = id ~= '' and ',"id":' .. told_text(id) or ''
  local told = '{"entry":' .. told_text(entry) .. id_json .. ',"group":' .. told_text(group) .. '}'
  add_pair(record.changes, 'acknowledged', told)
end

-- Returns the consumer that holds an entry, and the ms since the entry was delivered or last extended; two '' if the
-- entry is not pending. It is called before the entry leaves the pending list. A script that claims entries stores
-- their XPENDING rows in record.holders before the claim, because the claim changes them.
local function holder(record, stream, group, entry)
  for _, held in ipairs(record.holders or redis.pcall('XPENDING', stream, group, entry, entry, 1)) do
    if held[1] == entry then return held[2], digits(held[3]) end
  end
  return '', ''
end

-- Writes the recorded changes to the history. It is the last step of a script and called with pcall, so that a refusal
-- changes nothing else. Entries beyond the policy's number are trimmed, and entries beyond its age, at most 1,000 of
-- each a call. The whole history expires when nothing happens for the policy's age.
local function write_record(record)
  local changes = record.changes
  for first = 1, #changes, 2 * MOST_CHANGES do
    local last = math.min(first + 2 * MOST_CHANGES - 1, #changes)
    redis.call('XADD', record.history, '*', 'by', record.actor, unpack(changes, first, last))
  end
  if #changes > 0 then
    redis.call('XTRIM', record.history, 'MAXLEN', '~', record.most, 'LIMIT', 1000) -- more than a call adds
    local oldest = digits(math.max(0, now_ms() - tonumber(record.age)))
    redis.call('XTRIM', record.history, 'MINID', '~', oldest, 'LIMIT', 1000)
    redis.call('PEXPIRE', record.history, record.age)
  end
end
