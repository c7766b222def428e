-- find_unfinished: looks for anything that is left of messages: scheduled, retried, or an entry that a group has not acknowledged; in steps, because no key says where they are.
-- Uses: base waiting free
-- KEYS[1] due (zset)
-- KEYS[2] stream (stream)
-- ARGV[1] cursor ('' at first, then what the last call returned, on the same connection)
-- ARGV[2] limit (integer, members, or entries, to look at)
-- ARGV[3] from (entry ID from which to look: no entry of these messages is older)
-- ARGV[4...] id (string)
-- Returns: found (integer, 1 = something is left), the next cursor ('0' = all was looked at)
-- Complexity: O(limit × groups); it reads 1 MiB, and what one step of the scan brings, at most
-- If a command fails here: nothing was changed.
-- Run twice: harmless; it only reads.
local due, stream = KEYS[1], KEYS[2]
local cursor, limit, from = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local bad = wrong_type({due, 'zset', stream, 'stream'})
if bad then return bad end
if not limit or not string.find(from, '^%d+%-?%d*$') then return redis.error_reply('ERR limit or from does not parse') end
local ids, wanted = {}, {}
for i = 4, #ARGV do
  ids[i - 3], wanted[ARGV[i]] = ARGV[i], true
  if redis.call('ZSCORE', due, ARGV[i]) then return {1, '0'} end
end

-- Whether a group that an entry is for has not acknowledged it. An entry that nobody reads is left.
local function is_needed(groups, entry, only)
  for _, group in ipairs(groups) do
    if not only or only == '' or only == group.name then
      if less(group.last, entry) or group.pending > 0 and redis.call('XPENDING', stream, group.name, entry, entry, 1)[1] then return true end
    end
  end
  return #groups == 0
end

local scanned = string.match(cursor, '^s(%d+)$') -- the schedule, behind the stream
if not scanned then
  local groups, bytes, at = groups_of(stream), 0, cursor == '' and from or cursor
  for _ = 1, limit do -- one by one: the next may be of any size
    local one = redis.call('XRANGE', stream, at, '+', 'COUNT', 1)[1]
    if not one then return {0, 's0'} end
    local entry = {}
    for i = 1, #one[2], 2 do entry[one[2][i]] = one[2][i + 1] end
    if wanted[entry['id'] or ''] and is_needed(groups, one[1], entry['for']) then return {1, '0'} end
    at, bytes = successor(one[1]), bytes + bytes_of(one[2])
    if bytes >= MOST_BYTES then break end
  end
  return {0, at}
end
local following, found = waiting(due, scanned, limit, '', ids)
if found[1] then return {1, '0'} end
return {0, following == '0' and '0' or 's' .. following}
