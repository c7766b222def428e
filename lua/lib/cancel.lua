-- Shared by the scripts that meet cancelled deliveries, and deliveries that a worker gave back by XNACK. If a delivery
-- is cancelled while a consumer holds the entry, CANCELLED_FROM is added to the delivery counter of the pending entry.
-- Scripts that read the counter anyway find this mark at no cost. The mark stays when the consumer extends the entry,
-- and goes when the entry leaves the pending list.
local CANCELLED_FROM = 1000000000000

-- XNACK with FATAL (Redis 8.8) sets the delivery counter to 2^63 - 1. Lua rounds this number, so FATAL_FROM is lower.
-- A claim adds one. On some servers the counter is then negative.
local FATAL_FROM = 9000000000000000000

-- Whether a worker gave the message up by XNACK with FATAL.
local function is_fatal(counter)
  return counter >= FATAL_FROM or counter < 0
end

-- Whether a delivery was cancelled. Each XNACK with SILENT subtracts one from the delivery counter. If a worker repeats
-- XNACK after a lost reply, the counter of a cancelled delivery may become less than CANCELLED_FROM.
local function is_cancelled(counter)
  return counter >= CANCELLED_FROM / 2 and not is_fatal(counter)
end

-- Whether a worker gave a pending entry back by XNACK, so that no consumer holds it. XPENDING then shows an empty
-- consumer, and an idle time of -1 or one that counts from 1970. The idle time tells the entry from one of a consumer
-- whose name is empty. one: a row of XPENDING.
local function is_given_back(one)
  return (one[2] or '') == '' and (one[3] < 0 or one[3] >= 1e12)
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
