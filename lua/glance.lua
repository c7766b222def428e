-- glance: reads the figures of many partitions in one round trip, for programs that show them again and again.
-- Uses: base
-- KEYS[1...] due, meta, stream, dead, policy, calm (zset; hash; stream; stream; hash; hash)
-- ARGV[1] most_groups (integer, of a partition: the details of further groups are not read)
-- ARGV[2] fresh (integer, ms: a dead letter that is older is not read)
-- ARGV[3...] newest, letters (newest: integer, bytes of the newest entries to read, and one entry more, 0 = none;
--   letters: integer, number of dead letters that the caller knows of: if the partition has more than this, the newest
--   one is read; -1 = do not read a dead letter)
-- Returns: now (integer, ms); and per partition -9 = not looked at, because the partitions before it used up the call,
--   1 MiB or 20,000 values: ask for it again; or an error text; or a list of: scheduled, overdue, metas (0 if nothing
--   is scheduled), entries, dead (integers), the score of the member that is due first (string, '' = there is none),
--   the settings (as HGETALL replies; nil = there are more than 5,000), the groups (as XINFO GROUPS replies), details,
--   newest, letter (string, the ID of the newest dead letter; '' = there is none to read, or it is not fresh; nil = the
--   call had no room for it), retries (the members among the
--   first 100 that are no first-time messages). details: per group a list of its name, its oldest pending entry (as
--   XPENDING replies; nil = there is none), the notes of bridges about it (string), and its consumers (as XINFO
--   CONSUMERS replies; nil = not read, because the group has more than 500, or the groups before it in its partition
--   more than 2,500). newest: per entry a list of its ID, its due_ms (string, '' = it has none), and its size in bytes
-- Complexity: O(partitions × (groups + consumers) + log n)
-- If a command fails here: the reply for that partition is the error text, and the call goes on with the next one.
-- Run twice: harmless; it only reads.
local now = now_ms()
local most_groups, fresh = tonumber(ARGV[1]), tonumber(ARGV[2])
local MOST_VALUES, MOST_SETTINGS, MOST_CONSUMERS, MOST_OF_A_GROUP = 20000, 5000, 3000, 500
local MOST_ENTRIES, MOST_MEMBERS = 10, 100
local bytes, values = 0, 0 -- read in this call

-- Returns an error reply that names the first key of a wrong type; nil if there is none.
local function name_wrong(due, meta, stream, dead, policy, calm)
  return wrong_type({due, 'zset', meta, 'hash', stream, 'stream', dead, 'stream', policy, 'hash', calm, 'hash'})
end

-- Returns the list that a command replied; false if the command was refused.
local function list_or_false(reply)
  return not reply.err and reply
end

-- Reads the settings of a partition; false = there are more than 5,000.
local function settings_of(policy)
  local count = redis.call('HLEN', policy)
  if count == 0 then return {} end
  if count > MOST_SETTINGS then return false end
  local settings = redis.call('HGETALL', policy)
  values = values + #settings
  bytes = bytes + bytes_of(settings)
  return settings
end

-- The notes of bridges about a group; '' if there are none, or if they cannot be read.
local function notes_of(calm, name)
  local notes = redis.pcall('HGET', calm, 'held:' .. name)
  if type(notes) ~= 'string' then return '' end
  bytes = bytes + #notes
  return notes
end

-- The groups of the reply.
local function groups_of(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err and string.find(groups.err, 'no such key', 1, true) then return {} end
  if groups.err then error(groups) end
  values = values + 13 * #groups
  return groups
end

-- A value of a group, by its name. at: where every known server has the value.
local function value_of(group, name, at)
  while at <= #group and group[at - 1] ~= name do at = at + 1 end
  return group[at]
end

-- The details of the reply.
local function details_of(stream, calm, groups)
  local details, consumers_left = {}, MOST_CONSUMERS
  for i = 1, math.min(#groups, most_groups) do
    local group = groups[i]
    local name, count = value_of(group, 'name', 2), value_of(group, 'consumers', 4)
    local oldest, notes, consumers = false, '', false
    if value_of(group, 'pending', 6) > 0 then
      oldest = list_or_false(redis.pcall('XPENDING', stream, name, '-', '+', 1))
      notes = notes_of(calm, name)
    end
    if count > 0 and count <= math.min(MOST_OF_A_GROUP, consumers_left) then
      consumers = list_or_false(redis.pcall('XINFO', 'CONSUMERS', stream, name))
      consumers_left = consumers_left - count
      values = values + 9 * count
    end
    details[i] = {name, oldest, notes, consumers}
  end
  return details
end

-- The newest entries of the reply. They are read one by one, because the next may be of any size.
local function newest_of(stream, entries, most_bytes)
  local newest, read, before = {}, 0, '+'
  while #newest < math.min(MOST_ENTRIES, entries) and read < most_bytes do
    local entry = redis.call('XREVRANGE', stream, before, '-', 'COUNT', 1)[1]
    if not entry then break end
    local size, due = bytes_of(entry[2]), ''
    for f = 1, #entry[2], 2 do
      if entry[2][f] == 'due_ms' then due = entry[2][f + 1] end
    end
    newest[#newest + 1] = {entry[1], due, size}
    values = values + #entry[2]
    read, before = read + size + 1, '(' .. entry[1]
  end
  bytes = bytes + read
  return newest
end

-- Reads the newest dead letter if it is fresh. Returns its ID, or ''.
local function letter_of(dead)
  local letter = redis.call('XREVRANGE', dead, '+', digits(math.max(0, now - fresh)), 'COUNT', 1)[1]
  if not letter then return '' end
  bytes = bytes + bytes_of(letter[2])
  return letter[1]
end

-- The retries of the reply, in pages of 16, because a member may be of any size.
local function retries_of(due)
  local retries = {}
  for from = 0, MOST_MEMBERS - 1, 16 do
    local page = redis.call('ZRANGE', due, from, math.min(from + 15, MOST_MEMBERS - 1))
    for _, member in ipairs(page) do
      bytes = bytes + #member
      if string.find(member, SEP, 1, true) then retries[#retries + 1] = member end
    end
    values = values + #page
    if #page < 16 or bytes >= MOST_BYTES then break end
  end
  return retries
end

-- Looks at one partition. Returns its part of the reply.
local function look(newest_bytes, letters_known, due, meta, stream, dead, policy, calm)
  local scheduled, entries = redis.call('ZCARD', due), redis.call('XLEN', stream)
  local letters, overdue, metas, first = redis.call('XLEN', dead), 0, 0, ''
  if scheduled > 0 then
    metas = redis.call('HLEN', meta)
    overdue = redis.call('ZCOUNT', due, '-inf', now)
    local earliest = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
    first = earliest[2] or ''
    bytes = bytes + #(earliest[1] or '')
  end
  local settings, groups = settings_of(policy), groups_of(stream)
  local details, newest, letter, retries = details_of(stream, calm, groups), {}, '', {}
  if letters_known >= 0 and letters > letters_known then letter = bytes < MOST_BYTES and letter_of(dead) end
  if entries > 0 and newest_bytes > 0 and bytes < MOST_BYTES then newest = newest_of(stream, entries, newest_bytes) end
  if metas > 0 and bytes < MOST_BYTES then retries = retries_of(due) end
  return {scheduled, overdue, metas, entries, letters, first, settings, groups, details, newest, letter, retries}
end

local keys, reply = KEYS, {now}
for i = 1, #keys, 6 do
  local row = LATER
  if bytes < MOST_BYTES and values < MOST_VALUES then
    local at, ok = 3 + (i - 1) / 3, nil
    ok, row = pcall(look, tonumber(ARGV[at]), tonumber(ARGV[at + 1]), unpack(keys, i, i + 5))
    if not ok then
      local may_ask, wrong = pcall(name_wrong, unpack(keys, i, i + 5))
      row = may_ask and wrong and wrong.err or error_of(row)
    end
  end
  reply[#reply + 1] = row
end
return reply
