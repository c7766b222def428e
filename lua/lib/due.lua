-- Used by drain: turns a due member of the schedule into an entry or a dead letter.

-- The values of the dead letter for a message that is not delivered, because it has expired or its group is gone.
-- group: the group that a retry is for; nil or '' if the message is for every group.
local function undelivered_values(values, group, reason, now)
  local letter = {}
  for i = 1, #values, 2 do
    if values[i] ~= 'for' then extend_values(letter, {name_in_letter(values[i]), values[i + 1]}) end
  end
  if group then extend_values(letter, {'group', group}) end
  return extend_values(letter, {'reason', reason, 'dead_ms', digits(now)})
end

-- A score as due_ms, rounded up so that no message is early. '-inf' and other scores that are not positive numbers
-- become 0.
local function due_ms(score)
  if string.find(score, '^%d+$') then return score end
  local n = tonumber(score)
  return digits((n and n > 0) and math.ceil(n) or 0)
end

-- µs until a due time; -1 if it is nil, or 1e15 or later (parked members have such scores). now and fraction: as now_ms
-- returns them.
local function wait_us(due, now, fraction)
  if not due or due >= 1e15 then return -1 end
  return math.max(0, (math.ceil(due) - now) * 1000 - fraction)
end

-- If the server refuses the dead letter of a member, the member's due time is moved this far, so that drain goes on
-- with the other members and does not read this one in each pass.
local PUT_OFF_MS = 60000

-- Puts off a member whose dead letter was refused. Returns the text of the refusal. It names the dead-letter stream if
-- that key has another type.
local function put_off_member(due, member, dead, refusal, now)
  redis.call('ZADD', due, digits(now + PUT_OFF_MS), member)
  local bad = string.find(refusal.err, 'WRONGTYPE', 1, true) and wrong_type({dead, 'stream'}) or refusal
  return bad.err
end

-- Shortens the parts of a message that is too large for an entry. Returns the kept parts of the member, the payload and
-- the meta, and the error text of the dead letter.
local function cut(member, body, meta)
  meta = meta or ''
  local most = MAX_FIELD_BYTES -- of the member, and of the meta
  local most_of_body = MAX_ENTRY_BYTES - 2 * most
  local sizes = 'the member has ' .. #member .. ' bytes, the payload ' .. #body .. ', the meta ' .. #meta
  local kept = most .. ' of the member, ' .. digits(most_of_body) .. ' of the payload, ' .. most .. ' of the meta'
  local error = 'larger than an entry can be: ' .. sizes .. '; kept are at most ' .. kept
  return string.sub(member, 1, most), string.sub(body, 1, most_of_body), string.sub(meta, 1, most), error
end

-- The values of the dead letter for a malformed message, which cannot become an entry. error: why. The member of a
-- retry is <id>SEP<group>SEP<entry>.
local function malformed_values(member, body, due, meta, error, now)
  local id, group = string.match(member, '^([^' .. SEP .. ']*)' .. SEP .. '(.*)' .. SEP .. '[^' .. SEP .. ']*$')
  local values = {'payload', body, 'attempt', '1', 'due_ms', due, 'meta', meta or ''}
  extend_values(values, {'reason', 'malformed', 'error', error, 'dead_ms', digits(now)})
  if group and group ~= '' then extend_values(values, {'group', group}) end
  return extend_values({'id', id or member}, values)
end

-- Returns a function that reports whether a message is for a group that the stream does not have: all existing groups
-- would skip such a message. The function returns nil and the server's error if the groups cannot be read. It reads the
-- groups once, when it is first asked about a message for a single group.
local function gone_from(stream)
  local names, err
  return function(group)
    if not group or group == '' then return false end
    if not names then names, err = group_names(stream) end
    if not names then return nil, err end
    return not names[group]
  end
end

-- Decides whether a due member becomes an entry or a dead letter. Returns four values: the values for XADD; whether
-- they are those of a dead letter; the server's error if the groups cannot be read (the first two are nil then); and
-- the message's ordering key, if it has one.
local function delivered_values(member, score, body, meta, is_gone, now)
  local due = due_ms(score)
  if #member + #body + #(meta or '') > MAX_ENTRY_BYTES then
    local id, kept, rest, error = cut(member, body, meta)
    return malformed_values(id, kept, due, rest, error, now), true
  end
  local values, known = entry_values(member, body, meta, due)
  if not values then return malformed_values(member, body, due, meta, known, now), true end
  local group, key = known['for'], known['key']
  local gone, err = is_gone(group)
  if err then return nil, nil, err end
  if has_expired(known, now) then return undelivered_values(values, group, 'expired', now), true, nil, key end
  if gone then return undelivered_values(values, group, 'group_gone', now), true, nil, key end
  return values, false, nil, key
end

-- Adds a member to the stream or to the dead letters. delivered_values decides which, by the member's meta. q: drain's
-- state. add_described sets q.key to the message's ordering key. The first value returned is the outcome:
--   'moved'    an entry was added; followed by its ID and its values
--   'buried'   a dead letter was added; followed by its ID and its values
--   'parked'   the message waits for its ordering key
--   'put_off'  the dead-letter stream refused the letter; followed by the error text
--   nil        a command was refused; followed by the error text
local function add_described(q, member, score, body, fields)
  local values, dies, refused, key = delivered_values(member, score, body, fields, q.is_gone, q.now)
  if refused then return nil, refused end
  q.key = key
  if key and not dies then
    local waits, why = awaits_turn(q, key, member, tonumber(due_ms(score)))
    if why or waits then return waits and 'parked', why end
  end
  local added
  if dies then
    added = redis.pcall('XADD', q.dead, '*', unpack(values))
  else
    added = redis.pcall('XADD', q.stream, '*', unpack(values))
  end
  if type(added) == 'table' and added.err then
    if dies then return 'put_off', put_off_member(q.due, member, q.dead, added, q.now) end
    return nil, added.err
  end
  if key and not dies then
    redis.call('ZADD', q.turns, 0, in_flight(key, added)) -- cannot fail: awaits_turn has tried this command
  end
  -- The entry now holds the key. A retry, or a message that dies, may have held it under the member's name.
  if key and (dies or string.find(member, SEP, 1, true)) then add_pair(q.held, key, member) end
  return dies and 'buried' or 'moved', added, values
end

-- Adds a retry to the stream if its meta matches the pattern RETRY. The meta of most retries does, and need not be
-- decoded then. due: the due time as text. Returns four values: the ID of the entry, or the server's error reply; the
-- message ID; the attempt; and the group. Returns nil and adds nothing if the meta does not match, or if the stream
-- does not have the group.
local function add_retry(q, body, fields, due)
  local id, group, attempt, error = string.match(fields, RETRY)
  if not id or q.is_gone(group) ~= false then return nil end
  local added = redis.pcall('XADD', q.stream, '*', 'id', id, 'payload', body, 'attempt', attempt, 'due_ms', due,
    'for', group, 'error', error)
  return added, id, attempt, group
end

-- Adds a member that has a meta, or whose name is not a plain ID, or that is too large. If add_retry sent the XADD, the
-- values returned are: 'moved', the reply of XADD, nil, the message ID, the attempt and the group. Otherwise add_other
-- returns what add_described returns.
local function add_other(q, member, score, body, fields, due)
  q.is_gone = q.is_gone or gone_from(q.stream)
  q.key = nil
  if fields and #fields < 8192 and #member + #body + #fields <= MAX_ENTRY_BYTES then
    local added, id, attempt, group = add_retry(q, body, fields, due)
    if added then return 'moved', added, nil, id, attempt, group end
  end
  return add_described(q, member, score, body, fields)
end

-- Records for the history that drain moved or buried a member. added: the ID of the new entry or dead letter. values:
-- its values, if add_described made them; else the record takes id, attempt, due and group.
local function note_drained(record, outcome, added, values, id, attempt, due, group)
  if outcome == 'buried' then return note_values(record, 'dead', 'letter', added, values) end
  if values then return note_values(record, 'ready', 'entry', added, values) end
  local rest = ',"entry":"' .. added .. '","attempt":"' .. attempt .. '","due_ms":"' .. due .. '"'
  if group then rest = rest .. ',"group":' .. told_text(group) end
  note(record, 'ready', id, rest .. '}')
end
