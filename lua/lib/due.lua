-- Shared by the scripts that move what is due: what becomes of a member of the schedule.

-- The values of the dead letter for an entry that expired before its group, or any group, was given it, or whose group is gone.
local function undelivered_values(values, group, reason, now)
  local letter = {}
  for i = 1, #values, 2 do
    if values[i] ~= 'for' then extend_values(letter, {name_in_letter(values[i]), values[i + 1]}) end
  end
  if group then extend_values(letter, {'group', group}) end
  return extend_values(letter, {'reason', reason, 'dead_ms', digits(now)})
end

-- A score as due_ms: rounded up, so that nothing is early by a fraction; '-inf' and other oddities are 0.
local function due_ms(score)
  if string.find(score, '^%d+$') then return score end
  local n = tonumber(score)
  return digits((n and n > 0) and math.ceil(n) or 0)
end

-- µs until the next due time; -1 when it is none that comes.
local function wait_us(due, now, fraction)
  if not due or due >= 1e15 then return -1 end
  return math.max(0, (math.ceil(due) - now) * 1000 - fraction)
end

-- How long a member waits whose dead letter was refused: the others go on, and it is not read for ever.
local PUT_OFF_MS = 60000

-- Does that. Returns why: the text of the refusal, which names the stream of dead letters when that is none.
local function put_off(due, member, dead, refusal, now)
  redis.call('ZADD', due, digits(now + PUT_OFF_MS), member)
  local bad = string.find(refusal.err, 'WRONGTYPE', 1, true) and wrong_type({dead, 'stream'}) or refusal
  return bad.err
end

-- What is kept of a member that is larger than an entry can be, and what its dead letter says: the payload, and the beginning of the rest.
local function cut(member, body, meta)
  local rest = MAX_FIELD_BYTES
  return string.sub(member, 1, rest), string.sub(body, 1, MAX_ENTRY_BYTES - 2 * rest), string.sub(meta or '', 1, rest),
    'larger than an entry can be: the member has ' .. #member .. ' bytes, the payload ' .. #body .. ', the meta ' .. #(meta or '') ..
    '; kept are at most ' .. rest .. ' of the member, ' .. digits(MAX_ENTRY_BYTES - 2 * rest) .. ' of the payload, ' .. rest .. ' of the meta'
end

-- The values of the dead letter for a member of the schedule that no entry can be made of.
local function malformed_values(member, body, due, meta, error, now)
  local id, group = string.match(member, '^([^' .. SEP .. ']*)' .. SEP .. '(.*)' .. SEP .. '[^' .. SEP .. ']*$')
  local values = {'payload', body, 'attempt', '1', 'due_ms', due, 'meta', meta or '', 'reason', 'malformed', 'error', error, 'dead_ms', digits(now)}
  if group and group ~= '' then extend_values(values, {'group', group}) end
  return extend_values({'id', id or member}, values)
end

-- A function that says whether a message is for a group that the stream has not: all others would skip it. Or nil and the server's refusal.
-- It asks for the groups once, when the first message is for one alone.
local function gone_from(stream)
  local names, err
  return function(group)
    if not group or group == '' then return false end
    if not names then names, err = group_names(stream) end
    if not names then return nil, err end
    return not names[group]
  end
end

-- What a member becomes: the values of an entry; or of a dead letter, and true; fourth, its key, if it has one. Or nil, nil and the server's refusal.
local function delivered_values(member, score, body, meta, is_gone, now)
  local due = due_ms(score)
  if #member + #body + #(meta or '') > MAX_ENTRY_BYTES then
    local id, kept, rest, error = cut(member, body, meta)
    return malformed_values(id, kept, due, rest, error, now), true
  end
  local values, known = entry_values(member, body, meta, due)
  if not values then return malformed_values(member, body, due, meta, known, now), true end
  local gone, err = is_gone(known['for'])
  if err then return nil, nil, err end
  if has_expired(known, now) then return undelivered_values(values, known['for'], 'expired', now), true, nil, known['key'] end
  if gone then return undelivered_values(values, known['for'], 'group_gone', now), true, nil, known['key'] end
  return values, false, nil, known['key']
end

-- Adds a member that is more than its ID and payload to the stream, or to the dead letters. q: what drain knows, and q.key is set to the member's.
-- Returns 'moved' or 'buried', what was added, and its values; or 'parked'; or 'put_off' and the refusal of the dead letters, nil and another one.
local function add_described(q, member, score, body, fields)
  local values, dies, refused, key = delivered_values(member, score, body, fields, q.is_gone, q.now)
  if refused then return nil, refused end
  q.key = key
  if key and not dies then
    local waits, why = awaits_turn(q, key, member, tonumber(due_ms(score)))
    if why or waits then return waits and 'parked', why end
  end
  local added = redis.pcall('XADD', dies and q.dead or q.stream, '*', unpack(values))
  if type(added) == 'table' and added.err then
    if dies then return 'put_off', put_off(q.due, member, q.dead, added, q.now) end
    return nil, added.err
  end
  if key and not dies then redis.call('ZADD', q.turns, 0, in_flight(key, added)) end -- as the one that added nothing
  if key and (dies or string.find(member, SEP, 1, true)) then add_pair(q.held, key, member) end
  return dies and 'buried' or 'moved', added, values
end

-- Notes what a drain did with a member; told are the values of what it added, where they were made one by one.
local function note_drained(story, outcome, added, told, id, attempt, due, group)
  if outcome == 'buried' then return note_values(story, 'dead', 'letter', added, told) end
  if told then return note_values(story, 'ready', 'entry', added, told) end
  note(story, 'ready', id, ',"entry":"' .. added .. '","attempt":"' .. attempt .. '","due_ms":"' .. due .. (group and '","group":' .. told_text(group) .. '}' or '"}'))
end
