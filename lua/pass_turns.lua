-- pass_turns: makes the next message of a key due, if the entry or retry that held the key is gone, or every group has
--   acknowledged it (for workers that only call XACK); also removes places in line without a waiting message. A call
--   looks at a part of the keys.
-- Uses: base history entry free key
-- KEYS[1] stream (stream)
-- KEYS[2] due (zset)
-- KEYS[3] meta (hash)
-- KEYS[4] wake (stream)
-- KEYS[5] turns (zset)
-- ARGV[1] cursor (string: the key after which to go on, '' at first)
-- ARGV[2] rank (integer, waiting members that earlier calls of this round looked at, 0 at first)
-- ARGV[3] limit (integer, how many keys, waiting members, and places in line to look at)
-- ARGV[4] place (string: the member of turns after which to go on, '' at first)
-- Returns: cursor ('' = the round is complete), rank (0 = complete), freed (integer, holders of a key that were gone),
--   moved (integer, messages that became due), place ('' = complete), cleared (integer, places removed)
-- Complexity: O(limit × log n), and O(groups) for each key in flight; it reads 1 MiB of entries and metas at most, and
--   one more of each
-- If a command fails here: the rest stays for the next pass.
-- Run twice: harmless.
local stream, due, meta, wake, turns = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local cursor, rank, limit, place = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local bad = wrong_type({stream, 'stream', due, 'zset', meta, 'hash', wake, 'stream'})
if bad then return bad end
local groups = groups_of(stream)
redis.call('ZREM', turns, '') -- removes nothing; after this write a full server accepts the others
-- Everything is known before the first write.

local bytes = 0
local entries, key_of = {}, {} -- entries that hold a key, and their keys
local held = {} -- pairs of a key and the entry or retry that held it

-- Whether an entry is still in the stream, or was given to a group that has not acknowledged it.
local function is_there(entry)
  local found = redis.pcall('XRANGE', stream, entry, entry)
  bytes = bytes + bytes_of(not found.err and found[1] and found[1][2])
  for _, group in ipairs(groups) do
    if group.pending > 0 and redis.call('XPENDING', stream, group.name, entry, entry, 1)[1] then return true end
  end
  return not found.err and found[1] ~= nil
end

-- Looks at a holder of a key. Whether any group needs an entry is looked up later, for all entries together.
local most_entries = room(groups)
local function look(key, by)
  local is_entry = string.find(by, '^%d+%-%d+$')
  if is_entry and is_there(by) then
    if #entries < most_entries then
      entries[#entries + 1] = by
      key_of[by] = key
    end
  elseif is_entry or not redis.call('ZSCORE', due, by) then
    add_pair(held, key, by)
  end
end

local looked, before_all = 0, cursor
while looked < limit and bytes < MOST_BYTES and #entries < most_entries do
  local first = redis.call('ZRANGEBYLEX', turns, cursor == '' and '-' or '(' .. cursor .. ' ', '+', 'LIMIT', 0, 1)[1]
  bytes = bytes + (first and #first or 0)
  looked = looked + 1
  cursor = first and string.match(first, '^([^' .. SEP .. ']+)' .. SEP) or ''
  if not first then break end
  local busy = {} -- the first 100 holders; the others when these are gone
  if cursor ~= '' then
    local from, to = '[' .. in_flight(cursor, ''), '(' .. cursor .. SEP .. 'busy '
    busy = redis.call('ZRANGEBYLEX', turns, from, to, 'LIMIT', 0, 100)
  end
  for _, one in ipairs(busy) do
    if bytes < MOST_BYTES then look(cursor, string.sub(one, #cursor + 7)) end
  end
  if #busy == 0 then
    local waits = string.sub(first, #cursor + 1, #cursor + 6) == SEP .. 'wait' .. SEP
    if not waits then redis.call('ZREM', turns, first) end -- added by another client
    if cursor ~= '' then add_pair(held, cursor, '') end
  end
end
if #entries > 0 and #groups > 0 then
  local gone = delete_unneeded(stream, groups, entries, span(entries))
  for _, entry in ipairs(gone) do add_pair(held, key_of[entry], entry) end
end

local before, soonest = head(due), nil
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
  if more then -- it passed over many cancelled ones, and others remain: the next call begins where this one did
    freed = freed + 1
    cursor = before_all == '' and SEP or before_all
    break
  end
end

-- A waiting member that is not in line any more, or whose key cannot be read any more, becomes due: drain decides what
-- becomes of it.
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

-- Messages that were cancelled or moved by plain commands leave a place behind.
local cleared = 0
for _ = 1, limit do
  local note = redis.call('ZRANGEBYLEX', turns, place == '' and '-' or '(' .. place, '+', 'LIMIT', 0, 1)[1]
  place = note or ''
  if not note then break end
  local at, member = string.match(note, '^[^' .. SEP .. ']+' .. SEP .. 'wait' .. SEP .. '(%d+)' .. SEP .. '(.*)$')
  local score = member and redis.call('ZSCORE', due, member)
  if member and not (score and parked_due(score) == tonumber(at)) then
    cleared = cleared + redis.call('ZREM', turns, note)
  end
  bytes = bytes + #note
  if bytes >= MOST_BYTES then break end
end
return {cursor, rank, freed, moved, place, cleared}
