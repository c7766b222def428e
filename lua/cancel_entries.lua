-- cancel_entries: cancels messages in the stream: deletes entries that no group holds, and marks deliveries that a
--   consumer holds; it works in steps, because no key says which entries carry a message.
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
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[7])
-- Returns: the next cursor ('' = all were looked at), last; then for each entry found, or for each group and entry:
--   entry, id, group ('' = every group that is asked for), verdict ('1' = cancelled, nobody will be given it; '2' = a
--   consumer holds it, and learns it with its next extend; '3' = not cancelled, because this group has not read it yet
--   and another group needs it), consumer ('' = nobody)
-- Complexity: O(limit + entries found × groups); it reads 1 MiB and one entry more at most
-- If a command fails here: nothing can after the checks.
-- Run twice: harmless; the second run finds only what a consumer still holds.
local stream, due, seen, wake, turns = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local policy, history = KEYS[6], KEYS[7]
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
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
redis.call('XDEL', stream, '0-0') -- deletes nothing; after this write a full server accepts the others
-- Everything is known before the first write.
local groups, refused = groups_of(stream)
if refused and not string.find(refused, 'no such key', 1, true) then return redis.error_reply(refused) end

local UNREAD, DONE = 'unread', 'done'

-- The state of an entry in a group: UNREAD, DONE, or its XPENDING row.
local function state_of(one, entry)
  if less(one.last, entry) then return UNREAD end
  return one.pending > 0 and redis.call('XPENDING', stream, one.name, entry, entry, 1)[1] or DONE
end

-- Decides what is done with an entry. delete: whether it is deleted. holders: the groups that hold it; those with asked
-- are reported. unread: whether the entry stays although a group that is asked for has not read it.
local function plan_for(entry, id, meant_for, key)
  local plan = {entry = entry, id = id, key = key, holders = {}, is_first = meant_for == ''}
  local asked_unread, needed = #groups == 0 and group == '', false
  for _, one in ipairs(groups) do
    local state = state_of(one, entry)
    local is_meant = meant_for == '' or meant_for == one.name
    local is_asked = is_meant and (group == '' or group == one.name)
    if type(state) == 'table' then
      plan.holders[#plan.holders + 1] = {
        group = one.name, consumer = state[2], idle = state[3], counter = state[4], asked = is_asked,
      }
    end
    if is_asked and state == UNREAD then asked_unread = true end
    if is_meant and not is_asked and state ~= DONE then needed = true end
  end
  plan.delete = asked_unread and not needed
  plan.unread = asked_unread and needed
  return plan
end

-- The fields that matter here; '' for those that the entry does not have.
local function fields_of(one)
  local fields = {id = one[1], ['for'] = '', key = ''}
  for i = 1, #one[2], 2 do
    if fields[one[2][i]] then fields[one[2][i]] = one[2][i + 1] end
  end
  return fields
end

local plans, looked = {}, 0
local most = math.max(1, math.floor(4000 / math.max(1, #groups)))
while looked < limit and bytes < MOST_BYTES and #plans < most do -- one by one: the next may be of any size
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

local function answer(plan, of, verdict, consumer)
  extend_values(reply, {plan.entry, plan.id, of, verdict, consumer})
end

-- Marks the delivery to a consumer. The consumer keeps the entry, and its idle time does not change.
local function mark(plan, holder)
  if not is_cancelled(holder.counter) then
    local counter = digits(CANCELLED_FROM + holder.counter)
    redis.call('XCLAIM', stream, holder.group, holder.consumer, 0, plan.entry,
      'IDLE', holder.idle, 'RETRYCOUNT', counter, 'JUSTID')
    if story then
      local values = {'id', plan.id, 'group', holder.group}
      note_values(story, 'cancelling', 'entry', plan.entry, values, holder.consumer, digits(holder.idle))
    end
  end
  if holder.asked then answer(plan, holder.group, '2', holder.consumer) end
end

for _, plan in ipairs(plans) do
  for _, holder in ipairs(plan.holders) do
    if holder.asked or plan.delete then mark(plan, holder) end
  end
  if plan.delete and redis.call('XDEL', stream, plan.entry) == 1 then
    answer(plan, group, '1', '')
    if plan.is_first then redis.call('ZREM', seen, plan.id) end
    if story then note_values(story, 'cancelled', 'entry', plan.entry, {'id', plan.id, 'group', group}, '', '') end
    if #plan.holders == 0 and is_group(plan.key) then add_pair(k.held, plan.key, plan.entry) end
  elseif plan.unread then
    answer(plan, group, '3', '')
  end
end
if k.held[1] then pcall(pass_held, k) end
if story then pcall(tell, story) end
return reply
