-- search_due: finds members of the schedule by ID, due time, headers, key, error and payload; it looks at a part of the
--   schedule in each call, and returns no payloads; writes nothing.
-- Uses: base search
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- ARGV[1] cursor (integer, of the scan; '' = only look at the given members)
-- ARGV[2] scanned ('due', 'meta' = only find members that have a meta, or 'payload' = only find members that have a
--   payload)
-- ARGV[3] limit (integer, about how many members to look at)
-- ARGV[4] filter (string, as filter_of reads it; its states are scheduled and retrying)
-- ARGV[5...] member (string, a member to look at before the scan)
-- Returns: the cursor for the next call ('0' = the scan is complete); the number of members looked at; the time of the
--   call in µs (0 = unknown); the number of members left over, and these members: the call read them but had no time
--   to look at them, so send them with the next call; and for each member that was found: member, score, meta, bytes of
--   the payload
-- Complexity: O(limit); it ends after about 1 ms or 1 MiB, and then finishes the message and the step of the scan at
--   which it is
-- If a command fails here: nothing was changed.
-- Run twice: harmless; it only reads.
local due, payload, meta = KEYS[1], KEYS[2], KEYS[3]
start_clock()
local cursor, scanned, limit, filter = ARGV[1], ARGV[2], tonumber(ARGV[3]), filter_of(ARGV[4])
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end
if not limit or not filter or not string.find(cursor, '^%d*$') or scanned == 'payload' and not filter.text then
  return redis.error_reply('ERR cursor, limit or filter does not parse')
end
start_looking()

local reply, later, found = {cursor, 0, 0, 0}, {}, {}
local looked, bytes = 0, 0

-- The ID of a member, and the group of a retry; '' for a message that is for every group.
local function parts_of(member)
  local first = string.find(member, SEP, 1, true)
  local group = first and string.match(string.sub(member, first + 1), '^(.*)' .. SEP)
  if not group then return member, '' end
  return string.sub(member, 1, first - 1), group
end

-- Whether the member itself passes the filter: its ID, state and group. A prefix holds no SEP, so the member has it if
-- its ID has it; most members are refused by this first comparison.
local function passes_member(member)
  if filter.prefix and string.sub(member, 1, #filter.prefix) ~= filter.prefix then return false end
  local id, group = parts_of(member)
  if not passes_id(filter, id) then return false end
  if filter.group and filter.group ~= group then return false end
  return filter.states[group == '' and 'scheduled' or 'retrying']
end

-- The fields of a meta, by name; none if it does not parse.
local function fields_of(text)
  local ok, fields = pcall(cjson.decode, text)
  return ok and type(fields) == 'table' and fields or {}
end

-- The due time that a score stands for, in whole ms; fractions are rounded up.
local function whole_due_of(score)
  return math.max(0, math.min(1e15, math.ceil(number_of(due_of(score)))))
end

-- The meta of a member; '' if it has none. Adds its size to bytes.
local function meta_of(member)
  local text = redis.call('HGET', meta, member) or ''
  bytes = bytes + #text
  return text
end

-- Adds the member to found if the member passes the filter. Adds the size of what it reads to bytes. score, text, body:
-- the member's score, meta and payload; nil = not read yet.
local function look(member, score, text, body)
  if body and not has_part(body, filter.text) then return end
  if not passes_member(member) then return end
  score = score or redis.call('ZSCORE', due, member)
  if not score then return end
  local has_times = filter.from_ms or filter.until_ms
  if has_times and not passes_due(filter, whole_due_of(score)) then return end
  if filter.has_headers or filter.key or filter.error then
    text = text or meta_of(member)
    if not passes_fields(filter, fields_of(text)) then return end
  end
  if filter.text and not body then
    body = redis.call('HGET', payload, member) or ''
    bytes = bytes + #body
    if not has_part(body, filter.text) then return end
  end
  add_pair(found, member, score)
  add_pair(found, text or meta_of(member), body and #body or redis.call('HSTRLEN', payload, member))
end

local full = false -- whether the call must not look at further members

-- Looks at a member, or leaves it to the next call.
local function take(member, score, text, body)
  full = full or looked > 0 and (bytes >= MOST_BYTES or looked >= limit or is_time(looked, bytes) and is_over())
  if full then
    later[#later + 1] = member
    return
  end
  look(member, score, text, body)
  looked = looked + 1
  bytes = bytes + #member
end

local MOST_SMALL = 4096 -- bytes of a small payload
local largest = 0 -- size of the largest value of a hash that this call has read

-- How many fields the next step of the scan of a hash reads: one at first, because the next may be of any size. A hash
-- has its fields in a random order, so after 8 small fields few of the next 10 are large.
local function step_of_hash()
  return looked < 8 and 1 or math.max(1, math.min(10, math.floor(MOST_UNTIMED / (largest + 1))))
end

-- Takes the fields that a step of the scan of a hash returned. of_meta: the hash is meta; else it is payload.
local function take_fields(items, of_meta)
  for i = 1, #items, 2 do
    local member, value = items[i], items[i + 1]
    if of_meta then
      take(member, nil, value, nil)
    elseif #value < MOST_SMALL and not string.find(value, filter.text, 1, true) then -- most messages, so this is short
      looked = looked + 1
      bytes = bytes + #member
    else
      take(member, nil, nil, value)
    end
    if #value > largest then largest = #value end
    bytes = bytes + #value
  end
end

for i = 5, #ARGV do take(ARGV[i]) end
while cursor ~= '' and not full and looked < limit and bytes < MOST_BYTES do
  local page
  if scanned == 'meta' then
    page = redis.call('HSCAN', meta, cursor, 'COUNT', step_of_hash())
    take_fields(page[2], true)
  elseif scanned == 'payload' then
    page = redis.call('HSCAN', payload, cursor, 'COUNT', step_of_hash())
    take_fields(page[2], false)
  else
    page = redis.call('ZSCAN', due, cursor, 'COUNT', 10)
    for i = 1, #page[2], 2 do take(page[2][i], page[2][i + 1]) end
  end
  cursor = page[1]
  -- The clock is asked here, too, because a step may return no member, so that take is not called. After many
  -- deletions most steps do.
  if cursor == '0' or is_over() then break end
end
reply[1], reply[2], reply[4] = cursor, looked, #later
for _, member in ipairs(later) do reply[#reply + 1] = member end
for _, value in ipairs(found) do reply[#reply + 1] = value end
reply[3] = used_us()
return reply
