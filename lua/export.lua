-- export: reads a page of the schedule in the order of due time and member: each member with its payload and meta, all
--   of one moment.
-- Uses: base
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- ARGV[1] score (string: the score of the last member of the page before, as it was returned; '' = from the beginning)
-- ARGV[2] member (bytes: that member; it need not exist any more)
-- ARGV[3] limit (integer, members)
-- ARGV[4] max_bytes (integer: the page ends with the member that reaches it)
-- Returns: per member four strings: member, score, payload, meta ('' = none)
-- Complexity: O(log n) + the size of the reply; O(log n · log m) when the member is gone, m = members with its score
-- If a command fails here: nothing is written.
-- Run twice: harmless; nothing is written.
local due, payload, meta = KEYS[1], KEYS[2], KEYS[3]
local score, member, limit, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end

-- Whether a comes after b, byte by byte: Lua's own comparison follows the server's locale.
local function follows(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- The rank after (score, member). Members with one score are in the order of their bytes.
local function next_rank()
  if score == '' then return 0 end
  local first, behind = redis.call('ZCOUNT', due, '-inf', '(' .. score), redis.call('ZCOUNT', due, '-inf', score)
  local at = redis.call('ZRANK', due, member)
  if at and at >= first and at < behind then return at + 1 end
  while first < behind do
    local middle = math.floor((first + behind) / 2)
    if follows(redis.call('ZRANGE', due, middle, middle)[1], member) then behind = middle else first = middle + 1 end
  end
  return first
end

local start, reply, bytes = next_rank(), {}, 0
for at = start, start + limit - 1 do -- one by one: no command tells how long a member is
  local found = bytes < max_bytes and redis.call('ZRANGE', due, at, at, 'WITHSCORES') or {}
  if not found[1] then break end
  local body, fields = redis.call('HGET', payload, found[1]) or '', redis.call('HGET', meta, found[1]) or ''
  add_pair(reply, found[1], found[2])
  add_pair(reply, body, fields)
  bytes = bytes + #found[1] + #body + #fields
end
return reply
