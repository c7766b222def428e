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
-- ARGV[1] token (string, '' = none: names this call, so that a repeat after a lost reply changes nothing)
-- ARGV[2] done (string, '' = none: the token of the caller's previous call, whose reply has arrived, and which refused
--   nothing)
-- ARGV[3] token_ms (integer, ms that the token is remembered)
-- ARGV[4] described (string, the IDs of the messages with a meta, separated by SEP)
-- ARGV[5...] when, id ('+ms' or Unix ms; string that no other message ever had: not compared)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[7])
-- Returns: verdict (1 scheduled, 3 taken by an earlier call with this token), asked_ms (integer, Unix ms: the time from
--   which '+ms' counts)
-- Complexity: O(log n) per message, n = scheduled messages
-- If a command fails here: a full server refuses the first write; then nothing was scheduled, and the payloads and
--   metas of the caller are deleted. They are deleted, too, if some of them are missing. After any other refusal they
--   are orphans, and swept.
-- Run twice: harmless with the same token; without, a message that has left the schedule is taken again.
local due, payload, meta, wake, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, done, token_ms, described = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local args = ARGV
local policy, history = KEYS[6], KEYS[7]
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
if not is_call(token, args[3]) then return redis.error_reply('ERR token or token_ms does not parse') end
local parses = #args >= 6 and #args % 2 == 0
for first = 5, #args, 1000 do
  local ids = table.concat(args, '', first, math.min(first + 999, #args))
  if string.find(ids, SEP, 1, true) then parses = false end -- such an ID could overwrite a retry
end
if not parses then return redis.error_reply('ERR IDs do not parse') end

-- Deletes the payloads and metas of messages that are not scheduled.
local function take_back()
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
  take_back()
  return {3, tonumber(mark) - token_ms}
end

-- Whether all payloads and metas are there. If the caller stopped for minutes before this call, a sweep for orphans may
-- have deleted some.
local written = true
for i = 6, #args, 2 do written = written and redis.call('HEXISTS', payload, args[i]) == 1 end
for id in string.gmatch(described, '[^' .. SEP .. ']+') do
  written = written and redis.call('HEXISTS', meta, id) == 1
end
if not written then
  take_back()
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
local added = redis.pcall('ZADD', due, unpack(args, 5, math.min(1004, #args)))
if type(added) == 'table' then
  pcall(take_back)
  error(added)
end
in_chunks('ZADD', due, args, 1005)
if token ~= '' then redis.call('ZADD', seen, digits(now + token_ms), SEP .. token) end
if done ~= '' then redis.call('ZREM', seen, SEP .. done) end
if is_head then wake_up(wake, earliest) end
for i = 5, story and #args or 0, 2 do note(story, 'scheduled', args[i + 1], ',"due_ms":"' .. args[i] .. '"}') end
if story then pcall(tell, story) end
return {1, now}
