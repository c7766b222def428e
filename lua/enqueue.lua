-- enqueue: takes messages into the schedule; a message that is due goes straight into the stream if no other message is
--   overdue and the queue is neither held nor limited in its flow.
-- Uses: base history entry free key token message flow
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] stream (stream)
-- KEYS[5] wake (stream)
-- KEYS[6] seen (zset)
-- KEYS[7] policy (hash)
-- KEYS[8] history (stream)
-- KEYS[9] turns (zset)
-- ARGV[1] token (string, the name of this call, so that a repeat after a lost reply changes nothing; '' = none)
-- ARGV[2] done (string, the token of the caller's previous call, whose reply has arrived: it need not be remembered any
--   longer; '' = none)
-- ARGV[3] token_ms (integer, ms that the token is remembered)
-- ARGV[4...] id, when, payload, meta, dedup (id: string; when: '+ms' or Unix ms; payload: bytes; meta: JSON object of
--   strings, or ''; dedup: '' = the ID is fresh and is not compared: the message overwrites a scheduled one with the
--   same ID; '0' = refuse the message if its ID is known; a number of ms = as '0', and remember the ID for so long;
--   'replace' = replace the scheduled message with this ID; 'later' = replace it if the new due time is later;
--   'earlier' = replace it if the new due time is earlier)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[8] is given)
-- Returns: per message two integers: verdict (1 = scheduled, 2 = ready, 0 = refused as a duplicate, 3 = taken by an
--   earlier call with this token, 4 = scheduled, and the scheduled message with this ID was replaced, -1 = its meta is
--   malformed), due time (Unix ms)
-- Complexity: O(log n) per message, n = scheduled messages
-- If a command fails here: a full server refuses the first write, and then nothing was written; if the stream refuses
--   an entry, the message is scheduled instead.
-- Run twice: harmless with the same token, within token_ms; otherwise, a message that has left the schedule is taken
--   again.
local due, payload, meta, stream, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local seen, policy, history, turns = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local token, done, token_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
if not is_call(token, ARGV[3]) then return redis.error_reply('ERR token or token_ms does not parse') end
local now = now_ms()
local before = earliest_due(due)
local has_meta = redis.call('HLEN', meta) > 0
-- Three ends of windows, Unix ms: of this call's token, of the previous call's token, and of the mark that the previous
-- call refused messages.
local marks = token .. done ~= '' and redis.call('ZMSCORE', seen, SEP .. token, SEP .. done, refusal(done, 0)) or {}
local window_end = token ~= '' and marks[1] and tonumber(marks[1])
local first_run = window_end and window_end > now and window_end - token_ms -- when this call first ran, Unix ms
local ids, at, text, compared, earliest, replacing = read_messages(ARGV, first_run or now)
if not ids then return redis.error_reply('ERR when or dedup does not parse') end
if first_run then return repeated_reply(seen, token, at, now) end
local scheduled, windows = {}, {}
if compared then scheduled, windows = known_of(due, seen, ids) end
-- Whether due messages go straight into the stream.
local direct = earliest <= now and not (before and before <= now) and not waits_for_drain(policy)
-- If the key payload has another type, the script fails here, before its first write.
if direct and (before or #ids > 1) then redis.call('HLEN', payload) end
local args, reply = ARGV, {}
local k = {policy = policy, turns = turns, places = {}, retries = {}}
local ends = digits(now + token_ms)
-- Everything is known before the first write.

local bodies, metas, members = {}, {}, {} -- to be written
local no_body, no_meta = {}, {} -- sets of IDs whose message has no payload, or no meta
local remember = token ~= '' and {ends, SEP .. token} or {} -- to be written into seen
local refused = nil -- not nil once a message was refused; then it is the same table as remember
-- An ID may come more than once in a call. These tables tell, by ID, what this call has done with it: taken = it is
-- known from now on; opened = it has a dedup window; replaced = its message went straight into the stream, in place of
-- a scheduled one if there is one; planned = the due time for which it is scheduled.
local taken, opened, replaced, planned = {}, {}, {}, {}
local RETRY_MEMBER = SEP .. '%d+%-%d+$' -- matches the member of an imported retry

-- Decides about the n-th message, and adds what must be written to the lists above. Returns its verdict, and its entry
-- ID if it went straight into the stream.
local function take(n, id, body, fields, dedup)
  local old -- the score of the scheduled message that this one may replace
  if replacing and REPLACES[dedup] then
    -- The due time that this call has given the ID; else the stored one, unless this call has replaced that message.
    old = planned[id] or scheduled[n] and not replaced[id] and number_of(scheduled[n]) or nil
    if not may_replace(dedup, at[n], old, opened[id] or windows[n] and tonumber(windows[n]) > now) then return 0 end
    if old and not planned[id] then note_place(k, meta, scheduled[n], id) end
    dedup = ''
  elseif dedup ~= '' then
    if scheduled[n] and not replaced[id] or taken[id] then return 0 end
    if windows[n] and tonumber(windows[n]) > now then return 0 end
  end
  local added = direct and at[n] <= now and add_ready(stream, id, text[n], body, fields, now)
  if added == nil then return -1 end
  replaced[id] = added and (dedup == '' or replaced[id]) or nil
  local window = dedup ~= '' and dedup ~= '0'
  if compared then
    opened[id] = opened[id] or window
    taken[id] = opened[id] or not added
  end
  if replacing then planned[id] = not added and at[n] or nil end
  if window then add_pair(remember, digits(now + tonumber(dedup)), id) end
  if added then return 2, added end
  add_pair(members, text[n], id)
  no_body[id] = body == '' or nil -- of several messages with one ID, the last one counts
  no_meta[id] = fields == '' and (has_meta or #metas > 0) or nil
  if body ~= '' then add_pair(bodies, id, body) end
  if fields ~= '' then
    add_pair(metas, id, fields)
    -- An imported retry may hold its ordering key: hold_keys decides below.
    local key = turns and string.find(id, RETRY_MEMBER) and key_in(fields)
    if key then add_pair(k.retries, key, id) end
  end
  return old and 4 or 1
end
for n = 1, #ids do
  local i = 5 * n - 1
  local verdict, entry = take(n, ids[n], args[i + 2], args[i + 3], args[i + 4])
  if record then note_taken(record, verdict, ids[n], entry, text[n]) end
  if verdict < 1 and token ~= '' then refused = extend_values(remember, {ends, refusal(token, i)}) end
  add_pair(reply, verdict, at[n])
end
-- If no payload is written, this checks the type of the key payload before the schedule is written. If a message may
-- have gone straight into the stream, the type was checked above.
if not bodies[1] and members[1] then redis.call('HLEN', payload) end
in_chunks('HSET', payload, bodies)
in_chunks('HSET', meta, metas)
in_chunks('ZADD', due, members)
in_chunks('HDEL', payload, names_of(no_body))
in_chunks('HDEL', meta, names_of(no_meta))
if refused then add_pair(remember, ends, refusal(token, 0)) end -- index 0 marks that the call has refusals
in_chunks('ZADD', seen, remember)
if before or members[1] then unschedule(due, payload, meta, replaced) end
if k.places[1] then pcall(leave_line, k) end
if k.retries[1] then pcall(hold_keys, k) end
if compared then forget_ended(seen, now, #ARGV) end
if marks[3] then forget(seen, done) elseif marks[2] then redis.call('ZREM', seen, SEP .. done) end
local soonest = members[1] and at[1]
if #ids > 1 then soonest = earliest_due(due) end -- not the minimum of at: a message may have replaced another one
wake_if_earlier(wake, before, soonest)
if record then pcall(write_record, record) end
return reply
