-- Shared by the exits from the pending list: from a pending entry to a retry, a dead letter, or nothing; and freeing what no group needs.

local LOST, RETRIED, BURIED, RELEASED, SKIPPED, STUCK = 0, 1, 2, 3, 4, -1

-- An entry ID is <ms>-<seq>, each up to 20 digits: compared as text, because Lua's numbers end at 2^53.
local function id_parts(id)
  local ms, seq = string.match(id, '^(%d+)%-?(%d*)$')
  return ms or '0', (seq and seq ~= '') and seq or '0'
end

local function less(a, b)
  if #a == #b and string.byte(a, 14) == 45 and string.byte(b, 14) == 45 then -- 13 digits of ms, until 2286
    return a < b
  end
  local a_ms, a_seq = id_parts(a)
  local b_ms, b_seq = id_parts(b)
  if a_ms ~= b_ms then
    if #a_ms ~= #b_ms then return #a_ms < #b_ms end
    return a_ms < b_ms
  end
  if #a_seq ~= #b_seq then return #a_seq < #b_seq end
  return a_seq < b_seq
end

-- XINFO GROUPS as tables {name, pending, last}.
local function groups_of(stream)
  local groups = {}
  local reply = redis.pcall('XINFO', 'GROUPS', stream)
  if reply.err then return groups end
  for _, flat in ipairs(reply) do
    local group = {}
    for i = 1, #flat, 2 do
      if flat[i] == 'name' then group.name = flat[i + 1]
      elseif flat[i] == 'pending' then group.pending = tonumber(flat[i + 1])
      elseif flat[i] == 'last-delivered-id' then group.last = flat[i + 1] or '0-0' end
    end
    groups[#groups + 1] = group
  end
  return groups
end

-- The entry ID that follows id.
local function successor(id)
  local ms, seq = id_parts(id)
  if #seq > 14 then return id end
  return ms .. '-' .. digits(tonumber(seq) + 1)
end

-- Everything below bound is done with, in every group; delivered is the last entry that every group has been given.
local function bounds(stream, groups)
  local bound, delivered
  for _, group in ipairs(groups) do
    local own = successor(group.last)
    if group.pending > 0 then
      local oldest = redis.call('XPENDING', stream, group.name, '-', '+', 1)
      if oldest[1] and less(oldest[1][1], own) then own = oldest[1][1] end
    end
    if not bound or less(own, bound) then bound = own end
    if not delivered or less(group.last, delivered) then delivered = group.last end
  end
  return bound, delivered
end

-- Trims what is below bound: whole nodes first, by a limit; exactly only when no whole node is left, and then it is less than one (of 100
-- entries, unless configured: a limit below that would trim no node, and then everything at once).
local function trim_below(stream, bound, limit)
  local freed = redis.call('XTRIM', stream, 'MINID', '~', bound, 'LIMIT', math.max(limit, 100))
  return freed > 0 and freed or redis.call('XTRIM', stream, 'MINID', bound)
end

-- Deletes those of the given entries, between first and last, that every group has been given and none holds.
-- Work is bounded: one range XPENDING of at most 1,000 per group; what that does not reach is left to trim.
local function delete_unneeded(stream, groups, ids, first, last)
  local needed = {}
  for _, group in ipairs(groups) do
    local known_to = last
    if group.pending > 0 then
      local pending = redis.call('XPENDING', stream, group.name, first, last, 1000)
      for _, one in ipairs(pending) do needed[one[1]] = true end
      if #pending == 1000 then known_to = pending[1000][1] end
    end
    if less(group.last, known_to) then known_to = group.last end
    if less(known_to, last) then -- the group was not given all of them, or holds too many to tell
      for _, id in ipairs(ids) do
        if less(known_to, id) then needed[id] = true end
      end
    end
  end
  local gone = {}
  for _, id in ipairs(ids) do
    if not needed[id] then gone[#gone + 1] = id end
  end
  in_chunks('XDEL', stream, gone)
  return #gone
end

-- Frees those of the given entries (in any order) that no group needs. Groups are read here, never remembered. Many are freed by a trim of
-- all that is done with, which costs next to nothing for each; what is then left lies behind an entry that stays pending, and trim sweeps it.
local function free(stream, ids)
  if #ids == 0 then return 0 end
  local groups = groups_of(stream)
  if #groups == 0 or #groups * #ids > 4000 then return 0 end
  local first, last = ids[1], ids[1]
  for i = 2, #ids do
    if less(last, ids[i]) then last = ids[i] elseif less(ids[i], first) then first = ids[i] end
  end
  if #ids > 16 then
    local bound = bounds(stream, groups)
    if less(first, bound) then return trim_below(stream, bound, 1000) end
  end
  return delete_unneeded(stream, groups, ids, first, last)
end

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

-- A dead letter for an entry whose body someone deleted: only its ID is known.
local function bury_lost_body(k, group, entry, id, now, acked)
  local fields = {id = id ~= '' and id or entry}
  return bury(k, group, entry, letter_values(fields, group, entry, 'body_lost', 'the entry was deleted while it was pending', now), acked)
end

-- A list of any length as text. In pieces, because one concat of the in-process server takes only so many values.
local function lines(list)
  local pieces = {}
  for first = 1, #list, 1000 do
    pieces[#pieces + 1] = table.concat(list, '\n', first, math.min(first + 999, #list))
  end
  return table.concat(pieces, '\n')
end

-- Takes one entry out of a group's pending list. body: its flat field list, or nil. how: id (the ID that was delivered, '' = not compared),
-- action ('retry', 'dead', 'release'), delay (ms, nil = by k.delays), reason, error, burnt (further deliveries that were counted elsewhere).
-- Returns a verdict, and the text of the error when it is STUCK.
local function leave(k, group, entry, body, how, now)
  if not body then return bury_lost_body(k, group, entry, how.id, now) end
  local fields, odd = {}, nil
  for i = 1, #body, 2 do
    local name = body[i]
    fields[name] = body[i + 1]
    if not is_utf8(name) then odd = 'a field name is not UTF-8'
    elseif name ~= 'payload' and #body[i + 1] > MAX_FIELD_BYTES then odd = 'field ' .. name .. ' is larger than 64 KiB' end
  end
  for name in pairs(fields) do -- keep would write one over the other
    local bytes = string.sub(name, 1, 4) == 'b64:' and fields[string.sub(name, 5)]
    if bytes and not is_utf8(bytes) then odd = 'a field that is not UTF-8 and ' .. name end
  end
  local meant_for = fields['for']
  if meant_for and meant_for ~= '' and meant_for ~= group then -- empty is for all, as in Go
    return redis.call('XACK', k.stream, group, entry) == 1 and SKIPPED or LOST
  end
  local id, attempt = fields['id'] or entry, fields['attempt'] or '1'
  if how.id ~= '' and how.id ~= id then return LOST end
  if id == '' or string.find(id, SEP, 1, true) or not is_utf8(id) then odd = 'id is empty, not UTF-8, or holds the separator of retries'
  elseif not is_count(attempt) then odd = 'attempt is not a positive whole number'
  elseif fields['max_attempts'] and not is_count(fields['max_attempts']) then odd = 'max_attempts is not a positive whole number'
  elseif #body > 2 * MAX_FIELDS then odd = 'more than ' .. MAX_FIELDS .. ' fields' end
  if odd then
    if #body > 2 * MAX_FIELDS then fields = {id = id, raw = lines(body)} end
    return bury(k, group, entry, letter_values(fields, group, entry, 'malformed', odd, now))
  end

  local failed = tonumber(attempt) + (how.burnt or 0)
  local limit = tonumber(fields['max_attempts'] or k.max_attempts)
  if how.action == 'dead' or (how.action ~= 'release' and failed >= limit) then
    fields['id'], fields['attempt'] = id, digits(failed)
    return bury(k, group, entry, letter_values(fields, group, entry, how.reason, how.error, now))
  end

  local member = id .. SEP .. group .. SEP .. entry
  local due, next_attempt = now, failed + 1
  if how.action == 'release' then
    next_attempt = tonumber(attempt)
  else
    due = now + (how.delay or k.delays[math.min(failed, #k.delays)])
  end
  local payload, meta = fields['payload'] or '', {}
  fields['payload'], fields['due_ms'], fields['error'] = nil, nil, how.error ~= '' and error_text(how.error) or fields['error']
  for name, value in pairs(fields) do keep(meta, name, value) end
  meta['id'], meta['for'], meta['attempt'] = id, group, digits(next_attempt)
  local encoded = cjson.encode(meta)

  if redis.call('XACK', k.stream, group, entry) == 0 then return LOST end
  if payload ~= '' then redis.call('HSET', k.payload, member, payload) end
  redis.call('HSET', k.meta, member, encoded)
  redis.call('ZADD', k.due, digits(due), member)
  return how.action == 'release' and RELEASED or RETRIED
end

-- '1000,2000,4000' as a list of numbers.
local function delay_list(text)
  local delays = {}
  for one in string.gmatch(text, '%d+') do delays[#delays + 1] = tonumber(one) end
  return delays
end
