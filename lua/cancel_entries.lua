-- cancel_entries: cancels messages in the stream: deletes entries that no group holds, marks deliveries that a consumer
--   holds, and ends deliveries that a worker gave back by XNACK; it looks at a part of the stream in each call, because
--   no key tells which entries a message has.
-- Uses: base history free key cancel entry
-- KEYS[1] stream (stream)
-- KEYS[2] due (zset)
-- KEYS[3] seen (zset)
-- KEYS[4] wake (stream)
-- KEYS[5] turns (zset)
-- KEYS[6] policy (hash)
-- KEYS[7] history (stream)
-- ARGV[1] cursor (entry ID to go on from, '0-0' at first)
-- ARGV[2] last (entry ID of the last entry to look at, '' = the newest one)
-- ARGV[3] limit (integer, entries to look at)
-- ARGV[4] group (string, '' = every group)
-- ARGV[5...] id (string)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[7] is given)
-- Returns: the next cursor ('' = all were looked at), last; then for each result five values: entry, id, group (with
--   verdict 2 the group that holds the entry, else ARGV[4]), verdict ('1' = cancelled: the groups that ARGV[4] names,
--   and that do not hold the entry, will not get it; '2' = a consumer of a group that ARGV[4] names holds the entry,
--   and learns of the cancellation when it next extends the entry; '3' = not cancelled, because the entry still waits
--   for its first delivery to this group, and another group needs it), consumer ('' = none)
-- Complexity: O(limit + entries found × groups); it reads at most 1 MiB and one entry more
-- If a command fails here: no command can fail after the checks.
-- Run twice: harmless; the second run finds only what a consumer still holds.
local stream, due, seen, wake, turns = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local policy, history = KEYS[6], KEYS[7]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local cursor, last, limit, group = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local bad = wrong_type({stream, 'stream', due, 'zset', seen, 'zset', turns, 'zset'})
if bad then return bad end
if not limit or not string.find(cursor, '^%d+%-%d+$') then
  return redis.error_reply('ERR cursor, or limit, does not parse: ' .. cursor)
end
local wanted, bytes = {}, 0
for i = 5, #ARGV do wanted[ARGV[i]] = true end
if last == '' then
  local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if not newest then return {'', '0-0'} end
  last, bytes = newest[1], bytes_of(newest[2])
end
-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XDEL', stream, '0-0')
-- Everything is known before the first write.
local groups, refused = groups_of(stream)
if refused and not string.find(refused, 'no such key', 1, true) then return redis.error_reply(refused) end

local UNREAD, DONE = 'unread', 'done'

-- The state of an entry in a group: UNREAD, DONE, or its XPENDING row.
local function state_of(one, entry)
  if less(one.last, entry) then return UNREAD end
  return one.pending > 0 and redis.call('XPENDING', stream, one.name, entry, entry, 1)[1] or DONE
end

-- Returns a plan for an entry, and writes nothing. ARGV[4] names the groups for which the caller cancels the message:
-- these are the asked groups. meant_for: the group that the entry is for; '' = every group. The fields of the plan:
--   delete: true if the script must delete the entry
--   given_back: the asked groups in which a worker gave the entry back by XNACK; no worker holds it there
--   holders: all other groups in which the entry is pending. Each holder has the field asked: true if it is an asked
--     group. The reply has a result only for such a holder.
--   unread: true if an asked group has not read the entry, and a group that is not asked needs the entry. The script
--     then keeps the entry.
--   is_first: true if the entry is a first delivery, which is for every group; false if it is a retry for one group
local function plan_for(entry, id, meant_for, key)
  local plan = {entry = entry, id = id, key = key, holders = {}, given_back = {}, is_first = meant_for == ''}
  -- Without groups, nobody has read the entry.
  local asked_unread, needed = #groups == 0 and group == '', false
  for _, one in ipairs(groups) do
    local state = state_of(one, entry)
    local is_meant = meant_for == '' or meant_for == one.name
    local is_asked = is_meant and (group == '' or group == one.name)
    if type(state) == 'table' and is_asked and is_given_back(state) then
      plan.given_back[#plan.given_back + 1] = one.name
    elseif type(state) == 'table' then
      plan.holders[#plan.holders + 1] = {
        group = one.name, consumer = state[2], idle = state[3], counter = state[4], asked = is_asked,
      }
    end
    if is_asked and state == UNREAD then asked_unread = true end
    if is_meant and not is_asked and state ~= DONE then needed = true end
  end
  local is_free = #plan.given_back > 0 and #plan.holders == 0
  plan.delete = (asked_unread or is_free) and not needed
  plan.unread = asked_unread and needed
  return plan
end

-- The fields id, for and key of an entry. Without a field id, the entry ID counts as the message ID; without one of the
-- others, its value is ''.
local function fields_of(one)
  local fields = {id = one[1], ['for'] = '', key = ''}
  for i = 1, #one[2], 2 do
    if fields[one[2][i]] then fields[one[2][i]] = one[2][i + 1] end
  end
  return fields
end

local plans, looked = {}, 0
-- Each entry that is found may be looked up in each group, and a call makes about 4,000 such look-ups.
local most = math.max(1, math.floor(4000 / math.max(1, #groups)))
while looked < limit and bytes < MOST_BYTES and #plans < most do -- one by one, because the next may be of any size
  local one = redis.call('XRANGE', stream, cursor, last, 'COUNT', 1)[1]
  cursor = one and one[1] ~= last and successor(one[1]) or ''
  if not one then break end
  local fields = fields_of(one)
  if wanted[fields['id']] and (group == '' or fields['for'] == '' or fields['for'] == group) then
    plans[#plans + 1] = plan_for(one[1], fields['id'], fields['for'], fields['key'])
  end
  looked = looked + 1
  bytes = bytes + bytes_of(one[2])
  if cursor == '' then break end
end
local reply = {cursor, last}
local k = {due = due, turns = turns, wake = wake, held = {}}

local function add_to_reply(plan, of_group, verdict, consumer)
  extend_values(reply, {plan.entry, plan.id, of_group, verdict, consumer})
end

-- Marks the delivery to a consumer. The consumer keeps the entry, and its idle time does not change.
local function mark(plan, holder)
  if not is_cancelled(holder.counter) then
    local counter = digits(CANCELLED_FROM + holder.counter)
    redis.call('XCLAIM', stream, holder.group, holder.consumer, 0, plan.entry,
      'IDLE', holder.idle, 'RETRYCOUNT', counter, 'JUSTID')
    if record then
      local values = {'id', plan.id, 'group', holder.group}
      note_values(record, 'cancelling', 'entry', plan.entry, values, holder.consumer, digits(holder.idle))
    end
  end
  if holder.asked then add_to_reply(plan, holder.group, '2', holder.consumer) end
end

-- Ends the deliveries that nobody works on, because a worker gave them back.
local function end_given_back(plan)
  for _, one in ipairs(plan.given_back) do redis.call('XACK', stream, one, plan.entry) end
  if #plan.given_back > 0 and not plan.delete then
    add_to_reply(plan, group, '1', '')
    if record then note_values(record, 'cancelled', 'entry', plan.entry, {'id', plan.id, 'group', group}, '', '') end
  end
end

for _, plan in ipairs(plans) do
  end_given_back(plan)
  for _, holder in ipairs(plan.holders) do
    if holder.asked or plan.delete then mark(plan, holder) end
  end
  if plan.delete and redis.call('XDEL', stream, plan.entry) == 1 then
    add_to_reply(plan, group, '1', '')
    if plan.is_first then redis.call('ZREM', seen, plan.id) end
    if record then note_values(record, 'cancelled', 'entry', plan.entry, {'id', plan.id, 'group', group}, '', '') end
    if #plan.holders == 0 and is_group(plan.key) then add_pair(k.held, plan.key, plan.entry) end
  elseif plan.unread then
    add_to_reply(plan, group, '3', '')
  end
end
-- Makes the next message due for each key that a deleted entry held, unless a consumer still holds the entry, and so
-- the key. If this fails, the sweep of keys does it later.
if k.held[1] then pcall(pass_held, k) end
if record then pcall(write_record, record) end
return reply
