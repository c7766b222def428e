-- survey: looks at many queues in one request, so that idle ones cost nothing.
-- Uses: base free
-- KEYS[1...] due, payload, meta, stream, wake, seen, policy, calm, recurring (zset; hash; hash; stream; stream; zset; hash; hash; hash)
-- ARGV[1] held (integer, 1 = also look whether groups of a stream without entries hold some, which costs as much as the rest)
-- Returns: per queue: wait (integer, ms until the head is due, -1 = nothing scheduled or the queue is held, -2 = error, -9 = not looked at, because what comes first in those before it came to 1 MiB, or their groups to 5,000: ask again), overdue (integer, ms that the head is late), token (string: ID of the wake token, or the error, which without -2 is about the token alone), busy (integer: 1 = the stream holds entries, or a group was seen to hold some), untidy (integer: 0 = no, 1 = dedup windows or notes of reclaims, 2 = bodies without a member, as there are more of them than members), standing (string: of entries that no group holds, what changes when anybody reads or adds; '' = a group holds some, there are none, or groups were too many to look at), bodies (integer: fields of payload and meta), recurs (integer: recurrences)
-- Complexity: O(queues × groups)
-- If a command fails here: that queue answers -2, the others are looked at.
-- Run twice: harmless; it only reads.
local now, held = now_ms(), ARGV[1] == '1'
local bytes = 0

-- Names the key that holds something else.
local function name_wrong(due, payload, meta, stream, wake, seen, policy, calm, recurring)
  return wrong_type({due, 'zset', payload, 'hash', meta, 'hash', stream, 'stream', wake, 'stream', seen, 'zset', policy, 'hash', calm, 'hash', recurring, 'hash'})
end

-- What is scheduled, unless the queue is held, and what must be tidied up.
local function schedule(due, payload, meta, seen, policy, calm)
  local first, size = head(due)
  local members, wait, overdue = redis.call('ZCARD', due), -1, 0
  bytes = bytes + size
  if first and first < 1e15 and redis.call('HGET', policy, 'held') ~= '1' then
    wait = math.max(0, math.ceil(first) - now)
    overdue = math.max(0, now - math.ceil(math.max(0, first)))
  end
  local untidy = redis.call('ZCARD', seen) + redis.call('HLEN', calm) > 0 and 1 or 0
  local payloads, metas = redis.call('HLEN', payload), redis.call('HLEN', meta)
  if math.max(payloads, metas) > members then untidy = 2 end
  return wait, overdue, untidy, payloads + metas
end

-- What entries and groups look like while no group holds any; '' = one does. Groups are many at times: those of one call are bounded.
local groups_left = 5000
local function standing_of(stream, length)
  if groups_left <= 0 then return '' end
  local groups = groups_of(stream)
  groups_left = groups_left - #groups
  local least = ''
  for _, group in ipairs(groups) do
    if group.pending > 0 then return '' end
    if least == '' or less(group.last, least) then least = group.last end
  end
  return length .. ' entries, ' .. #groups .. ' groups from ' .. least
end

-- A queue that holds nothing costs few commands. A key of another type fails the first one that reads it, and is named afterwards.
local function look(due, payload, meta, stream, wake, seen, policy, calm, recurring)
  local wait, overdue, untidy, bodies, busy, standing, recurs = -1, 0, 0, 0, 0, '', 0
  if redis.call('EXISTS', due, payload, meta, seen, calm, recurring) > 0 then
    wait, overdue, untidy, bodies = schedule(due, payload, meta, seen, policy, calm)
    recurs = redis.call('HLEN', recurring)
  end
  local token = redis.pcall('XREVRANGE', wake, '+', '-', 'COUNT', 1) -- a queue is looked after without its tokens, too
  local id = token.err and (wrong_type({wake, 'stream'}) or token).err or token[1] and token[1][1] or '0-0'
  bytes = bytes + bytes_of(token[1] and token[1][2])
  local length = redis.call('XLEN', stream)
  if length > 0 then
    busy, standing = 1, standing_of(stream, length)
  elseif held then
    local is, groups = is_held(stream)
    busy, groups_left = is and 1 or 0, groups_left - groups
  end
  return wait, overdue, id, busy, untidy, standing, bodies, recurs
end

local function later()
  return LATER, 0, '', 0, 0, '', 0, 0
end

local keys, reply = KEYS, {}
for i = 1, #keys, 9 do
  local ok, wait, overdue, token, busy, untidy, standing, bodies, recurs = pcall((bytes >= MOST_BYTES or groups_left <= 0) and later or look, unpack(keys, i, i + 8))
  if not ok then
    local bad = name_wrong(unpack(keys, i, i + 8))
    wait, overdue, token, busy, untidy, standing, bodies, recurs = -2, 0, bad and bad.err or tostring(type(wait) == 'table' and wait.err or wait), 0, 0, '', 0, 0
  end
  for _, value in ipairs({wait, overdue, token, busy, untidy, standing, bodies, recurs}) do reply[#reply + 1] = value end
end
return reply
