-- Shared by the exits from the pending list: from a pending entry to a retry, a dead letter, or nothing.

local LOST, RETRIED, BURIED, RELEASED, SKIPPED, STUCK = 0, 1, 2, 3, 4, -1

-- Adds a dead letter, then takes the entry out of the pending list; takes the letter back when someone else was first.
-- Adding first, because a full stream of dead letters must leave the entry pending.
local function bury(k, group, entry, values, acked)
  local letter = redis.pcall('XADD', k.dead, '*', unpack(values))
  if type(letter) == 'table' and letter.err then return STUCK, letter.err end
  if not acked and redis.call('XACK', k.stream, group, entry) == 0 then
    redis.call('XDEL', k.dead, letter)
    return LOST
  end
  return BURIED
end

-- The values of a dead letter made from a map of fields.
local function letter_values(fields, group, entry, reason, error, now)
  fields['group'], fields['entry'], fields['reason'], fields['dead_ms'] = group, entry, reason, digits(now)
  fields['error'] = error ~= '' and error_text(error) or fields['error']
  fields['for'] = nil
  local values = {}
  for _, name in ipairs({'id', 'payload', 'attempt', 'due_ms'}) do
    if fields[name] then extend_values(values, {name, fields[name]}) end
    fields[name] = nil
  end
  for name, value in pairs(fields) do extend_values(values, {name, value}) end
  return values
end

-- The values of the dead letter for an entry whose body someone deleted: only its ID is known.
local function lost_body_values(group, entry, id, now)
  return letter_values({id = id ~= '' and id or entry}, group, entry, 'body_lost', 'the entry was deleted while it was pending', now)
end

-- A list of any length as text. In pieces, because one concat of the in-process server takes only so many values.
local function lines(list)
  local pieces = {}
  for first = 1, #list, 1000 do
    pieces[#pieces + 1] = table.concat(list, '\n', first, math.min(first + 999, #list))
  end
  return table.concat(pieces, '\n')
end

local KNOWN = {id = true, payload = true, attempt = true, due_ms = true, max_attempts = true, expires_ms = true, ['for'] = true, error = true}

-- The fields of an entry as a map, and what is wrong with them.
local function read_fields(body)
  local fields, odd, escaped = {}, nil, false
  for i = 1, #body, 2 do
    local name, value = body[i], body[i + 1]
    fields[name] = value
    if not KNOWN[name] then
      escaped = escaped or string.sub(name, 1, 4) == 'b64:'
      if not is_utf8(name) then odd = 'a field name is not UTF-8' end
    end
    if #value > MAX_FIELD_BYTES and name ~= 'payload' then odd = 'field ' .. name .. ' is larger than 64 KiB' end
  end
  for name in pairs(escaped and fields or {}) do -- keep would write one over the other
    local bytes = string.sub(name, 1, 4) == 'b64:' and fields[string.sub(name, 5)]
    if bytes and not is_utf8(bytes) then odd = 'a field that is not UTF-8 and ' .. name end
  end
  local id, attempt = fields['id'], fields['attempt']
  if id and (id == '' or string.find(id, SEP, 1, true) or not is_utf8(id)) then odd = 'id is empty, not UTF-8, or holds the separator of retries'
  elseif attempt and not is_count(attempt) then odd = 'attempt is not a positive whole number'
  elseif fields['max_attempts'] and not is_count(fields['max_attempts']) then odd = 'max_attempts is not a positive whole number'
  elseif #body > 2 * MAX_FIELDS then odd = 'more than ' .. MAX_FIELDS .. ' fields' end
  return fields, odd
end

-- The meta of a retry. Takes over the fields.
local function retry_meta(fields, id, group, attempt, error)
  local meta = {}
  fields['payload'], fields['due_ms'], fields['error'] = nil, nil, error ~= '' and error_text(error) or fields['error']
  for name, value in pairs(fields) do keep(meta, name, value) end
  meta['id'], meta['for'], meta['attempt'] = id, group, digits(attempt)
  return cjson.encode(meta)
end

-- Says how an entry leaves a group's pending list, and writes nothing. body: its flat field list, or nil. how: id (the ID that was delivered,
-- '' = not compared), action ('retry', 'dead', 'release'), delay (ms, nil = by k.delays), reason, error, burnt (further deliveries that were
-- counted elsewhere). Returns {verdict}; with letter (values) when it is a dead letter; with member, payload, meta and due when it is scheduled.
local function plan_exit(k, group, entry, body, how, now)
  if not body then return {BURIED, letter = lost_body_values(group, entry, how.id, now)} end
  local fields, odd = read_fields(body)
  local meant_for = fields['for']
  if meant_for and meant_for ~= '' and meant_for ~= group then return {SKIPPED} end -- empty is for all, as in Go
  local id, attempt = fields['id'] or entry, tonumber(fields['attempt'] or '1')
  if how.id ~= '' and how.id ~= id then return {LOST} end
  if odd then
    if #body > 2 * MAX_FIELDS then fields = {id = id, raw = lines(body)} end
    return {BURIED, letter = letter_values(fields, group, entry, 'malformed', odd, now)}
  end

  local failed = attempt + (how.burnt or 0)
  local limit = tonumber(fields['max_attempts'] or k.max_attempts)
  if how.action == 'dead' or (how.action ~= 'release' and failed >= limit) then
    fields['id'], fields['attempt'] = id, digits(failed)
    return {BURIED, letter = letter_values(fields, group, entry, how.reason, how.error, now)}
  end
  local plan = {RETRIED, member = id .. SEP .. group .. SEP .. entry, payload = fields['payload'] or ''}
  if how.action == 'release' then
    plan[1], plan.due, plan.meta = RELEASED, now, retry_meta(fields, id, group, attempt, how.error)
  else
    plan.due = now + (how.delay or k.delays[math.min(failed, #k.delays)])
    plan.meta = retry_meta(fields, id, group, failed + 1, how.error)
  end
  return plan
end

-- Carries out plans, entry by entry: the entry leaves the pending list, and what it becomes is written. Returns their verdicts, and the error of
-- a command that cannot fail: then no further entry was touched, and everything that left has been written.
local function carry_out(k, group, entries, plans)
  local verdicts, bodies, metas, members, failed = {}, {}, {}, {}, nil
  for i, plan in ipairs(plans) do
    local verdict = plan[1]
    if plan.letter then
      local ok, result = pcall(bury, k, group, entries[i], plan.letter)
      if not ok then failed = type(result) == 'table' and result or {err = tostring(result)} break end
      verdict = result
    elseif verdict ~= LOST then
      local acked = redis.pcall('XACK', k.stream, group, entries[i])
      if type(acked) == 'table' then failed = acked break end
      if acked == 0 then verdict = LOST end
      if verdict ~= LOST and plan.member then
        if plan.payload ~= '' then add_pair(bodies, plan.member, plan.payload) end
        add_pair(metas, plan.member, plan.meta)
        add_pair(members, digits(plan.due), plan.member)
      end
    end
    verdicts[i] = verdict
  end
  in_chunks('HSET', k.payload, bodies)
  in_chunks('HSET', k.meta, metas)
  in_chunks('ZADD', k.due, members)
  return verdicts, failed
end

-- '1000,2000,4000' as a list of numbers.
local function delay_list(text)
  local delays = {}
  for one in string.gmatch(text, '%d+') do delays[#delays + 1] = tonumber(one) end
  return delays
end
