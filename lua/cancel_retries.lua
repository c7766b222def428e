-- cancel_retries: removes waiting retries, and redriven letters, of messages from the schedule for good; it scans a
--   part of the schedule in each call, because no key lists the members of a message.
-- Uses: base history entry free key waiting
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] turns (zset)
-- KEYS[5] wake (stream)
-- KEYS[6] policy (hash)
-- KEYS[7] history (stream)
-- ARGV[1] cursor ('0' at first, then the cursor of the last reply, on the same connection)
-- ARGV[2] limit (integer, members to scan)
-- ARGV[3] group (string, '' = every group)
-- ARGV[4...] id (string)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[7] is given)
-- Returns: the next cursor ('0' = all were scanned); then per retry that was cancelled: member, id, group ('' = a
--   redriven letter for every group), due (Unix ms)
-- Complexity: O(limit); it frees at most 16 MiB plus the members of one scan step
-- If a command fails here: no command can fail after the checks.
-- Run twice: harmless; the second run finds nothing.
local due, payload, meta, turns, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local policy, history = KEYS[6], KEYS[7]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local cursor, limit, group = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash'})
if bad then return bad end
if string.find(cursor, '[^0-9]') or cursor == '' or not limit then
  return redis.error_reply('ERR cursor, or limit, does not parse: ' .. cursor)
end

local ids = {}
for i = 4, #ARGV do ids[i - 3] = ARGV[i] end
-- To free a byte costs at most a sixteenth of what it costs to read one. So of the freed bytes a sixteenth counts
-- towards the 1 MiB after which the scan stops.
local following, found = waiting(due, cursor, limit, group, ids, function(member)
  return (redis.call('HSTRLEN', payload, member) + redis.call('HSTRLEN', meta, member)) / 16
end)
-- Everything is known before the first write, except the ordering keys: each meta is read just before it is removed.
local reply = {following}
local k = {due = due, turns = turns, wake = wake, held = {}, places = {}}
local has_turns = turns and found[1] and redis.call('EXISTS', turns) == 1
for i = 1, #found, 4 do
  if redis.call('ZREM', due, found[i]) == 1 then
    redis.call('HDEL', payload, found[i])
    local key = has_turns and key_in(redis.call('HGET', meta, found[i]))
    if key then
      k.places[#k.places + 1] = place_of(key, found[i + 3], found[i])
      add_pair(k.held, key, found[i])
    end
    redis.call('HDEL', meta, found[i])
    if record then note_member(record, 'cancelled', found[i], '}') end
    for j = i, i + 3 do reply[#reply + 1] = found[j] end
  end
end
-- Removes the places in line of the cancelled retries, and makes the next message due for each key that one of them
-- held. If one of these fails, the sweep of keys does it later.
if k.places[1] then pcall(leave_line, k) end
if k.held[1] then pcall(pass_held, k) end
if record then pcall(write_record, record) end
return reply
