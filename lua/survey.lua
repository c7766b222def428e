-- survey: looks at many queues in one request, so that idle ones cost nothing.
-- Uses: base free
-- KEYS[1...] due, payload, meta, stream, wake, seen (zset; hash; hash; stream; stream; zset)
-- ARGV[1] held (integer, 1 = also look whether groups of a stream without entries hold some, which costs as much as the rest)
-- Returns: per queue: wait (integer, ms until the head is due, -1 = nothing scheduled, -2 = error), overdue (integer, ms that the head is late), token (string: ID of the wake token, or the error), busy (integer: 1 = the stream holds entries, or a group was seen to hold some), untidy (integer: 0 = no, 1 = dedup windows, 2 = bodies without a member)
-- Complexity: O(queues × groups)
-- If a command fails here: that queue answers -2, the others are looked at.
-- Run twice: harmless; it only reads.
local now, held = now_ms(), ARGV[1] == '1'

-- Names the key that holds something else.
local function name_wrong(due, payload, meta, stream, wake, seen)
  return wrong_type({due, 'zset', payload, 'hash', meta, 'hash', stream, 'stream', wake, 'stream', seen, 'zset'})
end

-- What is scheduled, and what must be tidied up.
local function schedule(due, payload, meta, seen)
  local first, members, wait, overdue = head(due), redis.call('ZCARD', due), -1, 0
  if first and first < 1e15 then
    wait = math.max(0, math.ceil(first) - now)
    overdue = math.max(0, now - math.ceil(math.max(0, first)))
  end
  local untidy = redis.call('ZCARD', seen) > 0 and 1 or 0
  if math.max(redis.call('HLEN', payload), redis.call('HLEN', meta)) > members then untidy = 2 end
  return wait, overdue, untidy
end

-- A queue that holds nothing costs few commands. A key of another type fails the first one that reads it, and is named afterwards.
local function look(due, payload, meta, stream, wake, seen)
  local wait, overdue, untidy, busy = -1, 0, 0, 0
  if redis.call('EXISTS', due, payload, meta, seen) > 0 then wait, overdue, untidy = schedule(due, payload, meta, seen) end
  local token = redis.call('XREVRANGE', wake, '+', '-', 'COUNT', 1)
  if redis.call('XLEN', stream) > 0 or held and is_held(stream) then busy = 1 end
  return wait, overdue, token[1] and token[1][1] or '0-0', busy, untidy
end

local keys, reply, n = KEYS, {}, 0
for i = 1, #keys, 6 do
  local ok, wait, overdue, token, busy, untidy = pcall(look, keys[i], keys[i + 1], keys[i + 2], keys[i + 3], keys[i + 4], keys[i + 5])
  if not ok then
    local bad = name_wrong(keys[i], keys[i + 1], keys[i + 2], keys[i + 3], keys[i + 4], keys[i + 5])
    wait, overdue, token, busy, untidy = -2, 0, bad and bad.err or tostring(type(wait) == 'table' and wait.err or wait), 0, 0
  end
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = wait, overdue, token, busy, untidy
  n = n + 5
end
return reply
