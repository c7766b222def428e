-- Shared by the scripts that move messages with a key: of the messages with one key, one at a time is ready, pending, or a retry that waits.
-- The sorted set turns has a member for each that is in flight ('busy': its entry, or its retry), and behind these one for each that waits for its turn, by due time.

local function in_flight(key, by)
  return key .. SEP .. 'busy' .. SEP .. by
end

local function in_line(key, due, member)
  return key .. SEP .. 'wait' .. SEP .. string.format('%016.0f', due) .. SEP .. member
end

-- The place in line of a member of the schedule whose score says that it waits for its key; nil when it does not.
local function place_of(key, score, member)
  local at = key and score and parked_due(score)
  return at and in_line(key, at, member)
end

-- Takes k.places out of k.turns: the messages were cancelled, moved or replaced. A place that stays is passed over, and cleared away by the sweep
-- of keys.
local function leave_line(k) in_chunks('ZREM', k.turns, k.places) end

-- What comes first of a key: 'busy' and the holder, or 'wait', its due time and the member; or nothing.
local function first_of(turns, key)
  local first = redis.call('ZRANGEBYLEX', turns, '[' .. key .. SEP, '(' .. key .. SEP .. 'wait ', 'LIMIT', 0, 1)[1]
  if not first then return nil end
  local kind, rest = string.sub(first, #key + 2, #key + 5), string.sub(first, #key + 7)
  if kind == 'busy' then return kind, rest end
  return kind, tonumber(string.sub(rest, 1, 16)) or 0, string.sub(rest, 18), first
end

-- Whether a member of the schedule that is due, at a number of ms, has to wait for its key: then it does from now on. An older one that waits goes
-- first. Or nil and the refusal when the keys cannot be read, or written.
local function awaits_turn(q, key, member, at)
  local refused = redis.pcall('ZADD', q.turns, 'XX', 0, '') -- adds nothing
  if type(refused) == 'table' then return nil, refused.err end
  if string.find(member, SEP, 1, true) and redis.call('ZSCORE', q.turns, in_flight(key, member)) then return false end -- its own retry
  local kind, first = first_of(q.turns, key)
  if not kind or kind == 'wait' and first >= at then return false end
  refused = redis.pcall('ZADD', q.turns, 0, in_line(key, at, member))
  if type(refused) == 'table' then return nil, refused.err end
  redis.call('ZADD', q.due, 'XX', digits(PARKED + at), member)
  if kind == 'wait' then add_pair(q.held, key, '') end -- nobody is in flight
  return true
end

-- The key that a meta names, if any.
local function key_in(meta)
  if not meta or not string.find(meta, '"key"', 1, true) then return nil end
  local ok, fields = pcall(cjson.decode, meta)
  local key = ok and type(fields) == 'table' and fields['key']
  return type(key) == 'string' and is_group(key) and key or nil
end

-- Notes in k.places the place that a member has, by its score; its key is in the hash meta. To be asked before it leaves, or moves. It reads a MiB
-- in a call, and one meta more; the sweep of keys clears the rest away. Returns how many bytes it read.
local function note_place(k, meta, score, member)
  if not k.turns or not score or not parked_due(score) or (k.read or 0) >= MOST_BYTES then return 0 end
  local fields = redis.call('HGET', meta, member)
  local bytes = fields and #fields or 0
  k.places[#k.places + 1] = place_of(key_in(fields), score, member)
  k.read = (k.read or 0) + bytes
  return bytes
end

local MOST_PASSED = 100 -- of those in line that do not wait any more

-- Has the next message of a key go on, unless one is in flight; who was cancelled, or moved, is passed over. Returns its due time, or nil;
-- and whether so many were passed over that the rest is left.
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

-- Ends what holders were for keys, given as pairs of key and holder, and has the next ones go on. Returns the earliest due time of these, or nil.
local function pass_on(due, turns, held)
  local soonest
  for i = 1, #held, 2 do redis.call('ZREM', turns, in_flight(held[i], held[i + 1])) end
  for i = 1, #held, 2 do
    local at = hand_over(due, turns, held[i])
    soonest = earlier(soonest, at)
  end
  return soonest
end

-- Does so for k.held, and wakes the bridge.
local function pass_held(k)
  local at = pass_on(k.due, k.turns, k.held)
  if at and k.wake then wake_up(k.wake, at) end
end

-- Notes the key of an entry that may leave a pending list. k: keys of the queue, by their names. To be asked before the first write.
local function note_key(k, entry, key)
  if not is_group(key) then return end
  if not k.turns then error({err = 'ERR entry ' .. entry .. ' has a key: this call needs the name of turns'}) end
  if not k.key_of then
    redis.call('ZADD', k.turns, 'XX', 0, '') -- adds nothing, and fails here if it must
    k.key_of, k.passes = {}, redis.pcall('HGET', k.policy, 'key_failure') == 'skip'
  end
  k.key_of[entry] = key
end

-- Has a retry keep the key of its entry, unless the policy says that the next message passes it.
local function keep_key(k, entry, member, always)
  local key = k.key_of[entry]
  if key and (always or not k.passes) then redis.pcall('ZADD', k.turns, 0, in_flight(key, member)) end
end

-- Has retries that come from elsewhere hold their keys here, too, unless another message does, or the policy says that the next message passes
-- a retry. k.retries: pairs of key and member.
local function hold_keys(k)
  if redis.call('HGET', k.policy, 'key_failure') == 'skip' then return end
  for i = 1, #k.retries, 2 do
    local key, member = k.retries[i], k.retries[i + 1]
    local kind, by = first_of(k.turns, key)
    local own = string.match(member, '^[^' .. SEP .. ']*' .. SEP)
    if kind ~= 'busy' or string.sub(by, 1, #own) == own then redis.call('ZADD', k.turns, 0, in_flight(key, member)) end
  end
end

-- Takes the entries with a key out of a list of those that left a pending list. They are k.left then, if there are any.
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

-- Frees those of k.left that no group needs any more, and has the next messages of their keys go on. What this does not come to, or may not do, the
-- sweep of keys does.
local function end_turns(k)
  local groups, left = groups_of(k.stream), k.left
  local most = room(groups)
  k.held = {}
  for first = 1, #groups > 0 and #left or 0, most do
    local some = {}
    for i = first, math.min(first + most - 1, #left) do some[#some + 1] = left[i] end
    for _, entry in ipairs(delete_unneeded(k.stream, groups, some, span(some))) do add_pair(k.held, k.key_of[entry], entry) end
  end
  pass_held(k)
end
