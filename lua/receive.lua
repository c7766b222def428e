-- receive: gives a consumer entries that its group has not been given yet, each to be done within a time that the
--   caller chooses.
-- Uses: base free lease
-- KEYS[1] stream (stream)
-- KEYS[2] policy (hash)
-- KEYS[3] leases (zset)
-- KEYS[4] wake (stream)
-- ARGV[1] group (string)
-- ARGV[2] consumer (string)
-- ARGV[3] idle (integer, ms: the idle time with which the entries start: the visibility timeout less the time in which
--   they are to be done)
-- ARGV[4] limit (integer, entries at most)
-- ARGV[5] within (integer, ms: the time in which the entries are to be done; recorded as a lease if neither this nor
--   idle is 0)
-- Returns: last (entry ID: the group has been given all entries up to it; '' = there may be more), held (integer: 1 =
--   the workers are paused, nothing is given), then for each entry a list of its ID and its fields
-- Complexity: O(1) per entry and per group; and O(log n) for two leases per entry, 200 at most
-- If a command fails here: entries that were read are pending, and are reclaimed after the visibility timeout.
-- Run twice: harmless; the second run gives the next entries.
local stream, policy, leases, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer, idle = ARGV[1], ARGV[2], ARGV[3]
local limit, within = tonumber(ARGV[4]), tonumber(ARGV[5])

redis.call('XACK', stream, group, '0-0') -- acknowledges nothing; after this write a full server accepts the others
if redis.call('HGET', policy, 'held_workers') == '1' then return {'', 1} end
-- Everything is known before the first write.
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
