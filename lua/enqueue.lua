-- enqueue: takes messages into the schedule, or straight into the stream when they are due, nothing else is overdue and the queue is not held.
-- Uses: base entry token message
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] stream (stream)
-- KEYS[5] wake (stream)
-- KEYS[6] seen (zset)
-- KEYS[7] policy (hash)
-- ARGV[1] token (string, '' = none: names this call, so that repeating it after a lost reply changes nothing)
-- ARGV[2] done (string, '' = none: the caller's previous token, whose reply arrived)
-- ARGV[3] token_ms (integer, ms that the token is remembered)
-- ARGV[4...] id, when, payload, meta, dedup (string; '+ms' or Unix ms; bytes; JSON object of strings or ''; '' = a fresh ID, not compared: one that is scheduled is written over; '0' = refuse one that is known, ms = also remember this one)
-- Returns: per message two integers: verdict (1 scheduled, 2 ready, 0 refused as a duplicate, 3 taken by an earlier call with this token, -1 meta malformed), due Unix ms
-- Complexity: O(log n) per message, n = scheduled messages
-- If a command fails here: the first write is one that a full server refuses, and then nothing was written; a stream that refuses an entry leaves the message scheduled.
-- Run twice: harmless with the same token, else a message that has left the schedule is taken again.
local due, payload, meta, stream, wake, seen, policy = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token, done, token_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash', stream, 'stream', wake, 'stream', seen, 'zset', policy, 'hash'})
if bad then return bad end
local now = now_ms()
local before = head(due)
local direct = not (before and before <= now) and redis.call('HGET', policy, 'held') ~= '1'
local has_seen = redis.call('EXISTS', seen) == 1
local repeated = token ~= '' and has_seen and redis.call('ZSCORE', seen, SEP .. token)
local asked = repeated and tonumber(repeated) - token_ms or now -- when the call ran first
local has_meta = redis.call('EXISTS', meta) == 1

-- Everything is known before the first write.
local ids, at, text, compared = read_messages(ARGV, asked)
if not ids or not token_ms or not is_token(token) then return redis.error_reply('ERR token, token_ms, when or dedup does not parse') end
local scheduled = compared and scores(due, ids) or {}
local windows = compared and has_seen and scores(seen, ids) or {}

-- Puts a message straight into the stream. False: it goes into the schedule, as what drain may bury does; nil: its meta is malformed.
local function ready(n, body, fields)
  local values, meant = entry_values(ids[n], body, fields ~= '' and fields or nil, text[n])
  return values and not has_expired(meant, now) and (meant['for'] or '') == '' and type(redis.pcall('XADD', stream, '*', unpack(values))) == 'string'
end
local bodies, metas, members, no_body, no_meta, remember, taken, opened, replaced = {}, {}, {}, {}, {}, {}, {}, {}, {}
local function take(n, id, body, fields, dedup)
  if dedup ~= '' and (scheduled[n] and not replaced[id] or taken[id] or (windows[n] and tonumber(windows[n]) > now)) then return 0 end
  local added = direct and at[n] <= now and ready(n, body, fields)
  if added == nil then return -1 end
  replaced[id] = added and (dedup == '' or replaced[id]) or nil
  local window = dedup ~= '' and dedup ~= '0'
  if compared then opened[id], taken[id] = opened[id] or window, opened[id] or window or not added end -- the ID may come again in this call
  if window then add_pair(remember, digits(now + tonumber(dedup)), id) end
  if added then return 2 end
  add_pair(members, text[n], id)
  no_body[id], no_meta[id] = body == '' or nil, fields == '' and (has_meta or #metas > 0) or nil -- the last one of this call counts
  if body ~= '' then add_pair(bodies, id, body) end
  if fields ~= '' then add_pair(metas, id, fields) end
  return 1
end
local args, reply, ends = ARGV, {}, digits(now + token_ms)
if token ~= '' and not repeated then remember = {ends, SEP .. token} end
for n = 1, #ids do
  local i, verdict = 5 * n - 1, 3
  if not repeated then
    verdict = take(n, ids[n], args[i + 2], args[i + 3], args[i + 4])
    if verdict < 1 and token ~= '' then add_pair(remember, ends, refusal(token, i)) end
  elseif redis.call('ZSCORE', seen, refusal(token, i)) then
    verdict = 0
  end
  reply[2 * n - 1], reply[2 * n] = verdict, at[n]
end
in_chunks('HSET', payload, bodies)
in_chunks('HSET', meta, metas)
in_chunks('ZADD', due, members)
in_chunks('HDEL', payload, names_of(no_body))
in_chunks('HDEL', meta, names_of(no_meta))
in_chunks('ZADD', seen, remember)
if before or #members > 0 then unschedule(due, payload, meta, replaced) end
if done ~= '' then forget(seen, done) end
if has_seen then forget_ended(seen, now, #ARGV) end
wake_if_earlier(wake, before, head(due))
return reply
