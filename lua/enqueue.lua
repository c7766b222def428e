-- enqueue: takes messages into the schedule; or straight into the stream, if they are due, nothing else is overdue, the
--   queue is not held and its flow not limited.
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
-- ARGV[1] token (string, '' = none: names this call, so that a repeat after a lost reply changes nothing)
-- ARGV[2] done (string, '' = none: the token of the caller's previous call, whose reply has arrived)
-- ARGV[3] token_ms (integer, ms that the token is remembered)
-- ARGV[4...] id, when, payload, meta, dedup (string; '+ms' or Unix ms; bytes; JSON object of strings or ''; '' = a
--   fresh ID, not compared: it overwrites a scheduled message with the same ID; '0' = refuse a known ID; ms = also
--   remember this ID for so long; 'replace' = replace the scheduled message with this ID; 'later' and 'earlier' =
--   replace it only with a later, or an earlier, due time)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[8])
-- Returns: per message two integers: verdict (1 scheduled, 2 ready, 0 refused as a duplicate, 3 taken by an earlier
--   call with this token, 4 scheduled instead of the message with its ID, -1 meta malformed), due Unix ms
-- Complexity: O(log n) per message, n = scheduled messages
-- If a command fails here: a full server refuses the first write, and then nothing was written; if the stream refuses
--   an entry, the message stays scheduled.
-- Run twice: harmless with the same token; without, a message that has left the schedule is taken again.
local due, payload, meta, stream, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local seen, policy, history, turns = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local token, done, token_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
if not is_call(token, ARGV[3]) then return redis.error_reply('ERR token or token_ms does not parse') end
local now = now_ms()
local before = head(due)
local has_meta = redis.call('HLEN', meta) > 0
local marks = token .. done ~= '' and redis.call('ZMSCORE', seen, SEP .. token, SEP .. done, refusal(done, 0)) or {}
local ran = token ~= '' and marks[1] and tonumber(marks[1]) - token_ms -- when the call ran first
local ids, at, text, compared, earliest, replacing = read_messages(ARGV, ran or now)
if not ids then return redis.error_reply('ERR when or dedup does not parse') end
if ran then return repeated_reply(seen, token, at) end
local scheduled, windows = {}, {}
if compared then scheduled, windows = known_of(due, seen, ids) end
local direct = earliest <= now and not (before and before <= now) and not waits_for_drain(policy)
-- A key of another type fails here, before the first write.
if direct and (before or #ids > 1) then redis.call('HLEN', payload) end
local args, reply = ARGV, {}
local k = {policy = policy, turns = turns, places = {}, retries = {}}
local ends = digits(now + token_ms)
-- Everything is known before the first write.

local bodies, metas, members = {}, {}, {} -- to be written
local no_body, no_meta = {}, {} -- sets of IDs that have none
local remember = token ~= '' and {ends, SEP .. token} or {} -- to be written into seen
local refused = nil -- remember, once a message was refused
-- What an ID became in this call: taken at all, with a dedup window, straight into the stream, or scheduled for a time.
local taken, opened, replaced, planned = {}, {}, {}, {}
local RETRY_MEMBER = SEP .. '%d+%-%d+$' -- a retry in an import
local function take(n, id, body, fields, dedup)
  local old
  if replacing and REPLACES[dedup] then
    old = planned[id] or scheduled[n] and not replaced[id] and number_of(scheduled[n]) or nil
    if not may_replace(dedup, at[n], old, opened[id] or windows[n] and tonumber(windows[n]) > now) then return 0 end
    if old and not planned[id] then note_place(k, meta, scheduled[n], id) end
    dedup = ''
  elseif dedup ~= '' then
    if scheduled[n] and not replaced[id] or taken[id] then return 0 end
    if windows[n] and tonumber(windows[n]) > now then return 0 end
  end
  local added = direct and at[n] <= now and ready(stream, id, text[n], body, fields, now)
  if added == nil then return -1 end
  replaced[id] = added and (dedup == '' or replaced[id]) or nil
  local window = dedup ~= '' and dedup ~= '0'
  if compared then -- the ID may come again in this call
    opened[id] = opened[id] or window
    taken[id] = opened[id] or not added
  end
  if replacing then planned[id] = not added and at[n] or nil end
  if window then add_pair(remember, digits(now + tonumber(dedup)), id) end
  if added then return 2, added end
  add_pair(members, text[n], id)
  no_body[id] = body == '' or nil -- the last message of this call with the ID counts
  no_meta[id] = fields == '' and (has_meta or #metas > 0) or nil
  if body ~= '' then add_pair(bodies, id, body) end
  if fields ~= '' then
    add_pair(metas, id, fields)
    local key = turns and string.find(id, RETRY_MEMBER) and key_in(fields)
    if key then add_pair(k.retries, key, id) end
  end
  return old and 4 or 1
end
for n = 1, #ids do
  local i = 5 * n - 1
  local verdict, entry = take(n, ids[n], args[i + 2], args[i + 3], args[i + 4])
  if story then note_taken(story, verdict, ids[n], entry, text[n]) end
  if verdict < 1 and token ~= '' then refused = extend_values(remember, {ends, refusal(token, i)}) end
  add_pair(reply, verdict, at[n])
end
if not bodies[1] and members[1] then redis.call('HLEN', payload) end
in_chunks('HSET', payload, bodies)
in_chunks('HSET', meta, metas)
in_chunks('ZADD', due, members)
in_chunks('HDEL', payload, names_of(no_body))
in_chunks('HDEL', meta, names_of(no_meta))
if refused then add_pair(remember, ends, refusal(token, 0)) end -- marks that refusals exist
in_chunks('ZADD', seen, remember)
if before or members[1] then unschedule(due, payload, meta, replaced) end
if k.places[1] then pcall(leave_line, k) end
if k.retries[1] then pcall(hold_keys, k) end
if compared then forget_ended(seen, now, #ARGV) end
if marks[3] then forget(seen, done) elseif marks[2] then redis.call('ZREM', seen, SEP .. done) end
local soonest = members[1] and at[1]
if #ids > 1 then soonest = head(due) end -- one may have replaced another
wake_if_earlier(wake, before, soonest)
if story then pcall(tell, story) end
return reply
