-- Shared by the scripts that free entries: entry IDs, the groups of a stream, and entries that no group needs.

-- An entry ID is <ms>-<seq>, each up to 20 digits. They are compared as text, because Lua's numbers are exact only to
-- 2^53.
local function id_parts(id)
  local ms, seq = string.match(id, '^(%d+)%-?(%d*)$')
  return ms or '0', (seq and seq ~= '') and seq or '0'
end

local function less(a, b)
  if #a == #b and string.byte(a, 14) == 45 and string.byte(b, 14) == 45 then -- 13 digits of ms, until 2286
    return a < b
  end
  local a_ms, a_seq = id_parts(a)
  local b_ms, b_seq = id_parts(b)
  if a_ms ~= b_ms then
    if #a_ms ~= #b_ms then return #a_ms < #b_ms end
    return a_ms < b_ms
  end
  if #a_seq ~= #b_seq then return #a_seq < #b_seq end
  return a_seq < b_seq
end

-- The groups of a stream as tables {name, pending, last}; and the error text, if XINFO GROUPS was refused. pending: how
-- many entries the group holds. last: the last entry that it was given.
local function groups_of(stream)
  local groups = {}
  local reply = redis.pcall('XINFO', 'GROUPS', stream)
  if reply.err then return groups, reply.err end
  for n, flat in ipairs(reply) do
    local group = {name = flat[2], pending = tonumber(flat[6]), last = flat[8] or '0-0'}
    -- Every known server has the three fields at these places. For any other server, the loop searches for them.
    if flat[1] ~= 'name' or flat[5] ~= 'pending' or flat[7] ~= 'last-delivered-id' then
      for i = 1, #flat, 2 do
        if flat[i] == 'name' then group.name = flat[i + 1]
        elseif flat[i] == 'pending' then group.pending = tonumber(flat[i + 1])
        elseif flat[i] == 'last-delivered-id' then group.last = flat[i + 1] or '0-0' end
      end
    end
    groups[n] = group
  end
  return groups
end

-- Whether any group of a stream holds an entry; and how many groups there are.
local function is_held(stream)
  local reply = redis.pcall('XINFO', 'GROUPS', stream)
  if reply.err then return false, 0 end
  for _, flat in ipairs(reply) do
    local at = flat[5] == 'pending' and 6 or 2 -- every known server has the value of pending at index 6
    while at < #flat and flat[at - 1] ~= 'pending' do at = at + 2 end
    if tonumber(flat[at]) > 0 then return true, #reply end
  end
  return false, #reply
end

-- Whether an entry has the given message ID; and how many bytes were read. The first value is also true if the entry
-- was deleted, because a deleted entry may still be pending.
local function has_id(stream, entry, id)
  local found = redis.call('XRANGE', stream, entry, entry)
  local body = found[1] and found[1][2]
  local same = not body or entry == id -- without a field id, the entry ID counts as the message ID
  for i = 1, body and #body or 0, 2 do
    if body[i] == 'id' then same = body[i + 1] == id end
  end
  return same, bytes_of(body)
end

-- Adds one to a number of up to 20 digits, as text.
local function plus_one(number)
  local front, nines = string.match(number, '^(%d-)(9*)$')
  if front == '' then return '1' .. string.rep('0', #nines) end
  return string.sub(front, 1, -2) .. string.char(string.byte(front, -1) + 1) .. string.rep('0', #nines)
end

-- The entry ID that follows id.
local function successor(id)
  local ms, seq = id_parts(id)
  if #seq < 15 then return ms .. '-' .. digits(tonumber(seq) + 1) end
  local most = '18446744073709551615' -- 2^64 - 1
  if seq ~= most then return ms .. '-' .. plus_one(seq) end
  if ms ~= most then return plus_one(ms) .. '-0' end
  return id -- the largest possible ID
end

-- Returns two entry IDs: bound, below which every group has acknowledged all entries; and delivered, the last entry
-- that every group has been given.
local function bounds(stream, groups)
  local bound, delivered
  for _, group in ipairs(groups) do
    local own = successor(group.last)
    if group.pending > 0 then
      local oldest = redis.call('XPENDING', stream, group.name, '-', '+', 1)
      if oldest[1] and less(oldest[1][1], own) then own = oldest[1][1] end
    end
    if not bound or less(own, bound) then bound = own end
    if not delivered or less(group.last, delivered) then delivered = group.last end
  end
  return bound, delivered
end

-- Trims entries below bound. It trims whole stream nodes first, up to limit entries. If no whole node is below bound,
-- it trims exactly, which removes less than one node. A node has 100 entries unless the server is configured otherwise.
-- With a limit below 100 no node would be trimmed, and the exact trim would then remove all entries at once.
local function trim_below(stream, bound, limit)
  local freed = redis.call('XTRIM', stream, 'MINID', '~', bound, 'LIMIT', math.max(limit, 100))
  return freed > 0 and freed or redis.call('XTRIM', stream, 'MINID', bound)
end

-- How many entries a script may look up in the pending lists of all groups: 4,000 pairs of an entry and a group.
-- Groups that hold nothing do not count.
local function lookup_limit(groups)
  local holding = 0
  for _, group in ipairs(groups) do
    if group.pending > 0 then holding = holding + 1 end
  end
  return math.max(1, math.floor(4000 / math.max(1, holding)))
end

-- Of the given entries (all between first and last), deletes those that every group has been given and no group holds.
-- For each group that holds any entries, it reads one range of pending entries, about twice as long as the list.
-- Entries behind that range are looked up one by one. settled_by: the calling script has acknowledged all of the
-- entries for this group, so the group holds none of them; nil if there is no such group. Returns the deleted entries.
local function delete_unneeded(stream, groups, ids, first, last, settled_by)
  local needed = {} -- entries that a group holds, or has not been given
  local most = 2 * #ids - 1
  for _, group in ipairs(groups) do
    local known_to = last -- the end of the range that was read
    if group.pending > 0 and group.name ~= settled_by then
      local pending = redis.call('XPENDING', stream, group.name, first, last, most)
      for _, one in ipairs(pending) do needed[one[1]] = true end
      if #pending == most then known_to = pending[most][1] end
    end
    if less(known_to, last) or less(group.last, last) then
      for _, id in ipairs(ids) do
        if not needed[id] then
          if less(group.last, id) then
            needed[id] = true
          elseif less(known_to, id) and redis.call('XPENDING', stream, group.name, id, id, 1)[1] then
            needed[id] = true
          end
        end
      end
    end
  end
  local gone = {}
  for _, id in ipairs(ids) do
    if not needed[id] then gone[#gone + 1] = id end
  end
  in_chunks('XDEL', stream, gone)
  return gone
end

-- The earliest and the latest of some entry IDs.
local function id_range(ids)
  local first, last = ids[1], ids[1]
  for i = 2, #ids do
    if less(last, ids[i]) then last = ids[i] elseif less(ids[i], first) then first = ids[i] end
  end
  return first, last
end

-- Does the part of free that is for several groups, for a group that was set back, and for more than 16 entries. first
-- and last: the earliest and the latest of the entries.
local function free_many(stream, group, groups, ids, first, last)
  if #ids > lookup_limit(groups) then return end
  if #ids > 16 then
    local bound = bounds(stream, groups)
    if less(first, bound) then
      trim_below(stream, bound, 1000)
      return
    end
    local older_ms = tonumber((id_parts(last))) - tonumber((id_parts(bound)))
    if older_ms <= 1000 then return end
  end
  delete_unneeded(stream, groups, ids, first, last, group)
end

-- Deletes entries from the stream if no group needs them. ids: the IDs of the entries, in any order. group: the calling
-- script has acknowledged each entry for this group, so the stream has a group. The entries are deleted in one of three
-- ways:
--
--   XDELEX  for up to 16 entries, if the server is Redis 8.6 or later and the user has the right to XDELEX.
--   XTRIM   for more than 16 entries. A trim costs next to nothing for each entry. It deletes the entries below a
--           bound: the oldest entry that a group still needs. If no entry of ids is below the bound, the trim waits for
--           the call that acknowledges the entries for the slowest group.
--   XDEL    for the other entries. If the stream has no other group, and the group was not set back, free deletes them
--           at once. Otherwise free asks the other groups first, and keeps the entries that a group needs. free also
--           uses XDEL for more than 16 entries if the bound is more than a second older than them, because a trim may
--           then delete nothing for a long time.
local function free(stream, group, ids)
  if #ids == 0 then return end
  -- XDELEX checks all groups itself. On a stream without groups it would delete all given entries; this stream has a
  -- group. Before Redis 8.6, XDELEX may keep an entry because it still counts a destroyed group. The in-process server
  -- has no version number.
  if #ids <= 16 and (redis.REDIS_VERSION_NUM or 0) >= 0x080600 then
    -- The user may lack the right to XDELEX, because older servers refuse a rule that names it. acl_check_cmd raises an
    -- error if an operator has removed XDELEX by rename-command. Each call of free makes both checks again, because a
    -- failover may have moved the script to an older server.
    local answered, allowed = pcall(redis.acl_check_cmd, 'XDELEX', stream, 'ACKED', 'IDS', '1', '0-0')
    if answered and allowed then
      redis.call('XDELEX', stream, 'ACKED', 'IDS', #ids, unpack(ids))
      return
    end
  end
  local groups = groups_of(stream)
  if #groups == 0 then return end
  local first, last = id_range(ids)
  -- If XGROUP SETID has set the group back, the group needs the entries again.
  if #groups == 1 and #ids <= 16 and not less(groups[1].last, last) then
    redis.call('XDEL', stream, unpack(ids))
  else
    free_many(stream, group, groups, ids, first, last)
  end
end
