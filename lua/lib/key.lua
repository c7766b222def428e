-- Shared by the scripts that move messages with an ordering key; in this file, key alone means the ordering key. Of the
-- messages with one key, one at a time is in flight: ready, pending, or waiting for its retry. The others wait in line:
-- they stay in the schedule and are parked (see PARKED), and become due one after another.
--
-- The sorted set turns holds, for each key, one member for each message in flight, and behind these one member for each
-- message in line, by due time:
--
--  <key> SEP 'busy' SEP <holder>               holder: the message's entry, or its retry's member of the schedule
--  <key> SEP 'wait' SEP <due time> SEP <member>  a place in line: the due time and the member of a parked message
--
-- If a script cannot pass a key on to the next message, a bridge does it later: this is the sweep of keys, pass_turns.

-- The member of turns by which an entry or a retry holds its key.
local function in_flight(key, holder_name)
  return key .. SEP .. 'busy' .. SEP .. holder_name
end

-- The member of turns that is the place in line of a parked message.
local function in_line(key, due, member)
  return key .. SEP .. 'wait' .. SEP .. string.format('%016.0f', due) .. SEP .. member
end

-- The place in line of a schedule member, if its score is that of a parked message; else nil.
local function place_of(key, score, member)
  local at = key and score and parked_due(score)
  return at and in_line(key, at, member)
end

-- Removes the places in the list k.places from k.turns, because their messages were cancelled, moved or replaced. A
-- place that is not removed is skipped later, and the sweep of keys removes it.
local function leave_line(k) in_chunks('ZREM', k.turns, k.places) end

-- Parses a member of turns. Returns 'busy' and the holder of the key; or 'wait', the due time, the schedule member and
-- the place itself; or nil if place is nil.
local function read_place(place, key)
  if not place then return nil end
  local kind = string.sub(place, #key + 2, #key + 5)
  local rest = string.sub(place, #key + 7)
  if kind == 'busy' then return kind, rest end
  return kind, tonumber(string.sub(rest, 1, 16)) or 0, string.sub(rest, 18), place
end

-- The bounds of a key's members in turns, for ZRANGEBYLEX. Holders come before places. A blank is the byte after SEP,
-- so the upper bound is behind all places.
local function key_range(key) return '[' .. key .. SEP, '(' .. key .. SEP .. 'wait ' end

-- The first member of a key in turns, as read_place returns it.
local function first_of(turns, key)
  local from, to = key_range(key)
  return read_place(redis.call('ZRANGEBYLEX', turns, from, to, 'LIMIT', 0, 1)[1], key)
end

-- Whether a due member has to wait for its key; if so, the member is put in line and parked. at: the member's due time,
-- Unix ms. A message in line that was due earlier goes first. Returns nil and the error text if turns cannot be read or
-- written.
local function awaits_turn(q, key, member, at)
  local refused = redis.pcall('ZADD', q.turns, 'XX', 0, '') -- adds nothing; fails if a write to turns would fail
  if type(refused) == 'table' then return nil, refused.err end
  local is_retry = string.find(member, SEP, 1, true)
  if is_retry then -- it may hold the key itself
    local holds = redis.pcall('ZSCORE', q.turns, in_flight(key, member))
    if type(holds) == 'table' and holds.err then return nil, holds.err end
    if holds then return false end
  end
  local from, to = key_range(key)
  local found = redis.pcall('ZRANGEBYLEX', q.turns, from, to, 'LIMIT', 0, 1)
  if found.err then return nil, found.err end
  local kind, first = read_place(found[1], key)
  if not kind or kind == 'wait' and first >= at then return false end
  refused = redis.pcall('ZADD', q.turns, 0, in_line(key, at, member))
  if type(refused) == 'table' then return nil, refused.err end
  redis.call('ZADD', q.due, 'XX', digits(PARKED + at), member)
  if kind == 'wait' then add_pair(q.held, key, '') end -- no message is in flight, so the first one in line becomes due
  return true
end

-- The key in a message's meta, or nil.
local function key_in(meta)
  if not meta or not string.find(meta, '"key"', 1, true) then return nil end
  local ok, fields = pcall(cjson.decode, meta)
  local key = ok and type(fields) == 'table' and fields['key']
  return type(key) == 'string' and is_group(key) and key or nil
end

-- Adds a parked member's place in line to k.places; the key is read from the member's meta. It is called before the
-- member leaves the schedule or its due time changes. A script reads at most 1 MiB of metas here, and one more; the
-- sweep of keys removes the other places. Returns how many bytes it read.
local function note_place(k, meta, score, member)
  if not k.turns or not score or not parked_due(score) or (k.read or 0) >= MOST_BYTES then return 0 end
  local fields = redis.call('HGET', meta, member)
  local bytes = fields and #fields or 0
  k.places[#k.places + 1] = place_of(key_in(fields), score, member)
  k.read = (k.read or 0) + bytes
  return bytes
end

local MOST_SKIPPED = 100 -- places whose message is not parked any more

-- Makes the next message of a key due, unless one is in flight. It skips and removes the places of cancelled or moved
-- messages. Returns the message's due time, or nil; and true if it stopped after MOST_SKIPPED places.
local function hand_over(due, turns, key)
  for _ = 1, MOST_SKIPPED do
    local kind, at, member, place = first_of(turns, key)
    if kind ~= 'wait' then return nil end
    redis.call('ZREM', turns, place)
    local score = redis.call('ZSCORE', due, member)
    if score and parked_due(score) == at then
      redis.call('ZADD', due, 'XX', digits(at), member)
      return at
    end
  end
  return nil, true
end

-- Ends the hold on keys, and makes the next message of each key due. held: pairs of key and former holder. Returns the
-- earliest due time of these messages, or nil.
local function pass_on(due, turns, held)
  local soonest
  for i = 1, #held, 2 do redis.call('ZREM', turns, in_flight(held[i], held[i + 1])) end
  for i = 1, #held, 2 do
    local at = hand_over(due, turns, held[i])
    soonest = earlier(soonest, at)
  end
  return soonest
end

-- Calls pass_on for k.held, and wakes the bridge if a message became due.
local function pass_held(k)
  local at = pass_on(k.due, k.turns, k.held)
  if at and k.wake then wake_up(k.wake, at) end
end

-- Stores in k.key_of the key of an entry that may leave a pending list. k: the state of the call, see exit.lua. It is
-- called before the first write. A call without k.turns stores nothing, so the sweep of keys passes the key on.
-- k.overtakes: whether the policy lets the next message of a key overtake a retry.
local function note_key(k, entry, key)
  if not k.turns or not is_group(key) then return end
  if not k.key_of then
    redis.call('ZADD', k.turns, 'XX', 0, '') -- adds nothing; if a write to turns would fail, the script ends here
    k.key_of = {}
    k.overtakes = redis.pcall('HGET', k.policy, 'key_failure') == 'skip'
  end
  k.key_of[entry] = key
end

-- Returns the message ID from a text that ack got for an entry. The text is <message ID> or SEP <key> SEP <message ID>.
-- If the text has a key, id_without_key stores the key in k.key_of.
local function id_without_key(k, entry, text)
  local key, id = string.match(text, '^' .. SEP .. '([^' .. SEP .. ']*)' .. SEP .. '(.*)$')
  if not key then return text end
  k.key_of = k.key_of or {}
  k.key_of[entry] = key ~= '' and key or nil
  return id
end

-- Lets a retry hold the key of its entry. If the policy lets the next message overtake a retry, the retry holds the key
-- only if always is true.
local function keep_key(k, entry, member, always)
  local key = k.key_of[entry]
  if key and (always or not k.overtakes) then redis.pcall('ZADD', k.turns, 0, in_flight(key, member)) end
end

-- Lets imported retries hold their keys, unless another message holds the key, or the policy lets the next message
-- overtake a retry. k.retries: pairs of key and member.
local function hold_keys(k)
  if redis.call('HGET', k.policy, 'key_failure') == 'skip' then return end
  for i = 1, #k.retries, 2 do
    local key, member = k.retries[i], k.retries[i + 1]
    local kind, holder_name = first_of(k.turns, key)
    local id_and_sep = string.match(member, '^[^' .. SEP .. ']*' .. SEP)
    local is_same_message = kind == 'busy' and string.sub(holder_name, 1, #id_and_sep) == id_and_sep
    if kind ~= 'busy' or is_same_message then redis.call('ZADD', k.turns, 0, in_flight(key, member)) end
  end
end

-- Of the entries that left a pending list, moves those with a key to k.left, for end_turns, and returns the others.
-- k.left stays nil if the call met no key.
local function part_keyed(k, left)
  if not k.key_of then return left end
  local plain = {}
  k.left = {}
  for _, entry in ipairs(left) do
    local list = k.key_of[entry] and k.left or plain
    list[#list + 1] = entry
  end
  return plain
end

-- Frees the entries of k.left that no group needs, and makes the next messages of their keys due. The sweep of keys
-- does the same for entries that this call does not reach, or may not delete.
local function end_turns(k)
  local left = k.left
  local groups = groups_of(k.stream)
  local most = lookup_limit(groups)
  k.held = {}
  for first = 1, #groups > 0 and #left or 0, most do
    local some = {}
    for i = first, math.min(first + most - 1, #left) do some[#some + 1] = left[i] end
    local gone = delete_unneeded(k.stream, groups, some, id_range(some))
    for _, entry in ipairs(gone) do add_pair(k.held, k.key_of[entry], entry) end
  end
  pass_held(k)
end
