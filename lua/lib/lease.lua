-- Shared by the scripts that keep leases: entries to be done in less than the visibility timeout. They start with an
-- idle time, so that any reclaim finds them in time. The zset leases also tells when they were given out: an absence
-- before that does not extend them.

-- A member of leases: the ms in which the entry is to be done, the entry, and the group. Its score is the end of that
-- time.
local function lease_of(within, entry, group)
  return within .. SEP .. entry .. SEP .. group
end

local function parts_of_lease(member)
  local within, entry, group = string.match(member, '^(%d+)' .. SEP .. '(%d+%-%d+)' .. SEP .. '(.*)$')
  return tonumber(within), entry, group
end

local FORGOTTEN_AFTER, MOST_FORGOTTEN = 60000, 200

-- Removes leases that ended a minute ago. A bridge removes them within a second, but bridges of older releases do not
-- know them.
local function forget_leases(leases, now)
  local ended = redis.pcall('ZRANGEBYSCORE', leases, '-inf', digits(now - FORGOTTEN_AFTER), 'LIMIT', 0, MOST_FORGOTTEN)
  if ended[1] then redis.pcall('ZREM', leases, unpack(ended)) end
end

-- Records when leases end. If there were none, it wakes the bridge, which then looks for later ones by itself. A lease
-- that cannot be recorded is judged by its idle time alone, as if it had been given out a visibility timeout before its
-- end.
local function note_leases(leases, wake, within, entries, group, now)
  local args, ends = {}, digits(now + within)
  for _, entry in ipairs(entries) do add_pair(args, ends, lease_of(digits(within), entry, group)) end
  local known = redis.pcall('ZCARD', leases)
  if type(known) ~= 'number' then return end
  for first = 1, #args, 1000 do redis.pcall('ZADD', leases, unpack(args, first, math.min(first + 999, #args))) end
  if known == 0 then wake_up(wake, now + within) else forget_leases(leases, now) end
end
