-- Shared by the scripts that move messages with a key. Of the messages with one key, one at a time is in flight: ready,
-- pending, or waiting for its retry. The sorted set turns has a 'busy' member for each message in flight, with its
-- entry or retry. Behind these it has a 'wait' member for each message in line, by due time.

local function in_flight(key, by)
  return key .. SEP .. 'busy' .. SEP .. by
end

local function in_line(key, due, member)
  return key .. SEP .. 'wait' .. SEP .. string.format('%016.0f', due) .. SEP .. member
end

-- The place in line of a schedule member, if its score says that it waits for its key; else nil.
local function place_of(key, score, member)
  local at = key and score and parked_due(score)
  return at and in_line(key, at, member)
end

-- Removes k.places from k.turns, because their messages were cancelled, moved or replaced. A place that remains is
-- skipped, and removed by the sweep of keys.
local function leave_line(k) in_chunks('ZREM', k.turns, k.places) end

-- Reads a member of turns: 'busy' and the holder of the key; or 'wait', the due time, the schedule member and the
-- place; or nil if there is no member.
local function read_place(place, key)
  if not place then return nil end
  local kind = string.sub(place, #key + 2, #key + 5)
  local rest = string.sub(place, #key + 7)
  if kind == 'busy' then return kind, rest end
  return kind, tonumber(string.sub(rest, 1, 16)) or 0, string.sub(rest, 18), place
end

-- The bounds of a key's members in turns, holder before places.
local function key_range(key) return '[' .. key .. SEP, '(' .. key .. SEP .. 'wait ' end

-- The first member of a key in turns, as read_place returns it.
local function first_of(turns, key)
  local from, to = key_range(key)
  return read_place(redis.call('ZRANGEBYLEX', turns, from, to, 'LIMIT', 0, 1)[1], key)
end

-- Whether a due member has to wait for its key; at: its due time in ms. If so, it is put in line. A message in line
-- that was due earlier goes first. Returns nil and the error if the keys cannot be read or written.
local function awaits_turn(q, key, member, at)
  local refused = redis.pcall('ZADD', q.turns, 'XX', 0, '') -- adds nothing
  if type(refused) == 'table' then return nil, refused.err end
  local may_hold = string.find(member, SEP, 1, true) -- a retry may hold the key itself
  if may_hold then
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
  if kind == 'wait' then add_pair(q.held, key, '') end -- nobody is in flight
  return true
end

-- The key in a message's meta, or nil.
local function key_in(meta)
  if not meta or not string.find(meta, '"key"', 1, true) then return nil end
  local ok, fields = pcall(cjson.decode, meta)
  local key = ok and type(fields) == 'table' and fields['key']
  return type(key) == 'string' and is_group(key) and key or nil
end

-- Adds to k.places the place of a member, by its score and by the key in its meta. It is called before the member
-- leaves, or moves. It reads 1 MiB in a call, and one meta more; the sweep of keys removes the other places. Returns
-- how many bytes it read.
local function note_place(k, meta, score, member)
  if not k.turns or not score or not parked_due(score) or (k.read or 0) >= MOST_BYTES then return 0 end
  local fields = redis.call('HGET', meta, member)
  local bytes = fields and #fields or 0
  k.places[#k.places + 1] = place_of(key_in(fields), score, member)
  k.read = (k.read or 0) + bytes
  return bytes
end

local MOST_PASSED = 100 -- places without a waiting message

-- Makes the next message of a key due, unless one is in flight. Places of cancelled or moved messages are skipped.
-- Returns the due time, or nil; and whether it stopped after MOST_PASSED skipped places.
local function hand_over(due, turns, key)
  for _ = 1, MOST_PASSED do
    local kind, at, member, first = first_of(turns, key)
    if kind ~= 'wait' then return nil end
    redis.call('ZREM', turns, first)
    local score = redis.call('ZSCORE', due, member)
    if score and parked_due(score) == at then
      redis.call('ZADD', due, 'XX', digits(at), member)
      return at
    end
  end
  return nil, true
end

-- Ends the hold of holders, given as pairs of key and holder, and makes the next message of each key due. Returns the
-- earliest due time of these, or nil.
local function pass_on(due, turns, held)
  local soonest
  for i = 1, #held, 2 do redis.call('ZREM', turns, in_flight(held[i], held[i + 1])) end
  for i = 1, #held, 2 do
    local at = hand_over(due, turns, held[i])
    soonest = earlier(soonest, at)
  end
  return soonest
end

-- Calls pass_on for k.held, and wakes the bridge.
local function pass_held(k)
  local at = pass_on(k.due, k.turns, k.held)
  if at and k.wake then wake_up(k.wake, at) end
end

-- Records the key of an entry that may leave a pending list. k: the queue's keys, by name. It is called before the
-- first write. A call without k.turns records nothing, so the sweep of keys passes the key on.
local function note_key(k, entry, key)
  if not k.turns or not is_group(key) then return end
  if not k.key_of then
    redis.call('ZADD', k.turns, 'XX', 0, '') -- adds nothing: a refusal ends the script here
    k.key_of = {}
    k.passes = redis.pcall('HGET', k.policy, 'key_failure') == 'skip'
  end
  k.key_of[entry] = key
end

-- Lets a retry hold the key of its entry. Without always, it does not if the policy lets the next message overtake a
-- retry.
local function keep_key(k, entry, member, always)
  local key = k.key_of[entry]
  if key and (always or not k.passes) then redis.pcall('ZADD', k.turns, 0, in_flight(key, member)) end
end

-- Lets imported retries hold their keys. It does not if another message holds the key, or the policy lets the next
-- message overtake a retry. k.retries: pairs of key and member.
local function hold_keys(k)
  if redis.call('HGET', k.policy, 'key_failure') == 'skip' then return end
  for i = 1, #k.retries, 2 do
    local key, member = k.retries[i], k.retries[i + 1]
    local kind, by = first_of(k.turns, key)
    local own = string.match(member, '^[^' .. SEP .. ']*' .. SEP)
    if kind ~= 'busy' or string.sub(by, 1, #own) == own then redis.call('ZADD', k.turns, 0, in_flight(key, member)) end
  end
end

-- Moves the entries that have a key to k.left, and returns the others. left: entries that left a pending list. k.left
-- stays nil if the call met no key.
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
-- does what this call does not reach, or may not do.
local function end_turns(k)
  local left = k.left
  local groups = groups_of(k.stream)
  local most = room(groups)
  k.held = {}
  for first = 1, #groups > 0 and #left or 0, most do
    local some = {}
    for i = first, math.min(first + most - 1, #left) do some[#some + 1] = left[i] end
    local gone = delete_unneeded(k.stream, groups, some, span(some))
    for _, entry in ipairs(gone) do add_pair(k.held, k.key_of[entry], entry) end
  end
  pass_held(k)
end
