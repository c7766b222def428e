-- search_entries: finds entries of a stream, or dead letters, by ID, due time, headers, key, error, reason and payload,
--   and tells which groups have not read an entry, or hold it; it looks at a part of the stream in each call, and
--   returns no payloads; writes nothing.
-- Uses: base free search
-- KEYS[1] entries (stream)
-- ARGV[1] cursor (entry ID of the last entry that earlier calls looked at; '0-0' at first)
-- ARGV[2] last (entry ID of the last entry to look at; '' = the newest one)
-- ARGV[3] limit (integer, entries to look at; 0 = only return the ID of the newest entry)
-- ARGV[4] filter (string, as filter_of reads it; its states are dead, for letters, or ready and pending)
-- Returns: 1 = there may be further entries, 0 = there are none; the next cursor; last ('' = there are no entries); the
--   number of entries looked at; the time of the call in µs (0 = unknown); and for each entry that was found:
--   entry, bytes of the payload, n, n values (field names and values, without the payload), m, and m times: group,
--   consumer that holds the entry ('' = the group has not read it), idle time in ms, delivery counter
-- Complexity: O(limit + entries found × groups); it ends after about 1 ms or 1 MiB, and then finishes the entry
--   at which it is
-- If a command fails here: nothing was changed.
-- Run twice: harmless; it only reads.
local entries = KEYS[1]
start_clock()
local cursor, last, limit, filter = ARGV[1], ARGV[2], tonumber(ARGV[3]), filter_of(ARGV[4])
local bad = wrong_type({entries, 'stream'})
if bad then return bad end
if not limit or not filter or not string.find(cursor, '^%d+%-%d+$') then
  return redis.error_reply('ERR cursor, limit or filter does not parse')
end
start_looking()

local bytes = 0
if last == '' then
  local newest = redis.call('XREVRANGE', entries, '+', '-', 'COUNT', 1)[1]
  if not newest then return {0, cursor, '', 0, used_us()} end
  last, bytes = newest[1], bytes_of(newest[2])
end

local groups, refused = {}, nil
if not filter.states['dead'] then groups, refused = groups_of(entries) end
if refused and not string.find(refused, 'no such key', 1, true) then return redis.error_reply(refused) end

-- Splits an entry into its fields by name, and its list of field names and values without the payload.
local function parts_of(entry)
  local by_name, list, values = {id = entry[1]}, {}, entry[2]
  for i = 1, #values, 2 do
    by_name[values[i]] = values[i + 1]
    if values[i] ~= 'payload' then add_pair(list, values[i], values[i + 1]) end
  end
  return by_name, list
end

-- A due time in whole Unix ms, as Go reads it; nil if the text is not a number.
local function whole_due(text)
  local due = text and string.find(text, '^%-?%d+$') and tonumber(text)
  return due or nil
end

-- Whether the fields of an entry pass the filter, apart from states and groups.
local function passes(fields)
  return passes_id(filter, fields['id']) and passes_due(filter, whole_due(fields['due_ms'])) and
    passes_fields(filter, fields) and (not filter.reason or fields['reason'] == filter.reason) and
    has_part(fields['payload'], filter.text)
end

local lookups = 0 -- how often a group was asked about an entry

-- Returns four values for each group that has not read the entry, or holds it, if the filter asks for that group and
-- state; nil if no group is left. meant_for: the group that the entry is for; '' = every group.
local function places_of(entry, meant_for)
  local places = {}
  for _, group in ipairs(groups) do
    local is_asked = (meant_for == '' or meant_for == group.name) and (not filter.group or filter.group == group.name)
    if is_asked and less(group.last, entry) then
      if filter.states['ready'] then
        add_pair(places, group.name, '')
        add_pair(places, 0, 0)
      end
    elseif is_asked and filter.states['pending'] and group.pending > 0 then
      lookups = lookups + 1
      local held = redis.call('XPENDING', entries, group.name, entry, entry, 1)[1]
      if held then
        add_pair(places, group.name, held[2])
        add_pair(places, held[3], held[4])
      end
    end
  end
  local waits_for_any = #groups == 0 and filter.states['ready'] and not filter.group
  return (places[1] or waits_for_any) and places
end

local reply, looked = {1, cursor, last, 0, 0}, 0

local function add_to_reply(entry, fields, list, places)
  add_pair(reply, entry, #(fields['payload'] or ''))
  reply[#reply + 1] = #list
  for _, value in ipairs(list) do reply[#reply + 1] = value end
  reply[#reply + 1] = #places / 4
  for _, value in ipairs(places) do reply[#reply + 1] = value end
end

while looked < limit and bytes < MOST_BYTES and lookups < 1000 do -- one by one, because the next may be of any size
  local one = redis.call('XRANGE', entries, '(' .. cursor, last, 'COUNT', 1)[1]
  if not one then
    reply[1] = 0
    break
  end
  local fields, list = parts_of(one)
  if passes(fields) then
    local places = {}
    if filter.states['dead'] then
      if filter.group and fields['group'] ~= filter.group then places = nil end
    else
      places = places_of(one[1], fields['for'] or '')
    end
    if places then add_to_reply(one[1], fields, list, places) end
  end
  cursor = one[1]
  looked = looked + 1
  bytes = bytes + bytes_of(one[2])
  if is_time(looked, bytes) and is_over() then break end
end
reply[2], reply[4] = cursor, looked
reply[5] = used_us()
return reply
