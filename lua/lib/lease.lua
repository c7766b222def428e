-- Shared by the scripts that keep leases: deliveries whose time is shorter than the visibility timeout. The pending
-- entry of a lease starts with an idle time above 0, so that reclaim finds it when the lease ends. The zset leases
-- tells when each lease was given out, because an absence (see calm.lua) before that time does not extend the lease.

-- A member of the zset leases: the length of the lease in ms, the entry, and the group. Its score is the end of the
-- lease, Unix ms.
local function lease_of(within, entry, group)
  return within .. SEP .. entry .. SEP .. group
end

local function parts_of_lease(member)
  local within, entry, group = string.match(member, '^(%d+)' .. SEP .. '(%d+%-%d+)' .. SEP .. '(.*)$')
  return tonumber(within), entry, group
end

-- Whether the group of a lease still holds the entry; true, too, if the pending list cannot be read.
local function is_lent(stream, member)
  local _, entry, group = parts_of_lease(member)
  if not entry then return false end
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if pending.err then return not string.find(pending.err, 'NOGROUP', 1, true) end
  return pending[1] ~= nil
end

-- Removes leases of entries that no consumer holds any more: the scripts that settle entries do not remove the leases.
-- known: the number of leases. It looks at `most` leases in a row. The clock chooses the first of them, so that over
-- several calls each lease is looked at. Returns how many it removed.
local function forget_leases(leases, stream, known, most)
  local ms, us = now_ms()
  local first, gone = (ms * 1000 + us) % math.max(1, known - most + 1), {}
  for _, member in ipairs(redis.pcall('ZRANGE', leases, digits(first), digits(first + most - 1))) do
    if not is_lent(stream, member) then gone[#gone + 1] = member end
  end
  if gone[1] then redis.pcall('ZREM', leases, unpack(gone)) end
  return #gone
end

-- Adds leases for entries that were just given to a consumer. If there was no lease, it wakes the bridge; as long as
-- there are leases, the bridge looks at them by itself. If the server refuses to add a lease, reclaim judges the entry
-- by its idle time alone, as if it had been given out a visibility timeout before the lease ends. For each lease that
-- it adds, it looks at two others for forget_leases, so that there are at most about as many leases of settled entries
-- as of held ones.
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
