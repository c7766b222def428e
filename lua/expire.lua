-- expire: sets the expiry and the due time of scheduled messages and waiting retries to now: the next drain makes dead
--   letters of them.
-- Uses: base history entry free key
-- KEYS[1] due (zset)
-- KEYS[2] meta (hash)
-- KEYS[3] wake (stream)
-- KEYS[4] policy (hash)
-- KEYS[5] history (stream)
-- KEYS[6] turns (zset)
-- ARGV[1...] member (bytes)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[5])
-- Returns: per member an integer: 1 it has expired now, and is due, so it will not be delivered; 2 it had expired and
--   was due before; 0 not scheduled; -1 its meta has no room for an expiry, nothing was changed; -9 not looked at
--   because the metas before it came to 1 MiB: send it again
-- Complexity: O(log n) per member
-- If a command fails here: nothing can after the type check. For a member that cannot be read, only the due time is
--   changed; drain finds it malformed.
-- Run twice: harmless; the second run answers 2, or 0 when it has become a dead letter meanwhile.
local due, meta, wake = KEYS[1], KEYS[2], KEYS[3]
local policy, history, turns = KEYS[4], KEYS[5], KEYS[6]
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
local bad = wrong_type({due, 'zset', meta, 'hash', wake, 'stream'})
if bad then return bad end

redis.call('XDEL', wake, '0-0') -- removes nothing; after this write a full server accepts the others
local before = head(due)
local now = now_ms()
local stamp = digits(now)
local has_meta = redis.call('EXISTS', meta) == 1
local read, changed = 0, false
local k = {turns = turns, places = {}}

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
  if story then
    local times = ',"due_ms":"' .. stamp .. '","was_ms":"' .. due_of(score) .. '"'
    note_member(story, 'rescheduled', member, times .. ',"reason":"expired"}')
  end
  return 1
end

local reply = {}
for i, member in ipairs(ARGV) do
  reply[i] = read >= MOST_BYTES and LATER or expire(member)
end
if k.places[1] then pcall(leave_line, k) end
if changed then wake_if_earlier(wake, before, now) end
if story then pcall(tell, story) end
return reply
