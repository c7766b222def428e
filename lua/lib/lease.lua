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

-- Whether the group of a lease holds its entry. Also true if the server could not tell.
local function is_lent(stream, member)
  local _, entry, group = parts_of_lease(member)
  if not entry then return false end
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if pending.err then return not string.find(pending.err, 'NOGROUP', 1, true) end
  return pending[1] ~= nil
end

-- Removes leases of entries that no consumer holds any more: settlements leave them. known is the number of leases. It
-- looks at a run of `most` leases. The clock chooses where the run begins, so that each lease is looked at in time.
-- Returns how many it removed.
local function forget_leases(leases, stream, known, most)
  local ms, us = now_ms()
  local first, gone = (ms * 1000 + us) % math.max(1, known - most + 1), {}
  for _, member in ipairs(redis.pcall('ZRANGE', leases, digits(first), digits(first + most - 1))) do
    if not is_lent(stream, member) then gone[#gone + 1] = member end
  end
  if gone[1] then redis.pcall('ZREM', leases, unpack(gone)) end
  return #gone
end

-- Records when leases end. If there were none, it wakes the bridge, which then looks for later ones by itself. A lease
-- that cannot be recorded is judged by its idle time alone, as if it had been given out a visibility timeout before its
-- end. For each lease that it adds it looks at two others, so that there are at most about as many leases of settled
-- entries as of held ones.
local function note_leases(leases, wake, stream, within, entries, group, now)
  local args, ends = {}, digits(now + within)
  for _, entry in ipairs(entries) do add_pair(args, ends, lease_of(digits(within), entry, group)) end
  local known = redis.pcall('ZCARD', leases)
  if type(known) ~= 'number' then return end
  for first = 1, #args, 1000 do redis.pcall('ZADD', leases, unpack(args, first, math.min(first + 999, #args))) end
  if known == 0 then
    wake_up(wake, now + within)
  else
    forget_leases(leases, stream, known, math.min(2 * #entries, 200))
  end
end
