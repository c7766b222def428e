-- survey: looks at many queues in one round trip, so that a bridge sends no further commands for idle queues.
-- Uses: base free
-- KEYS[1...] due, payload, meta, stream, wake, seen, policy, calm, recurring, turns, planned, leases, progress (zset;
--   hash; hash; stream; stream; zset; hash; hash; hash; zset; hash; zset; hash)
-- ARGV[1] held (integer, 1 = if a stream has no entries, also look whether a group holds deleted entries, which doubles
--   the cost)
-- Returns: per queue: wait (integer, ms until the earliest message is due, -1 = nothing is scheduled, or the queue is
--   held, -2 = the schedule or the stream could not be read, -9 = not looked at, because the earliest members of the
--   queues before it came to 1 MiB, or their groups to 5,000: ask again), overdue (integer, ms by which the earliest
--   message is late), token (string, the ID of the wake token, or an error text; unless wait is -2, the error is about
--   a key other than the schedule and the stream), busy (integer, the sum of 1 = the stream has entries, or a group
--   holds entries, and 2 = messages with an ordering key are in flight or wait), untidy (integer, 0 = nothing to tidy
--   up, 1 = dedup windows, notes of reclaims, leases, or cursors are left, 2 = there are more payloads, or more
--   metas, than members), standing (string, a text that changes when anybody reads or adds entries; '' = a group holds
--   entries, or there are no entries, or there were too many groups to look at), bodies (integer, fields of payload
--   and meta),
--   recurs (integer, recurrences and their plans; 1 more if a key could not be read, so that the planner looks and
--   reports the error)
-- Complexity: O(queues × groups)
-- If a command fails here: the reply for that queue has the error, and all that could be read; the other queues are
--   looked at.
-- Run twice: harmless; it only reads.
local now = now_ms()
local held = ARGV[1] == '1'
local bytes, groups_left = 0, 5000

-- An error reply for the first key of another type.
local function name_wrong(due, payload, meta, stream, wake, seen, policy, calm, recurring, turns, planned, leases,
  progress)
  return wrong_type({due, 'zset', payload, 'hash', meta, 'hash', stream, 'stream', wake, 'stream', seen, 'zset',
    policy, 'hash', calm, 'hash', recurring, 'hash', turns, 'zset', planned, 'hash', leases, 'zset',
    progress, 'hash'})
end

-- The number that a command returned; 0 if the command failed, and then bad[1] is set to the error. So the queue's
-- messages are served also if its other keys cannot be read.
local function number_or_error(bad, reply)
  if type(reply) == 'table' then bad[1] = reply end
  return type(reply) == 'table' and 0 or reply
end

-- The state of the schedule: wait (unless the queue is held), overdue, untidy, bodies.
local function schedule(bad, due, payload, meta, seen, policy, calm, leases, progress)
  local first, size = earliest_due(due)
  local members, wait, overdue = redis.call('ZCARD', due), -1, 0
  bytes = bytes + size
  if first and first < 1e15 and number_or_error(bad, redis.pcall('HGET', policy, 'held')) ~= '1' then
    wait = math.max(0, math.ceil(first) - now)
    overdue = math.max(0, now - math.ceil(math.max(0, first)))
  end
  local left = number_or_error(bad, redis.pcall('ZCARD', seen)) + number_or_error(bad, redis.pcall('HLEN', calm))
  left = left + number_or_error(bad, redis.pcall('ZCARD', leases))
  left = left + number_or_error(bad, redis.pcall('HLEN', progress))
  local untidy = left > 0 and 1 or 0
  local payloads, metas = redis.call('HLEN', payload), redis.call('HLEN', meta)
  return wait, overdue, math.max(payloads, metas) > members and 2 or untidy, payloads + metas
end

-- The text standing of the reply. groups_left limits how many groups are read in one call.
local function standing_of(stream, length)
  if groups_left <= 0 then return '' end
  local groups = groups_of(stream)
  groups_left = groups_left - #groups
  local slowest = '' -- the smallest last delivered entry of the groups
  for _, group in ipairs(groups) do
    if group.pending > 0 then return '' end
    if slowest == '' or less(group.last, slowest) then slowest = group.last end
  end
  return length .. ' entries, ' .. #groups .. ' groups from ' .. slowest
end

-- The state of the stream: 1 if it has entries or a group holds deleted ones, else 0; and standing.
local function entries(stream)
  local length = redis.call('XLEN', stream)
  if length > 0 or not held then return math.min(1, length), length > 0 and standing_of(stream, length) or '' end
  local held_by_group, groups = is_held(stream)
  groups_left = groups_left - groups
  return held_by_group and 1 or 0, ''
end

-- Looks at one queue, with few commands if the queue is empty. Returns its part of the reply.
local function look(due, payload, meta, stream, wake, seen, policy, calm, recurring, turns, planned, leases, progress)
  local bad = {}
  local ok, wait, overdue, untidy, bodies = true, -1, 0, 0, 0
  local keyed, recurs = 0, 0
  if redis.call('EXISTS', due, payload, meta, seen, calm, recurring, turns, planned, leases, progress) > 0 then
    recurs = number_or_error(bad, redis.pcall('HLEN', recurring))
    recurs = recurs + number_or_error(bad, redis.pcall('HLEN', planned)) + (bad[1] and 1 or 0)
    keyed = number_or_error(bad, redis.pcall('ZCARD', turns))
    ok, wait, overdue, untidy, bodies = pcall(schedule, bad, due, payload, meta, seen, policy, calm, leases,
      progress)
    if not ok then
      bad[1] = wait
      overdue, untidy, bodies = 0, 0, 0
    end
  end
  local token = redis.pcall('XREVRANGE', wake, '+', '-', 'COUNT', 1)
  if token.err then
    bad[1] = token
    token = {}
  end
  bytes = bytes + bytes_of(token[1] and token[1][2])
  local stream_ok, busy, standing = pcall(entries, stream)
  if not stream_ok then
    bad[1] = busy
    busy, standing = 0, ''
  end
  local newest = token[1] and token[1][1] or '0-0'
  if bad[1] then -- the error takes the place of the token
    local wrong = name_wrong(due, payload, meta, stream, wake, seen, policy, calm, recurring, turns, planned, leases,
      progress)
    newest = wrong and wrong.err or error_of(bad[1])
  end
  if keyed > 0 then busy = busy + 2 end
  return ok and stream_ok and wait or -2, overdue, newest, busy, untidy, standing, bodies, recurs
end

local keys, reply = KEYS, {}
for i = 1, #keys, 13 do
  -- The values for a queue that is not looked at, in the order of the header.
  local row = {LATER, 0, '', 0, 0, '', 0, 0}
  if bytes < MOST_BYTES and groups_left > 0 then row = {look(unpack(keys, i, i + 12))} end
  for _, value in ipairs(row) do reply[#reply + 1] = value end
end
return reply
