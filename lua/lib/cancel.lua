-- Shared by the scripts that meet cancelled deliveries. A delivery that is cancelled while a consumer holds it is
-- marked in the delivery counter of its pending entry. Scripts that read the counter anyway find the mark at no cost.
-- The mark stays when the holder claims the entry to extend it, and goes with the entry.
local CANCELLED_FROM = 1000000000000 -- the mark, which is added to the counter

local function is_cancelled(counter)
  return counter >= CANCELLED_FROM
end

-- Whether the delivery of an entry to a group was cancelled. pending: rows of XPENDING.
local function cancelled_among(pending, entry)
  for _, one in ipairs(pending) do
    if one[1] == entry then return is_cancelled(one[4]) end
  end
  return false
end

-- The XPENDING row of an entry: a list of one row, or of none. A group that does not exist holds nothing.
local function pending_of(stream, group, entry)
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if pending.err and string.find(pending.err, 'NOGROUP', 1, true) then return {} end
  if pending.err then error(pending) end
  return pending
end
