-- expire: sets the expiry and the due time of scheduled messages and waiting retries to now, so that the next drain
--   turns them into dead letters.
-- Uses: base history entry free key
-- KEYS[1] due (zset)
-- KEYS[2] meta (hash)
-- KEYS[3] wake (stream)
-- KEYS[4] policy (hash)
-- KEYS[5] history (stream)
-- KEYS[6] turns (zset)
-- ARGV[1...] member (bytes)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[5] is given)
-- Returns: per member an integer: 1 = the member is expired and due now, so it will not be delivered; 2 = it was
--   expired and due before the call; 0 = not scheduled; -1 = its meta has no room for an expiry, and nothing was
--   changed; -9 = not looked at, because the metas before it came to 1 MiB: send it again
-- Complexity: O(log n) per member
-- If a command fails here: no command can fail after the type check. If the meta of a member is malformed, only the due
--   time is changed; drain then turns the member into a dead letter with reason malformed.
-- Run twice: harmless; the second run answers 2, or 0 if the member has become a dead letter meanwhile.
local due, meta, wake = KEYS[1], KEYS[2], KEYS[3]
local policy, history, turns = KEYS[4], KEYS[5], KEYS[6]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local bad = wrong_type({due, 'zset', meta, 'hash', wake, 'stream'})
if bad then return bad end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XDEL', wake, '0-0')
local before = earliest_due(due)
local now = now_ms()
local stamp = digits(now)
local has_meta = redis.call('EXISTS', meta) == 1
local read, changed = 0, false
local k = {turns = turns, places = {}}

-- Expires a member. Returns its result.
local function expire(member)
  local score = redis.call('ZSCORE', due, member)
  if not score then return 0 end
  local size, fields, text = has_meta and redis.call('HSTRLEN', meta, member) or 0, nil, nil
  if size <= MAX_META_BYTES then
    text = size > 0 and redis.call('HGET', meta, member) or nil
    read = read + size
    local values, known = entry_values(member, '', text, '0')
    fields = values and known
  end
  -- A malformed message (fields is nil) needs no expiry: drain makes a dead letter of it as soon as it is due.
  local is_due = number_of(score) <= now
  local expired = not fields or has_expired(fields, now)
  if is_due and expired then return 2 end
  if not expired then
    fields['expires_ms'] = stamp
    text = cjson.encode(fields)
    if #text > MAX_META_BYTES then return -1 end
    -- Everything is known before the first write.
    redis.call('HSET', meta, member, text)
    has_meta = true
  end
  if not is_due then redis.call('ZADD', due, 'XX', stamp, member) end
  if turns and fields then k.places[#k.places + 1] = place_of(fields['key'], score, member) end
  changed = true
  if record then
    local times = ',"due_ms":"' .. stamp .. '","was_ms":"' .. due_of(score) .. '"'
    note_member(record, 'rescheduled', member, times .. ',"reason":"expired"}')
  end
  return 1
end

local reply = {}
for i, member in ipairs(ARGV) do
  reply[i] = read >= MOST_BYTES and LATER or expire(member)
end
-- An expired message does not wait for its ordering key any more. If this fails, the sweep of keys removes the places.
if k.places[1] then pcall(leave_line, k) end
if changed then wake_if_earlier(wake, before, now) end
if record then pcall(write_record, record) end
return reply
