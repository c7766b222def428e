-- Shared by the scripts that take entries out of a pending list: a pending entry becomes a retry, a dead letter, or
-- nothing.
--
-- plan_exit decides what becomes of an entry, and writes nothing. carry_out then does what was planned.
--
-- k is the state of one call. The script sets these fields before it calls plan_exit:
--   stream, due, payload, meta, dead, turns, policy, wake   Redis keys; turns is nil if the caller gave no such key
--   delays                the delays of the policy's retries, in ms
--   max_attempts, limits  the limits of the policy's retries: see read_limits
--   tails                 an empty table, for retry_meta
--   record                the changes for the history; nil if the queue keeps none
-- The functions below and those of key.lua set these fields:
--   named                 retry names that this call has given: see retry_member
--   soonest               the earliest due time of the retries
--   key_of                the ordering keys of entries: see note_key
--   overtakes             whether the next message of a key overtakes a retry: see note_key
--   left                  entries with an ordering key that left the pending list: see part_keyed
--   held                  pairs of ordering key and entry whose hold on it ends: see end_turns

-- An error reply if the field `for` of a retry may not hold this group name; else nil.
local function wrong_group(group)
  if is_group(group) then return nil end
  return redis.error_reply('ERR group is empty, longer than 256 bytes, not UTF-8, or holds control characters: ' ..
    'no message can be for it')
end

-- The verdicts: what became of an entry. From RETRIED on, the entry has left the pending list.
local STUCK = -1 -- the entry is still pending: its dead letter was refused, or the call may not write its retry
local LOST = 0 -- the entry was not pending any more
local RETRIED = 1
local BURIED = 2 -- the entry became a dead letter
local RELEASED = 3
local SKIPPED = 4 -- the entry was for another group; it is acknowledged
local SNOOZED = 5
local CANCELLED = 6

-- The event that the history records for a verdict.
local EVENTS = {[RETRIED] = 'retried', [RELEASED] = 'released', [SNOOZED] = 'snoozed', [CANCELLED] = 'cancelled'}

-- Adds a dead letter, then acknowledges the entry. The order matters: if the dead-letter stream is full, the entry must
-- stay pending. acked: whether the entry has left the pending list already. If not, the pending list is read first,
-- because an entry that is not pending gets no letter. A letter cannot be added and then removed again: an empty stream
-- would stay, even for a queue that never existed. Returns the verdict, and the error text for STUCK.
local function bury(k, group, entry, values, acked)
  local consumer, idle
  if k.record then consumer, idle = holder(k.record, k.stream, group, entry) end
  if not acked then
    local pending = redis.pcall('XPENDING', k.stream, group, entry, entry, 1)
    local no_group = pending.err and string.find(pending.err, 'NOGROUP', 1, true)
    if pending.err and not no_group then return STUCK, pending.err end -- the entry may be pending
    if pending.err or not pending[1] then return LOST end
  end
  local letter = redis.pcall('XADD', k.dead, '*', unpack(values))
  if type(letter) == 'table' and letter.err then return STUCK, letter.err end
  if not acked then redis.call('XACK', k.stream, group, entry) end
  if k.record then note_values(k.record, 'dead', 'letter', letter, values, consumer, idle) end
  return BURIED
end

-- The values of a dead letter, from a map of the entry's fields. raw: the text of all fields, if there were too many
-- for the letter; else nil.
local function letter_values(fields, group, entry, reason, error, now, raw)
  fields['error'] = error ~= '' and error_text(error) or fields['error']
  fields['for'] = nil
  local values = {}
  for _, name in ipairs({'id', 'payload', 'attempt', 'due_ms'}) do
    if fields[name] then extend_values(values, {name, fields[name]}) end
    fields[name] = nil
  end
  for name, value in pairs(fields) do extend_values(values, {name_in_letter(name), value}) end
  if raw then extend_values(values, {'raw', raw}) end
  return extend_values(values, {'group', group, 'entry', entry, 'reason', reason, 'dead_ms', digits(now)})
end

-- The values of the dead letter for an entry that was deleted while it was pending: only its ID is known.
local function lost_body_values(group, entry, id, now)
  local fields = {id = id ~= '' and id or entry}
  return letter_values(fields, group, entry, 'body_lost', 'the entry was deleted while it was pending', now)
end

-- Joins a list of any length with newlines. It joins pieces, because table.concat of the in-process server takes a
-- limited number of values.
local function join_lines(list)
  local pieces = {}
  for first = 1, #list, 1000 do
    pieces[#pieces + 1] = table.concat(list, '\n', first, math.min(first + 999, #list))
  end
  return table.concat(pieces, '\n')
end

-- Reads entries until MOST_BYTES are reached. Returns a table of their fields by entry ID, and how many entries were
-- read. It reads each entry by itself, because a range may contain large entries between two of them.
local function bodies_of(stream, entries)
  local bodies, bytes = {}, 0
  for i, entry in ipairs(entries) do
    if bytes >= MOST_BYTES then return bodies, i - 1 end
    local one = redis.call('XRANGE', stream, entry, entry)[1]
    bodies[entry] = one and one[2]
    bytes = bytes + bytes_of(bodies[entry])
  end
  return bodies, #entries
end

-- Fields that a retry writes itself.
local RENEWED = {id = true, payload = true, attempt = true, due_ms = true, ['for'] = true, error = true}
-- Fields whose names are certainly UTF-8.
local KNOWN = {
  id = true, payload = true, attempt = true, due_ms = true, ['for'] = true, error = true,
  max_attempts = true, expires_ms = true,
}

-- Why an entry is malformed, as a text; nil if it is not. body: the entry's flat field list. fields: the same as a map.
local function defect_of(body, fields)
  local has_base64, defect = false, nil
  for i = 1, #body, 2 do
    local name, value = body[i], body[i + 1]
    if not KNOWN[name] then
      has_base64 = has_base64 or string.sub(name, 1, 4) == 'b64:'
      if not is_utf8(name) then defect = 'a field name is not UTF-8' end
    end
    if #value > MAX_FIELD_BYTES and name ~= 'payload' then
      defect = 'field ' .. name .. ' is larger than 64 KiB'
    end
  end
  -- Of a field <name> that is not UTF-8 and a field b64:<name>, only one would be left: keep gives both one name.
  for name in pairs(has_base64 and fields or {}) do
    local bytes = string.sub(name, 1, 4) == 'b64:' and fields[string.sub(name, 5)]
    if bytes and not is_utf8(bytes) then defect = 'a field that is not UTF-8 and ' .. name end
  end
  local id, attempt, limit = fields['id'], fields['attempt'], fields['max_attempts']
  if id and (id == '' or string.find(id, SEP, 1, true) or not is_utf8(id)) then
    return 'id is empty, not UTF-8, or holds the separator of retries'
  end
  if attempt and not is_count(attempt) then return 'attempt is not a positive whole number' end
  if limit and not is_count(limit) then return 'max_attempts is not a positive whole number' end
  if #body > 2 * MAX_FIELDS then return 'more than ' .. MAX_FIELDS .. ' fields' end
  return defect
end

-- The numbers of texts with one digit: a cheap tonumber for most attempts.
local SMALL = {['1'] = 1, ['2'] = 2, ['3'] = 3, ['4'] = 4, ['5'] = 5, ['6'] = 6, ['7'] = 7, ['8'] = 8, ['9'] = 9}

-- Returns three values: the fields of an entry as a map; why the entry is malformed, or nil; and whether the entry is
-- plain. A plain entry has only the standard fields, with values that need no check. Most entries are plain.
local function read_fields(body)
  -- The names are listed so that Lua makes the table in its final size.
  local fields = {id = nil, payload = nil, attempt = nil, due_ms = nil, ['for'] = nil, error = nil}
  local plain = #body <= 12
  for i = 1, #body, 2 do
    local name, value = body[i], body[i + 1]
    fields[name] = value
    if not RENEWED[name] or #value > 1024 and name ~= 'payload' then plain = false end
  end
  local id = fields['id']
  if plain and SMALL[fields['attempt']] and id and id ~= '' and is_simple(id) then return fields, nil, true end
  return fields, defect_of(body, fields), false
end

-- The text that follows the ID in the meta of a plain entry's retry. Most retries of a batch have the same text, so it
-- is kept in tails, by error and attempt.
local function meta_tail(tails, group, attempt, error)
  local by_attempt = tails[error] or {}
  tails[error] = by_attempt
  local text = by_attempt[attempt]
  if not text then
    text = '","for":' .. quoted(group) .. ',"attempt":"' .. digits(attempt) .. '","error":' ..
      quoted(error_text(error)) .. '}'
    by_attempt[attempt] = text
  end
  return text
end

-- The meta of a retry, as JSON. plain: as read_fields returns it. tails: see meta_tail.
local function retry_meta(fields, plain, id, group, attempt, error, tails)
  if plain and error ~= '' then return '{"id":"' .. id .. meta_tail(tails, group, attempt, error) end
  fields['payload'] = nil
  fields['due_ms'] = nil
  if error ~= '' then fields['error'] = error_text(error) end
  local meta = {}
  for name, value in pairs(fields) do keep(meta, name, value) end
  meta['id'] = id
  meta['for'] = group
  meta['attempt'] = digits(attempt)
  return cjson.encode(meta)
end

-- '1000,2000,4000' as a list of numbers.
local function delay_list(text)
  local delays = {}
  for one in string.gmatch(text, '%d+') do delays[#delays + 1] = tonumber(one) end
  return delays
end

-- Reads the policy's retry settings into k.max_attempts and k.limits. The text is the number of attempts alone, as
-- '40', or is followed by further settings, as '40 retry_for_ms=86400000'. Unknown settings have no effect. Returns
-- false if the text does not parse.
local function read_limits(k, text)
  k.max_attempts = tonumber(text)
  k.limits = {}
  if k.max_attempts then return true end
  local first, more = string.match(text, '^(%d+)( .*)$')
  if not first then return false end
  k.max_attempts = tonumber(first)
  more = string.gsub(more, ' ([%l_]+)=(%d+)', function(name, value)
    k.limits[name] = tonumber(value)
    return ''
  end)
  return more == ''
end

-- The value of a setting: the message's own field, else the policy's value; 0 = off. A field that is not a number is
-- ignored.
local function setting(k, fields, name)
  local own = fields[name]
  if own and (own == '0' or is_count(own)) then return tonumber(own) end
  return k.limits[name] or 0
end

local LONGEST_DELAY = 315360000000 -- ms: 10 years
local MOST_DELAYS = 100

-- Parses a message's own list of delays; nil if it is invalid.
local function own_delays(text)
  if string.find(text, '[^%d,]') then return nil end
  if string.find(',' .. text .. ',', ',,', 1, true) then return nil end -- an empty one
  if string.find(text, string.rep('%d', 13)) then return nil end -- a number that is too long
  local delays = delay_list(text)
  for _, one in ipairs(delays) do
    if one < 1 or one > LONGEST_DELAY then return nil end
  end
  return #delays <= MOST_DELAYS and delays or nil
end

-- The delay in ms after the n-th failed attempt, from the message's own list, else from the policy's list. The last
-- delay of a list repeats.
local function delay_after(k, fields, n)
  local delays = fields['retry_delays_ms'] and own_delays(fields['retry_delays_ms']) or k.delays
  return delays[math.min(n, #delays)]
end

local MOST_SNOOZES = 1000 -- unless max_snoozes of the message or the policy is set

-- Adds an increment to a counter in a field of the message, and returns the new count. A value that is not a number
-- counts as 0.
local function add_to_counter(fields, name, increment)
  local n = fields[name] and is_count(fields[name]) and tonumber(fields[name]) or 0
  fields[name] = digits(n + increment)
  return n + increment
end

-- When the message was first due, Unix ms: the limit retry_for_ms counts from this time. If no field tells it, it is
-- the time in the entry ID.
local function first_due(fields, entry)
  for _, name in ipairs({'first_due_ms', 'due_ms'}) do
    if fields[name] and is_count(fields[name]) then return tonumber(fields[name]) end
  end
  return tonumber((string.match(entry, '^%d+')))
end

-- The name of a retry in the schedule, <id>SEP<group>SEP<entry>. If the message has overlap = skip, the name has '0-0'
-- instead of the entry, so that find_unfinished can look the retry up by ID and group alone. If another retry has that
-- name, this one gets its ordinary name, because it must not overwrite the other.
local function retry_member(k, id, group, entry, overlap)
  local ordinary = id .. SEP .. group .. SEP .. entry
  if overlap ~= 'skip' then return ordinary end
  local named = id .. SEP .. group .. SEP .. '0-0'
  k.named = k.named or {}
  if k.named[named] or redis.call('ZSCORE', k.due, named) then return ordinary end
  k.named[named] = true
  return named
end

-- Writes the cursor of an attempt into the fields of its message. A cursor that is no text is written as base64,
-- because all fields but the payload are texts.
local function set_progress(fields, cursor)
  fields['progress'] = nil
  fields['b64:progress'] = nil
  if cursor == '' then return end
  if is_utf8(cursor) and not string.find(cursor, '\0', 1, true) then
    fields['progress'] = cursor
  else
    fields['b64:progress'] = base64(cursor)
  end
end

-- Whether the meta of an entry's retry has room for a trace, or for progress.
local function has_room_for_more(body, fields)
  if #body > MAX_FIELDS then return false end
  return bytes_of(body) - #(fields['payload'] or '') <= MAX_META_BYTES / 2
end

-- Decides how an entry leaves a group's pending list; writes nothing. body: the entry's flat field list; nil if the
-- entry was deleted. The fields of how:
--  id         the message ID that was delivered; '' = the entry's ID is not compared with it
--  action     'retry', 'dead', 'release', 'snooze' or 'cancel'
--  trace      the traceparent of the attempt; nil = none
--  progress   the cursor that the attempt stored last; '' = the next attempt begins anew; nil = none was stored
--  delay      ms until the retry; nil = taken from k.delays
--  reason     the reason of the dead letter, if the entry becomes one
--  error      the error text of the attempt
--  burnt      the number of further deliveries that count as attempts; nil = 0
--  crash      whether the consumer disappeared, so that the attempt counts as a crash
--  cancelled  whether the message was cancelled: it ends then, whatever the action is
-- Returns a plan {verdict, ...}. A dead letter has the field letter, with its values. A scheduled retry has the fields
-- member, payload, meta and due. told is the list of names and values that the history records.
local function plan_exit(k, group, entry, body, how, now)
  if not body and how.cancelled then return {CANCELLED, told = {'id', how.id, 'group', group}} end
  if not body then return {BURIED, letter = lost_body_values(group, entry, how.id, now)} end
  local fields, defect, plain = read_fields(body)
  if fields['key'] then note_key(k, entry, fields['key']) end
  local meant_for = fields['for']
  if meant_for and meant_for ~= '' and meant_for ~= group then return {SKIPPED} end -- '' means every group, as in Go
  local id = fields['id'] or entry
  if how.id ~= '' and how.id ~= id then return {LOST} end
  local attempt = SMALL[fields['attempt']] or tonumber(fields['attempt'] or '1')
  if how.cancelled then
    local told_attempt = attempt and digits(attempt) or fields['attempt'] -- a foreign entry may have any text there
    return {CANCELLED, told = {'id', id, 'group', group, 'attempt', told_attempt}}
  end
  if defect then
    local raw = #body > 2 * MAX_FIELDS and join_lines(body) or nil
    return {BURIED, letter = letter_values(raw and {id = id} or fields, group, entry, 'malformed', defect, now, raw)}
  end
  if how.trace and has_room_for_more(body, fields) then
    fields['last_trace'] = how.trace
    plain = false
  end
  if how.progress and has_room_for_more(body, fields) then
    set_progress(fields, how.progress)
    plain = false
  end

  -- The entry becomes a retry, unless the code below sets the reason of a dead letter. plain is set to false where a
  -- field changes that meta_tail does not write.
  local verdict, reason = RETRIED, nil
  local failed = attempt + (how.burnt or 0) -- the number of attempts that are used up
  local next_attempt = failed + 1
  local delay = 0
  if how.action == 'dead' then
    reason = how.reason
  elseif how.action == 'release' then
    verdict = RELEASED
    next_attempt = attempt
  elseif how.action == 'snooze' then
    verdict = SNOOZED
    next_attempt = attempt
    delay = how.delay
    plain = false
    local limit = setting(k, fields, 'max_snoozes')
    local snoozes = add_to_counter(fields, 'snoozes', 1)
    if snoozes > (limit > 0 and limit or MOST_SNOOZES) then
      reason = 'max_snoozes'
      how.error = 'snoozed ' .. digits(snoozes) .. ' times'
    end
  elseif how.crash and setting(k, fields, 'max_crashes') > 0 then -- a crash is counted apart, and uses up no attempt
    local crashes = add_to_counter(fields, 'crashes', 1 + how.burnt)
    failed = attempt
    next_attempt = attempt
    delay = delay_after(k, fields, crashes)
    plain = false
    if crashes >= setting(k, fields, 'max_crashes') then reason = 'crashes' end
  else
    delay = how.delay or delay_after(k, fields, failed)
    if failed >= (tonumber(fields['max_attempts']) or k.max_attempts) then reason = how.reason end
  end
  local retry_for = setting(k, fields, 'retry_for_ms')
  if retry_for > 0 then
    local first = first_due(fields, entry)
    fields['first_due_ms'] = digits(first)
    plain = false
    if not reason and verdict == RETRIED and now + delay > first + retry_for then reason = 'retry_for' end
  end
  if reason then
    fields['id'] = id
    fields['attempt'] = digits(failed)
    return {BURIED, letter = letter_values(fields, group, entry, reason, how.error, now)}
  end

  -- The next message of an ordering key would overtake a retry that does not hold the key. So a call without turns
  -- leaves the entry pending, until a bridge reclaims it.
  if not k.turns and fields['key'] and is_group(fields['key']) then return {STUCK} end
  local plan = {
    verdict,
    member = retry_member(k, id, group, entry, fields['overlap']),
    payload = fields['payload'] or '',
    due = now + delay,
    meta = retry_meta(fields, plain, id, group, next_attempt, how.error, k.tails),
  }
  if k.record then
    plan.told = {'id', id, 'group', group, 'attempt', digits(failed), 'due_ms', digits(plan.due)}
    add_pair(plan.told, 'error', error_text(how.error))
    -- max_attempts is the reason for a dead letter, not for the failure of this attempt.
    if how.reason ~= 'max_attempts' then add_pair(plan.told, 'reason', how.reason) end
  end
  return plan
end

-- Carries out plans, entry by entry: takes each entry out of the pending list, and writes its retry or dead letter.
-- k.soonest becomes the earliest due time of the retries. Returns the verdicts; and, if a command that should not fail
-- was refused, its error. In that case the entries after the refusal stay pending, and the retries and dead letters of
-- all entries before it have been written.
local function carry_out(k, group, entries, plans)
  local verdicts, failed = {}, nil
  local bodies, metas, members = {}, {}, {} -- arguments of HSET payload, HSET meta and ZADD due
  local times = {} -- due times as text, by number, because many retries have the same one
  for i, plan in ipairs(plans) do
    local verdict = plan[1]
    if plan.letter then
      local ok, result = pcall(bury, k, group, entries[i], plan.letter)
      if not ok then
        failed = type(result) == 'table' and result or {err = tostring(result)}
        break
      end
      verdict = result
    elseif verdict > LOST then
      local consumer, idle
      if k.record then consumer, idle = holder(k.record, k.stream, group, entries[i]) end
      local acked = redis.pcall('XACK', k.stream, group, entries[i])
      if type(acked) == 'table' then
        failed = acked
        break
      end
      if acked == 0 then verdict = LOST end
      if verdict ~= LOST and plan.member then
        local due = times[plan.due] or digits(plan.due)
        times[plan.due] = due
        if plan.payload ~= '' then add_pair(bodies, plan.member, plan.payload) end
        add_pair(metas, plan.member, plan.meta)
        add_pair(members, due, plan.member)
        k.soonest = math.min(k.soonest or plan.due, plan.due)
        if k.key_of then keep_key(k, entries[i], plan.member, verdict == RELEASED) end
      end
      if verdict ~= LOST and plan.told and k.record then
        note_values(k.record, EVENTS[verdict], 'entry', entries[i], plan.told, consumer, idle)
      end
    end
    verdicts[i] = verdict
  end
  in_chunks('HSET', k.payload, bodies)
  in_chunks('HSET', k.meta, metas)
  in_chunks('ZADD', k.due, members)
  return verdicts, failed
end
