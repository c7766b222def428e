-- find_unfinished: tells whether any of the given messages is unfinished: it is scheduled, or waits as a retry or as an
--   imported entry, or a group has not acknowledged its entry yet. The messages are those of a recurrence with overlap
--   = skip, which gets no further message while one of them is unfinished.
-- Uses: base free
-- KEYS[1] due (zset)
-- KEYS[2] stream (stream)
-- ARGV[1] cursor (entry ID to go on from; '0-0' at first)
-- ARGV[2] limit (integer, entries to look at)
-- ARGV[3...] id, entries (id: string; entries: the entries that earlier calls found with this ID, separated by spaces)
-- Returns: verdict (1 = a message is unfinished, 0 = none is, 2 = unknown: there are more entries to look at), the next
--   cursor, and for each entry that was found: id, entry
-- Complexity: O(limit + IDs × (groups + their entries)); it reads at most 1 MiB and one entry more
-- If a command fails here: nothing was changed.
-- Run twice: harmless; it only reads.
local due, stream = KEYS[1], KEYS[2]
local cursor, limit = ARGV[1], tonumber(ARGV[2])
local bad = wrong_type({due, 'zset', stream, 'stream'})
if bad then return bad end
if not limit or not string.find(cursor, '^%d+%-%d+$') or #ARGV % 2 == 1 then
  return redis.error_reply('ERR limit or cursor does not parse')
end
local groups, refused = groups_of(stream)
if refused and not string.find(refused, 'no such key', 1, true) then return redis.error_reply(refused) end
-- By message ID, the entries that earlier calls found.
local known = {}

local function holds(group, entry)
  return group.pending > 0 and redis.call('XPENDING', stream, group.name, entry, entry, 1)[1]
end

-- Whether a group that the entry is for has not acknowledged it. meant_for: that group; nil or '' = every group. If the
-- stream has no groups, every entry is needed.
local function is_needed(entry, meant_for)
  for _, group in ipairs(groups) do
    if not meant_for or meant_for == '' or meant_for == group.name then
      if less(group.last, entry) or holds(group, entry) then return true end
    end
  end
  return #groups == 0
end

-- Whether a group holds an entry. It is asked about entries that were deleted, because a consumer may still work on a
-- message that was cancelled for all groups.
local function is_held(entry)
  for _, group in ipairs(groups) do
    if holds(group, entry) then return true end
  end
  return false
end

local function fields_of(one)
  local fields = {}
  for i = 1, #one[2], 2 do fields[one[2][i]] = one[2][i + 1] end
  return fields
end

-- Whether a message is unfinished, as far as the given entries and the schedule tell. Each group has at most one retry
-- and one imported entry of the message in the schedule, under the names below. The name of an imported entry has no
-- group if its stream had no groups.
local function is_unfinished(id, entries)
  if redis.call('ZSCORE', due, id) or redis.call('ZSCORE', due, id .. SEP .. SEP .. 'ready:0-0') then return true end
  for _, group in ipairs(groups) do
    local of_group = id .. SEP .. group.name .. SEP
    if redis.call('ZSCORE', due, of_group .. '0-0') then return true end
    if redis.call('ZSCORE', due, of_group .. 'ready:0-0') then return true end
  end
  for _, entry in ipairs(entries) do
    local one = redis.call('XRANGE', stream, entry, entry)[1]
    if one and is_needed(entry, fields_of(one)['for']) or not one and is_held(entry) then return true end
  end
  return false
end

for i = 3, #ARGV, 2 do
  known[ARGV[i]] = {}
  for entry in string.gmatch(ARGV[i + 1], '%d+%-%d+') do table.insert(known[ARGV[i]], entry) end
  if is_unfinished(ARGV[i], known[ARGV[i]]) then return {1, cursor} end
end
local reply, bytes, looked = {2, cursor}, 0, 0
while looked < limit and bytes < MOST_BYTES do -- one by one, because the next may be of any size
  local one = redis.call('XRANGE', stream, reply[2], '+', 'COUNT', 1)[1]
  if not one then
    if reply[1] == 2 then reply[1] = 0 end
    break
  end
  local fields = fields_of(one)
  local id = known[fields['id'] or ''] and fields['id']
  if id then
    add_pair(reply, id, one[1])
    if is_needed(one[1], fields['for']) then reply[1] = 1 end
  end
  reply[2] = successor(one[1])
  looked = looked + 1
  bytes = bytes + bytes_of(one[2])
end
return reply
