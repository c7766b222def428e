-- export: reads a page of the schedule in the order of due time and member: each member with its payload and meta, as
--   they are at one moment.
-- Uses: base
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- ARGV[1] score (string: the score of the last member of the previous page, as it was returned; '' = from the
--   beginning)
-- ARGV[2] member (bytes: the last member of the previous page; it need not exist any more)
-- ARGV[3] limit (integer, members at most)
-- ARGV[4] max_bytes (integer: the page ends with the member that reaches it)
-- Returns: per member four strings: member, score, payload, meta ('' = none)
-- Complexity: O(log n) + the size of the reply; O(log n · log m) when the member is gone, m = members with its score
-- If a command fails here: nothing is written.
-- Run twice: harmless; nothing is written.
local due, payload, meta = KEYS[1], KEYS[2], KEYS[3]
local score, member, limit, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end

-- Whether a comes after b in the order of their bytes. Lua's own comparison would follow the server's locale.
local function follows(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- The rank of the first member after the last one of the previous page. Members with the same score are in the order of
-- their bytes. If the last member does not exist any more, a binary search finds where it would be.
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
for at = start, start + limit - 1 do -- one by one, because no command tells how long a member is
  local found = bytes < max_bytes and redis.call('ZRANGE', due, at, at, 'WITHSCORES') or {}
  if not found[1] then break end
  local body, fields = redis.call('HGET', payload, found[1]) or '', redis.call('HGET', meta, found[1]) or ''
  add_pair(reply, found[1], found[2])
  add_pair(reply, body, fields)
  bytes = bytes + #found[1] + #body + #fields
end
return reply
