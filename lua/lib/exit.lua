-- Shared by the scripts that take entries out of a pending list: a pending entry becomes a retry, a dead letter, or
-- nothing.
--
-- k is the state of one call. The script sets, before it plans:
--   stream, due, payload, meta, dead, turns, policy, wake   the keys of the queue; turns = nil: a call without it
--   delays                delays of the policy's retries, in ms
--   max_attempts, limits  further limits of the policy's retries: see read_limits
--   tails                 {}, for retry_meta
--   story                 the record for the history; nil = none is kept
-- The functions below and those of key.lua set:
--   named                 names of retries that follow from a message's ID, given in this call
--   soonest               the earliest due time of the retries
--   key_of, passes        the keys of entries, and whether a retry lets the next message overtake it: see note_key
--   left, held            entries with a key that left the pending list, and holders that end: see end_turns

-- An error reply if no retry can be for this group.
local function wrong_group(group)
  if is_group(group) then return nil end
  return redis.error_reply('ERR group is empty, longer than 256 bytes, not UTF-8, or holds control characters: ' ..
    'no message can be for it')
end

-- The verdicts: what became of an entry.
local STUCK = -1 -- it is still pending, because its dead letter was refused
local LOST = 0 -- it was not pending any more
local RETRIED = 1
local BURIED = 2 -- it became a dead letter
local RELEASED = 3
local SKIPPED = 4 -- it was for another group, and is acknowledged
local SNOOZED = 5
local CANCELLED = 6

-- The events in the history.
local EVENTS = {[RETRIED] = 'retried', [RELEASED] = 'released', [SNOOZED] = 'snoozed', [CANCELLED] = 'cancelled'}

-- Adds a dead letter, then acknowledges the entry: if the dead-letter stream is full, the entry must stay pending.
-- acked: the entry has left the pending list already. An entry that is not pending gets no letter. Removing a letter
-- again would leave an empty stream, even for a queue that never existed.
local function bury(k, group, entry, values, acked)
  local consumer, idle
  if k.story then consumer, idle = holder(k.story, k.stream, group, entry) end
  if not acked then
    local pending = redis.pcall('XPENDING', k.stream, group, entry, entry, 1)
    local no_group = pending.err and string.find(pending.err, 'NOGROUP', 1, true)
    if pending.err and not no_group then return STUCK, pending.err end -- it may well be pending
    if pending.err or not pending[1] then return LOST end
  end
  local letter = redis.pcall('XADD', k.dead, '*', unpack(values))
  if type(letter) == 'table' and letter.err then return STUCK, letter.err end
  if not acked then redis.call('XACK', k.stream, group, entry) end
  if k.story then note_values(k.story, 'dead', 'letter', letter, values, consumer, idle) end
  return BURIED
end

-- The values of a dead letter made from a map of fields. raw: the text of all fields, if there are too many of them.
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

-- Joins a list of any length, in pieces: table.concat of the in-process server takes a limited number of values.
local function lines(list)
  local pieces = {}
  for first = 1, #list, 1000 do
    pieces[#pieces + 1] = table.concat(list, '\n', first, math.min(first + 999, #list))
  end
  return table.concat(pieces, '\n')
end

-- Reads the fields of entries, by entry ID, until MOST_BYTES are reached. Returns them, and how many entries were read.
-- Each entry is read by itself: a range may contain large entries between two of them.
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

-- Why the fields of an entry are malformed; nil if they are not.
local function oddity(body, fields)
  local escaped, odd = false, nil
  for i = 1, #body, 2 do
    local name, value = body[i], body[i + 1]
    if not KNOWN[name] then
      escaped = escaped or string.sub(name, 1, 4) == 'b64:'
      if not is_utf8(name) then odd = 'a field name is not UTF-8' end
    end
    if #value > MAX_FIELD_BYTES and name ~= 'payload' then
      odd = 'field ' .. name .. ' is larger than 64 KiB'
    end
  end
  for name in pairs(escaped and fields or {}) do -- keep would write one over the other
    local bytes = string.sub(name, 1, 4) == 'b64:' and fields[string.sub(name, 5)]
    if bytes and not is_utf8(bytes) then odd = 'a field that is not UTF-8 and ' .. name end
  end
  local id, attempt, limit = fields['id'], fields['attempt'], fields['max_attempts']
  if id and (id == '' or string.find(id, SEP, 1, true) or not is_utf8(id)) then
    return 'id is empty, not UTF-8, or holds the separator of retries'
  end
  if attempt and not is_count(attempt) then return 'attempt is not a positive whole number' end
  if limit and not is_count(limit) then return 'max_attempts is not a positive whole number' end
  if #body > 2 * MAX_FIELDS then return 'more than ' .. MAX_FIELDS .. ' fields' end
  return odd
end

local SMALL = {['1'] = 1, ['2'] = 2, ['3'] = 3, ['4'] = 4, ['5'] = 5, ['6'] = 6, ['7'] = 7, ['8'] = 8, ['9'] = 9}

-- Returns the fields of an entry as a map; why they are malformed, or nil; and whether the entry is plain: it has only
-- the standard fields, with values that need no check. Most entries are plain.
local function read_fields(body)
  local fields = {id = nil, payload = nil, attempt = nil, due_ms = nil, ['for'] = nil, error = nil} -- of its final size
  local plain = #body <= 12
  for i = 1, #body, 2 do
    local name, value = body[i], body[i + 1]
    fields[name] = value
    if not RENEWED[name] or #value > 1024 and name ~= 'payload' then plain = false end
  end
  local id = fields['id']
  if plain and SMALL[fields['attempt']] and id and id ~= '' and is_simple(id) then return fields, nil, true end
  return fields, oddity(body, fields), false
end

-- The end of the meta of a plain entry's retry. Most retries of a batch share it, so it is kept in made.
local function tail(made, group, attempt, error)
  local of_error = made[error] or {}
  made[error] = of_error
  local text = of_error[attempt]
  if not text then
    text = '","for":' .. quoted(group) .. ',"attempt":"' .. digits(attempt) .. '","error":' ..
      quoted(error_text(error)) .. '}'
    of_error[attempt] = text
  end
  return text
end

-- The meta of a retry. plain: as read_fields returns it. made: the ends made so far.
local function retry_meta(fields, plain, id, group, attempt, error, made)
  if plain and error ~= '' then return '{"id":"' .. id .. tail(made, group, attempt, error) end
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

-- Reads the policy's retry settings into k: '40', or '40 retry_for_ms=86400000' with further settings by name. Unknown
-- settings are ignored. Returns false if the text does not parse.
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

-- A setting of the message, else of the policy; 0 = off. A value of the message that is not a number is ignored.
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

-- The delay after the n-th failed attempt, from the message's own list, else from the policy's. The last delay of a
-- list repeats.
local function delay_after(k, fields, n)
  local delays = fields['retry_delays_ms'] and own_delays(fields['retry_delays_ms']) or k.delays
  return delays[math.min(n, #delays)]
end

local MOST_SNOOZES = 1000 -- unless the policy or the message says otherwise

-- Adds to a counter in a field of the message, and returns the new count. A value that is not a number counts as 0.
local function one_more(fields, name, more)
  local n = fields[name] and is_count(fields[name]) and tonumber(fields[name]) or 0
  fields[name] = digits(n + more)
  return n + more
end

-- When the message was first due: its age counts from there. Without such a field, it is the time in the entry ID.
local function first_due(fields, entry)
  for _, name in ipairs({'first_due_ms', 'due_ms'}) do
    if fields[name] and is_count(fields[name]) then return tonumber(fields[name]) end
  end
  return tonumber((string.match(entry, '^%d+')))
end

-- The name of a retry in the schedule. With overlap = skip it follows from the message's ID and group alone, so that
-- find_unfinished can look it up. If that name is taken, the retry gets the ordinary one: it must not overwrite
-- another.
local function retry_member(k, id, group, entry, overlap)
  local ordinary = id .. SEP .. group .. SEP .. entry
  if overlap ~= 'skip' then return ordinary end
  local named = id .. SEP .. group .. SEP .. '0-0'
  k.named = k.named or {}
  if k.named[named] or redis.call('ZSCORE', k.due, named) then return ordinary end
  k.named[named] = true
  return named
end

-- Whether the meta of an entry's retry has room for a trace.
local function has_room_for_trace(body, fields)
  if #body > MAX_FIELDS then return false end
  return bytes_of(body) - #(fields['payload'] or '') <= MAX_META_BYTES / 2
end

-- Decides how an entry leaves a group's pending list; writes nothing. body: its flat field list, nil = the entry was
-- deleted. how:
--  id         the message ID that was delivered; '' = not compared
--  action     'retry', 'dead', 'release', 'snooze' or 'cancel'
--  trace      traceparent of the attempt; nil = none
--  delay      ms; nil = from k.delays
--  reason, error
--  burnt      further deliveries to count as attempts
--  crash      whether the worker vanished
--  cancelled  whether the message ends, whatever the action is
-- Returns {verdict}; for a dead letter with letter (its values); for a scheduled one with member, payload, meta and
-- due.
local function plan_exit(k, group, entry, body, how, now)
  if not body and how.cancelled then return {CANCELLED, told = {'id', how.id, 'group', group}} end
  if not body then return {BURIED, letter = lost_body_values(group, entry, how.id, now)} end
  local fields, odd, plain = read_fields(body)
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
  if odd then
    local raw = #body > 2 * MAX_FIELDS and lines(body) or nil
    return {BURIED, letter = letter_values(raw and {id = id} or fields, group, entry, 'malformed', odd, now, raw)}
  end
  if how.trace and has_room_for_trace(body, fields) then
    fields['last_trace'] = how.trace
    plain = false
  end

  -- It becomes a retry, unless there is a reason for a dead letter.
  local verdict, reason = RETRIED, nil
  local failed = attempt + (how.burnt or 0) -- attempts that are used up
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
    local snoozes = one_more(fields, 'snoozes', 1)
    if snoozes > (limit > 0 and limit or MOST_SNOOZES) then
      reason = 'max_snoozes'
      how.error = 'snoozed ' .. digits(snoozes) .. ' times'
    end
  elseif how.crash and setting(k, fields, 'max_crashes') > 0 then -- crashes are counted apart: none uses an attempt up
    local crashes = one_more(fields, 'crashes', 1 + how.burnt)
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

  -- A retry that does not hold its key would be overtaken by the next message of that key. So a call without turns
  -- leaves the entry to a bridge.
  if not k.turns and fields['key'] and is_group(fields['key']) then return {STUCK} end
  local plan = {
    verdict,
    member = retry_member(k, id, group, entry, fields['overlap']),
    payload = fields['payload'] or '',
    due = now + delay,
    meta = retry_meta(fields, plain, id, group, next_attempt, how.error, k.tails),
  }
  if k.story then
    plan.told = {'id', id, 'group', group, 'attempt', digits(failed), 'due_ms', digits(plan.due)}
    add_pair(plan.told, 'error', error_text(how.error))
    -- A dead letter would have the reason max_attempts: it does not say why this attempt failed.
    if how.reason ~= 'max_attempts' then add_pair(plan.told, 'reason', how.reason) end
  end
  return plan
end

-- Carries out plans, entry by entry: takes the entry out of the pending list, and writes its retry or dead letter.
-- k.soonest becomes the earliest due time of the retries. Returns the verdicts, and the error of a command that should
-- not fail: then no further entry was touched, and everything that left the pending list has been written.
local function carry_out(k, group, entries, plans)
  local verdicts, failed = {}, nil
  local bodies, metas, members = {}, {}, {}
  local times = {} -- due times as text: many retries share one
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
      if k.story then consumer, idle = holder(k.story, k.stream, group, entries[i]) end
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
      if verdict ~= LOST and plan.told and k.story then
        note_values(k.story, EVENTS[verdict], 'entry', entries[i], plan.told, consumer, idle)
      end
    end
    verdicts[i] = verdict
  end
  in_chunks('HSET', k.payload, bodies)
  in_chunks('HSET', k.meta, metas)
  in_chunks('ZADD', k.due, members)
  return verdicts, failed
end
