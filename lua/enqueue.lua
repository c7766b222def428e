-- enqueue: takes messages into the schedule, or straight into the stream when they are due, nothing else is overdue and the queue is not held.
-- Uses: base entry token
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
-- ARGV[4...] id, when, payload, meta, dedup (string; '+ms' or Unix ms; bytes; JSON object of strings or ''; '' = a fresh ID, '0' = refuse one that is known, ms = also remember this one)
-- Returns: per message two integers: verdict (1 scheduled, 2 ready, 0 refused as a duplicate, 3 taken by an earlier call with this token, -1 meta malformed), due Unix ms
-- Complexity: O(log n) per message, n = scheduled messages
-- If a command fails here: the first write is one that a full server refuses, and then nothing was written; a stream that refuses an entry leaves the message scheduled.
-- Run twice: harmless with the same token, else a message that has left the schedule is taken again.
local due, payload, meta, stream, wake, seen, policy = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token, done, token_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash', stream, 'stream', wake, 'stream', seen, 'zset', policy, 'hash'})
if bad then return bad end
for i = 4, #ARGV, 5 do
  if not is_time(ARGV[i + 1]) or (ARGV[i + 4] ~= '' and string.find(ARGV[i + 4], '[^0-9]')) then return redis.error_reply('ERR when or dedup does not parse') end
end
local now = now_ms()
local before = head(due)
local direct = not (before and before <= now) and redis.call('HGET', policy, 'held') ~= '1'
local has_seen = redis.call('EXISTS', seen) == 1
local repeated = token ~= '' and has_seen and redis.call('ZSCORE', seen, SEP .. token)
local asked = repeated and tonumber(repeated) - token_ms or now -- when the call ran first
local has_meta = redis.call('EXISTS', meta) == 1

-- Known: still scheduled, or inside its dedup window.
local function is_known(id)
  local ends = has_seen and redis.call('ZSCORE', seen, id)
  return (ends and tonumber(ends) > now) or redis.call('ZSCORE', due, id)
end

local function take(i, id, when, body, fields, dedup)
  local at = due_at(when, asked)
  if repeated then return redis.call('ZSCORE', seen, refusal(token, i)) and 0 or 3, at end
  if dedup ~= '' and is_known(id) then return 0, at end
  local verdict
  if direct and at <= now then
    local values, meant = entry_values(id, body, fields ~= '' and fields or nil, digits(at))
    if not values then return -1, at end
    local added = not has_expired(meant, now) and redis.pcall('XADD', stream, '*', unpack(values)) -- drain buries what has
    if type(added) == 'string' then verdict = 2 end
  end
  if not verdict then
    if redis.call('ZADD', due, 'NX', digits(at), id) == 0 then return 0, at end
    if body ~= '' then redis.call('HSET', payload, id, body) else redis.call('HDEL', payload, id) end
    if fields ~= '' then redis.call('HSET', meta, id, fields) elseif has_meta then redis.call('HDEL', meta, id) end
    verdict = 1
  end
  if dedup ~= '' and dedup ~= '0' then
    has_seen = true -- the ID may come again in this very call
    redis.call('ZADD', seen, digits(now + tonumber(dedup)), id)
  end
  return verdict, at
end

local reply, remember = {}, {digits(now + token_ms), SEP .. token}
for i = 4, #ARGV, 5 do
  local verdict, at = take(i, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  reply[#reply + 1], reply[#reply + 2] = verdict, at
  if verdict < 1 then extend_values(remember, {remember[1], refusal(token, i)}) end
end
if token ~= '' and not repeated then in_chunks('ZADD', seen, remember) end
if done ~= '' then forget(seen, done) end
if has_seen then in_chunks('ZREM', seen, redis.call('ZRANGEBYSCORE', seen, '-inf', digits(now), 'LIMIT', 0, #ARGV)) end
wake_if_earlier(wake, before, head(due))
return reply
