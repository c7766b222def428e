-- receive: gives a consumer the next entries of its group, with a visibility timeout that the caller chooses.
-- Uses: base free lease
-- KEYS[1] stream (stream)
-- KEYS[2] policy (hash)
-- KEYS[3] leases (zset)
-- KEYS[4] wake (stream)
-- ARGV[1] group (string)
-- ARGV[2] consumer (string)
-- ARGV[3] idle (integer, ms: the idle time with which the entries start, which is the group's visibility timeout less
--   within)
-- ARGV[4] limit (integer, entries at most)
-- ARGV[5] within (integer, ms: the time after which the entries count as failed unless they are acknowledged or
--   extended; it is recorded as a lease if neither this nor idle is 0)
-- Returns: last (entry ID: the group has been given all entries up to this one; '' = there may be more), held (integer:
--   1 = the workers are paused, so no entry is given), then for each entry a list of its ID and its fields
-- Complexity: O(1) per entry and per group; and O(log n) per lease, n = leases: it adds one lease per entry, and checks
--   whether older leases may go, two per entry, 200 at most
-- If a command fails here: entries that were read are pending, and are reclaimed after the group's visibility timeout.
-- Run twice: harmless; the second run gives the next entries.
local stream, policy, leases, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer, idle = ARGV[1], ARGV[2], ARGV[3]
local limit, within = tonumber(ARGV[4]), tonumber(ARGV[5])

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XACK', stream, group, '0-0')
if redis.call('HGET', policy, 'held_workers') == '1' then return {'', 1} end
-- Everything is known before the first write, which is XREADGROUP.
local reply = {'', 0}
local claim = {stream, group, consumer, 0}
local given = {} -- entry IDs
local bytes = 0
while #given < limit and bytes < MOST_BYTES do
  -- One by one, because the next may be of any size.
  local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', stream, '>')
  local one = found and found[1] and found[1][2][1]
  if not one then break end
  reply[#reply + 1] = one
  claim[#claim + 1] = one[1]
  given[#given + 1] = one[1]
  bytes = bytes + bytes_of(one[2])
end
if #given < limit and bytes < MOST_BYTES then
  for _, one in ipairs(groups_of(stream)) do
    if one.name == group then reply[1] = one.last end
  end
end
if #given > 0 and idle ~= '0' then
  for _, word in ipairs({'IDLE', idle, 'JUSTID'}) do claim[#claim + 1] = word end -- the delivery counter stays
  redis.pcall('XCLAIM', unpack(claim))
  if within and within > 0 and leases then note_leases(leases, wake, stream, within, given, group, now_ms()) end
end
return reply
