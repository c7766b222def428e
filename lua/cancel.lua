-- cancel: removes messages from the schedule for good; their IDs may be scheduled again at once.
-- Uses: base history entry free key version
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] seen (zset)
-- KEYS[5] policy (hash)
-- KEYS[6] history (stream)
-- KEYS[7] turns (zset)
-- KEYS[8] wake (stream)
-- ARGV[1...] id (string; the argument after an ID may be a version, as `versions` returns it: then only that version of
--   the message is cancelled)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[6] is given)
-- Returns: per argument an integer: 1 = cancelled, the message will never be delivered; 0 = not scheduled, or scheduled
--   in another version, or the argument is a version itself; -9 = not looked at, because the messages before it came to
--   16 MiB: send it again
-- Complexity: O(log n) per message; it frees at most 16 MiB and one message more
-- If a command fails here: no command can fail after the type check.
-- Run twice: harmless; the second run answers 0.
local due, payload, meta, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local policy, history, turns, wake = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local bad = wrong_type({payload, 'hash', meta, 'hash', seen, 'zset'})
if bad then return bad end
-- Everything is known before the first write.

-- To free a byte costs at most a sixteenth of what it costs to read one. So the limit is 16 MiB of freed bytes, and a
-- byte that is read counts as 16. The size of the call's last message does not matter, because no message follows. If
-- the call has only one message, it does not ask whether meta and seen exist: the answers would cost as much as they
-- can save.
local reply, n, freed, most = {}, #ARGV, 0, 16 * MOST_BYTES
local has_meta = n == 1 or redis.call('EXISTS', meta) == 1
local has_seen = n == 1 or redis.call('EXISTS', seen) == 1
local has_turns = turns and redis.call('EXISTS', turns) == 1
local k = {due = due, turns = turns, wake = wake, held = {}, places = {}}

-- Adds to k what the message holds of its ordering key: its place in line or, if it is a retry, the key itself. Returns
-- how many bytes it read.
local function note_turn(id)
  local score = redis.call('ZSCORE', due, id)
  if not string.find(id, SEP, 1, true) then return note_place(k, meta, score, id) end
  local fields = score and redis.call('HGET', meta, id)
  local key = fields and key_in(fields)
  if key then
    k.places[#k.places + 1] = place_of(key, score, id)
    add_pair(k.held, key, id)
  end
  return fields and #fields or 0
end

local function is_version(text) return text and string.sub(text, 1, #VERSION) == VERSION end

-- Removes a message from the schedule. is_last: whether it is the last one of the call. Returns 1, or 0 if the message
-- was not scheduled.
local function take_out(id, is_last)
  local size = 0
  if not is_last then
    size = #id + redis.call('HSTRLEN', payload, id)
    if has_meta then size = size + redis.call('HSTRLEN', meta, id) end
  end
  if has_turns then freed = freed + 16 * note_turn(id) end
  if redis.call('ZREM', due, id) == 0 then return 0 end
  freed = freed + size
  redis.call('HDEL', payload, id)
  if has_meta then redis.call('HDEL', meta, id) end
  if has_seen then redis.call('ZREM', seen, id) end
  if record then note_member(record, 'cancelled', id, '}') end
  return 1
end

for i, id in ipairs(ARGV) do
  if freed >= most then
    reply[i] = LATER
  elseif is_version(id) then
    reply[i] = 0
  else
    local wanted, version, read = is_version(ARGV[i + 1]) and ARGV[i + 1], nil, 0
    if wanted then version, read = version_of(due, payload, meta, id) end
    freed = freed + 16 * read
    reply[i] = (not wanted or version == wanted) and take_out(id, i == n) or 0
  end
end
-- Removes the places in line of the cancelled messages, and makes the next message due for each key that a cancelled
-- retry held. If one of these fails, the sweep of keys does it later.
if k.places[1] then pcall(leave_line, k) end
if k.held[1] then pcall(pass_held, k) end
if record then pcall(write_record, record) end
return reply
