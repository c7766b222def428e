-- enqueue_fresh: takes messages with fresh IDs into the schedule; the caller has written their payloads and metas just
--   before, on the same connection.
-- Uses: base history token
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] wake (stream)
-- KEYS[5] seen (zset)
-- KEYS[6] policy (hash)
-- KEYS[7] history (stream)
-- ARGV[1] token (string, the name of this call, so that a repeat after a lost reply changes nothing; '' = none)
-- ARGV[2] done (string, the token of the caller's previous call, if its reply has arrived and it refused no message: it
--   need not be remembered any longer; '' = none)
-- ARGV[3] token_ms (integer, ms that the token is remembered)
-- ARGV[4] described (string, the IDs of the messages with a meta, separated by SEP)
-- ARGV[5...] when, id (when: '+ms' or Unix ms; id: string that no other message ever had, so it is not compared)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[7] is given)
-- Returns: verdict (1 = scheduled, 3 = taken by an earlier call with this token), asked_ms (integer, Unix ms: the time
--   from which '+ms' counts)
-- Complexity: O(log n) per message, n = scheduled messages
-- If a command fails here: a full server refuses the first write; then nothing was scheduled, and the payloads and
--   metas that the caller wrote are deleted. They are deleted, too, if some of them are missing. After any other
--   refusal they stay as orphans, and the sweep for orphans deletes them.
-- Run twice: harmless with the same token; without a token, a message that has left the schedule is taken again.
local due, payload, meta, wake, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, done, token_ms, described = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local args = ARGV
local policy, history = KEYS[6], KEYS[7]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
if not is_call(token, args[3]) then return redis.error_reply('ERR token or token_ms does not parse') end
local parses = #args >= 6 and #args % 2 == 0
for first = 5, #args, 1000 do
  local ids = table.concat(args, '', first, math.min(first + 999, #args))
  if string.find(ids, SEP, 1, true) then parses = false end -- such an ID could overwrite a retry
end
if not parses then return redis.error_reply('ERR IDs do not parse') end

-- Deletes the payloads and metas of this call's messages, except those of messages that are scheduled.
local function delete_bodies()
  local ids = {}
  for i = 6, #args, 2 do
    if not redis.call('ZSCORE', due, args[i]) then ids[#ids + 1] = args[i] end
  end
  in_chunks('HDEL', payload, ids)
  in_chunks('HDEL', meta, ids)
end

local now = now_ms()
local mark = token ~= '' and redis.call('ZSCORE', seen, SEP .. token)
if mark then
  delete_bodies()
  return {3, tonumber(mark) - token_ms}
end

-- Whether all payloads and metas are there. If the caller was stopped for minutes before this call, the sweep for
-- orphans may have deleted some.
local written = true
for i = 6, #args, 2 do written = written and redis.call('HEXISTS', payload, args[i]) == 1 end
for id in string.gmatch(described, '[^' .. SEP .. ']+') do
  written = written and redis.call('HEXISTS', meta, id) == 1
end
if not written then
  delete_bodies()
  return redis.error_reply('ERR a payload or meta is not there')
end

local last, text = nil, nil
local earliest = math.huge
for i = 5, #args, 2 do
  if args[i] ~= last then -- most messages of a call have the same delay
    last = args[i]
    if not is_time(last) then return redis.error_reply('ERR when does not parse') end
    local at = due_at(last, now)
    text = digits(at)
    earliest = math.min(earliest, at)
  end
  args[i] = text
end
local is_head = redis.call('ZCOUNT', due, '-inf', digits(earliest)) == 0
-- Everything is known before the first write.
-- A full server refuses this first write; then the payloads and metas that the caller wrote are deleted.
local added = redis.pcall('ZADD', due, unpack(args, 5, math.min(1004, #args)))
if type(added) == 'table' then
  pcall(delete_bodies)
  error(added)
end
in_chunks('ZADD', due, args, 1005)
if token ~= '' then redis.call('ZADD', seen, digits(now + token_ms), SEP .. token) end
if done ~= '' then redis.call('ZREM', seen, SEP .. done) end
if is_head then wake_up(wake, earliest) end
for i = 5, record and #args or 0, 2 do note(record, 'scheduled', args[i + 1], ',"due_ms":"' .. args[i] .. '"}') end
if record then pcall(write_record, record) end
return {1, now}
