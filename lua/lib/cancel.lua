-- Shared by the scripts that meet cancelled deliveries. If a delivery is cancelled while a consumer holds the entry,
-- CANCELLED_FROM is added to the delivery counter of the pending entry. Scripts that read the counter anyway find this
-- mark at no cost. The mark stays when the consumer extends the entry, and goes when the entry leaves the pending list.
local CANCELLED_FROM = 1000000000000

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

-- The rows that XPENDING returns for an entry: one row if a consumer of the group holds the entry, else none. A group
-- that does not exist holds nothing.
local function pending_of(stream, group, entry)
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if pending.err and string.find(pending.err, 'NOGROUP', 1, true) then return {} end
  if pending.err then error(pending) end
  return pending
end
