-- survey: looks at many queues in one request, so that idle ones cost nothing.
-- Uses: base free
-- KEYS[1...] due, payload, meta, stream, wake, seen (zset; hash; hash; stream; stream; zset)
-- Returns: per queue: wait (integer, ms until the head is due, -1 = nothing scheduled, -2 = error), overdue (integer, ms that the head is late), token (string: ID of the wake token, or the error), busy (integer: 1 = the stream holds entries or a group holds some), untidy (integer: 0 = no, 1 = dedup windows, 2 = bodies without a member)
-- Complexity: O(queues × groups)
-- If a command fails here: that queue answers -2, the others are looked at.
-- Run twice: harmless; it only reads.
local now = now_ms()

local function look(due, payload, meta, stream, wake, seen)
  local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash', stream, 'stream', wake, 'stream', seen, 'zset'})
  if bad then return -2, 0, bad.err, 0, 0 end
  local first, members = head(due), redis.call('ZCARD', due)
  local wait, overdue = -1, 0
  if first and first < 1e15 then
    wait = math.max(0, math.ceil(first) - now)
    overdue = math.max(0, now - math.ceil(math.max(0, first)))
  end
  local token = redis.call('XREVRANGE', wake, '+', '-', 'COUNT', 1)
  local busy = redis.call('XLEN', stream) > 0 and 1 or 0
  if busy == 0 and redis.call('EXISTS', stream) == 1 then
    for _, group in ipairs(groups_of(stream)) do
      if group.pending > 0 then busy = 1 end
    end
  end
  local untidy = redis.call('EXISTS', seen)
  if redis.call('HLEN', payload) > members or redis.call('HLEN', meta) > members then untidy = 2 end
  return wait, overdue, token[1] and token[1][1] or '0-0', busy, untidy
end

local reply = {}
for i = 1, #KEYS, 6 do
  local n = #reply
  local ok, wait, overdue, token, busy, untidy = pcall(look, KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], KEYS[i + 4], KEYS[i + 5])
  if not ok then wait, overdue, token, busy, untidy = -2, 0, tostring(type(wait) == 'table' and wait.err or wait), 0, 0 end
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = wait, overdue, token, busy, untidy
end
return reply
