-- pass_turns: the sweep of ordering keys. Makes the next message of a key due if the entry or retry that held the key
--   is gone, or if every group has acknowledged the entry (for workers that only call XACK); also removes places in
--   line whose message does not wait any more. A call looks at a part of the keys.
-- Uses: base history entry free key
-- KEYS[1] stream (stream)
-- KEYS[2] due (zset)
-- KEYS[3] meta (hash)
-- KEYS[4] wake (stream)
-- KEYS[5] turns (zset)
-- ARGV[1] cursor (string, the ordering key after which to go on; '' at first)
-- ARGV[2] rank (integer, how many parked members of the schedule earlier calls of this round looked at; 0 at first)
-- ARGV[3] limit (integer, how many ordering keys, parked members, and places in line to look at, of each)
-- ARGV[4] place (string, the member of turns after which to go on; '' at first)
-- Returns: cursor (string, '' = the round of the keys is complete), rank (integer, 0 = the round of the parked members
--   is complete), freed (integer, holders of a key that were gone), moved (integer, messages that became due), place
--   (string, '' = the round of the places is complete), cleared (integer, places removed)
-- Complexity: O(limit × log n), and O(groups) for each key in flight; it reads at most 1 MiB of entries and metas, and
--   one more of each
-- If a command fails here: a later call does what this one did not do.
-- Run twice: harmless.
local stream, due, meta, wake, turns = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local cursor, rank, limit, place = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local bad = wrong_type({stream, 'stream', due, 'zset', meta, 'hash', wake, 'stream'})
if bad then return bad end
local groups = groups_of(stream)
-- This changes nothing. It fails if turns has another type. A server at maxmemory always accepts it, and then accepts
-- this script's further writes, too.
redis.call('ZREM', turns, '')
-- Everything is known before the first write that changes anything: the types of the keys.

local bytes = 0
local entries, key_of = {}, {} -- entries that hold an ordering key, and their keys by entry
-- Pairs of an ordering key that is free and its former holder; '' if the key had no holder.
local held = {}

-- Whether an entry is still in the stream, or is pending in a group although it was deleted.
local function exists(entry)
  local found = redis.pcall('XRANGE', stream, entry, entry)
  bytes = bytes + bytes_of(not found.err and found[1] and found[1][2])
  for _, group in ipairs(groups) do
    if group.pending > 0 and redis.call('XPENDING', stream, group.name, entry, entry, 1)[1] then return true end
  end
  return not found.err and found[1] ~= nil
end

-- Looks at a holder of a key, an entry or a retry. An entry that exists is added to entries: whether any group needs it
-- is looked up later, for all entries together. A holder that is gone is added to held. A retry that is still scheduled
-- keeps the key.
local most_entries = lookup_limit(groups)
local function check_holder(key, holder_name)
  local is_entry = string.find(holder_name, '^%d+%-%d+$')
  if is_entry and exists(holder_name) then
    if #entries < most_entries then
      entries[#entries + 1] = holder_name
      key_of[holder_name] = key
    end
  elseif is_entry or not redis.call('ZSCORE', due, holder_name) then
    add_pair(held, key, holder_name)
  end
end

local looked, start_cursor = 0, cursor
while looked < limit and bytes < MOST_BYTES and #entries < most_entries do
  -- A blank is the byte after SEP, so the range begins behind all members of the last key.
  local first = redis.call('ZRANGEBYLEX', turns, cursor == '' and '-' or '(' .. cursor .. ' ', '+', 'LIMIT', 0, 1)[1]
  bytes = bytes + (first and #first or 0)
  looked = looked + 1
  cursor = first and string.match(first, '^([^' .. SEP .. ']+)' .. SEP) or ''
  if not first then break end
  local busy = {} -- the first 100 holders of the key; a later call looks at the others, when these are gone
  if cursor ~= '' then
    local from, to = '[' .. in_flight(cursor, ''), '(' .. cursor .. SEP .. 'busy '
    busy = redis.call('ZRANGEBYLEX', turns, from, to, 'LIMIT', 0, 100)
  end
  for _, one in ipairs(busy) do
    if bytes < MOST_BYTES then check_holder(cursor, string.sub(one, #cursor + 7)) end
  end
  if #busy == 0 then
    local waits = string.sub(first, #cursor + 1, #cursor + 6) == SEP .. 'wait' .. SEP
    if not waits then redis.call('ZREM', turns, first) end -- added by another client
    if cursor ~= '' then add_pair(held, cursor, '') end
  end
end
if #entries > 0 and #groups > 0 then
  local gone = delete_unneeded(stream, groups, entries, id_range(entries))
  for _, entry in ipairs(gone) do add_pair(held, key_of[entry], entry) end
end

local before, soonest = earliest_due(due), nil
local freed, moved = 0, 0
for i = 1, #held, 2 do
  if held[i + 1] ~= '' then freed = freed + 1 end
  redis.call('ZREM', turns, in_flight(held[i], held[i + 1]))
  local at, more = hand_over(due, turns, held[i])
  local tries = 1
  while more and tries < 10 do
    at, more = hand_over(due, turns, held[i])
    tries = tries + 1
  end
  if at then
    soonest = earlier(soonest, at)
    moved = moved + 1
  end
  if more then
    -- Ten calls of hand_over found only places of cancelled or moved messages, and further messages may wait. So the
    -- next call begins where this one did. SEP stands for the beginning, because '' means that the round is complete.
    freed = freed + 1
    cursor = start_cursor == '' and SEP or start_cursor
    break
  end
end

-- Looks at the parked members of the schedule. A parked member that has no place in line, or whose ordering key cannot
-- be read any more, becomes due, because nothing else would ever make it due: drain then moves or buries it. A due time
-- of 1e15 or later is never due, so such a member stays.
local start = redis.call('ZCOUNT', due, '-inf', '(' .. digits(PARKED)) + rank
local last = rank + limit
repeat
  local one = redis.call('ZRANGE', due, start, start, 'WITHSCORES')
  local at = one[1] and parked_due(one[2])
  local fields = at and redis.call('HGET', meta, one[1])
  local key = fields and key_in(fields)
  bytes = bytes + (one[1] and #one[1] or 0) + (fields and #fields or 0)
  start = start + 1
  rank = at and rank + 1 or 0
  if at and (key and not redis.call('ZSCORE', turns, in_line(key, at, one[1])) or not key and at < 1e15) then
    redis.call('ZADD', due, 'XX', digits(at), one[1])
    soonest = earlier(soonest, at)
    moved = moved + 1
  end
until not at or rank >= last or bytes >= MOST_BYTES
wake_if_earlier(wake, before, soonest)

-- Removes places in line whose message does not wait any more: clients that cancel or move messages with plain commands
-- leave them.
local cleared = 0
for _ = 1, limit do
  local next_place = redis.call('ZRANGEBYLEX', turns, place == '' and '-' or '(' .. place, '+', 'LIMIT', 0, 1)[1]
  place = next_place or ''
  if not next_place then break end
  local at, member = string.match(place, '^[^' .. SEP .. ']+' .. SEP .. 'wait' .. SEP .. '(%d+)' .. SEP .. '(.*)$')
  local score = member and redis.call('ZSCORE', due, member)
  if member and not (score and parked_due(score) == tonumber(at)) then
    cleared = cleared + redis.call('ZREM', turns, place)
  end
  bytes = bytes + #place
  if bytes >= MOST_BYTES then break end
end
return {cursor, rank, freed, moved, place, cleared}
