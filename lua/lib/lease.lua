-- Shared by the scripts that keep leases: entries which are to be done in less than the visibility timeout. They are idle from the start, so that
-- any reclaim finds them after their time. What is noted here beside that is when they were given out: an absence before then says nothing of them.

-- A member of leases: in how many ms the entry is to be done, the entry, the group. Its score is the end of that time.
local function lease_of(within, entry, group)
  return within .. SEP .. entry .. SEP .. group
end

local function parts_of_lease(member)
  local within, entry, group = string.match(member, '^(%d+)' .. SEP .. '(%d+%-%d+)' .. SEP .. '(.*)$')
  return tonumber(within), entry, group
end

local FORGOTTEN_AFTER, MOST_FORGOTTEN = 60000, 200

-- Forgets leases that ended a minute ago. A bridge forgets them within a second, but one of an older release knows none, and they would stay.
local function forget_leases(leases, now)
  local ended = redis.pcall('ZRANGEBYSCORE', leases, '-inf', digits(now - FORGOTTEN_AFTER), 'LIMIT', 0, MOST_FORGOTTEN)
  if ended[1] then redis.pcall('ZREM', leases, unpack(ended)) end
end

-- Notes when leases end, and wakes the bridge for the first one: others follow while it looks. A lease that cannot be noted ends as if it had been
-- given out a visibility timeout ago.
local function note_leases(leases, wake, within, entries, group, now)
  local args, ends = {}, digits(now + within)
  for _, entry in ipairs(entries) do add_pair(args, ends, lease_of(digits(within), entry, group)) end
  local known = redis.pcall('ZCARD', leases)
  if type(known) ~= 'number' then return end
  for first = 1, #args, 1000 do redis.pcall('ZADD', leases, unpack(args, first, math.min(first + 999, #args))) end
  if known == 0 then wake_up(wake, now + within) else forget_leases(leases, now) end
end
