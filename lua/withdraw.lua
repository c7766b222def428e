-- withdraw: removes a member from the schedule if it is still exactly as `export` returned it. The caller has added the
--   message to another partition. If the member is a retry that holds an ordering key, the next message of that key
--   becomes due.
-- Uses: base entry key
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] turns (zset)
-- KEYS[5] wake (stream)
-- ARGV[1] member (bytes)
-- ARGV[2] score (string: its due time, Unix ms; it is compared without the mark of a member that waits for its key)
-- ARGV[3] body (bytes: the payload, '' = none)
-- ARGV[4] fields (string: the meta, '' = none)
-- ARGV[5] look (integer, 1 = remove nothing)
-- Returns: integer, 1 = removed, or with look = 1 found unchanged; 0 = the member changed, or is gone
-- Complexity: O(log n) + the size of the arguments
-- If a command fails here: no command can fail after the type check.
-- Run twice: harmless; the second run answers 0.
local due, payload, meta, turns, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local member, score, body, fields = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local look = ARGV[5] == '1'
local bad = wrong_type({due, 'zset', payload, 'hash', meta, 'hash', turns, 'zset'})
if bad then return bad end

local found = redis.call('ZSCORE', due, member)
if not found or number_of(due_of(found)) ~= number_of(due_of(score)) then return 0 end

-- Whether the member has this value in a hash. The length is compared first, because a value may be of any size.
local function has_value(hash, value)
  if redis.call('HSTRLEN', hash, member) ~= #value then return false end
  return value == '' or redis.call('HGET', hash, member) == value
end

if not has_value(payload, body) or not has_value(meta, fields) then return 0 end
local key = key_in(fields)
local k = {due = due, turns = turns, wake = wake, held = {}, places = {place_of(key, found, member)}}
if key and string.find(member, SEP, 1, true) then add_pair(k.held, key, member) end -- a retry may hold its key
-- Everything is known before the first write.
redis.call('ZREM', turns, '') -- removes nothing; on a server that refuses writes, a look fails here
if look then return 1 end
redis.call('ZREM', due, member)
redis.call('HDEL', payload, member)
redis.call('HDEL', meta, member)
-- Removes the member's place in line, and makes the next message of the key due if the member held the key. If one of
-- these fails, the sweep of keys does it later.
if k.places[1] then pcall(leave_line, k) end
if k.held[1] then pcall(pass_held, k) end
return 1
