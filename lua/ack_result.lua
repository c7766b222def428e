-- ack_result: acknowledges an entry of a group as ack does, and stores the result of the work for a waiting caller.
-- Uses: base history entry free key
-- KEYS[1] stream (stream)
-- KEYS[2] due (zset)
-- KEYS[3] wake (stream)
-- KEYS[4] turns (zset)
-- KEYS[5] policy (hash)
-- KEYS[6] history (stream)
-- KEYS[7] result (string)
-- ARGV[1] group (string)
-- ARGV[2] entry (entry ID)
-- ARGV[3] id (string: the message ID; an entry with another one is not acknowledged)
-- ARGV[4] key (string: the message's ordering key; '' = it has none)
-- ARGV[5] attempt (integer, the attempt that ends)
-- ARGV[6] age (integer, ms for which the result is kept)
-- ARGV[7] value (bytes, 65,536 at most)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[6] is given)
-- Returns: integer, 1 = acknowledged, and the result is stored; 0 = lost: the entry was no longer pending, or has
--   another message ID, and nothing is stored
-- Complexity: O(log n) for each group that holds entries; it reads the entry
-- If a command fails here: the acknowledged entry may stay in the stream until trim.
-- Run twice: harmless; the second run answers 0.
local policy, history, group = KEYS[5], KEYS[6], ARGV[1]
local result, entry, id, key = KEYS[7], ARGV[2], ARGV[3], ARGV[4]
local attempt, age, value = ARGV[5], ARGV[6], ARGV[7]
local k = {stream = KEYS[1], due = KEYS[2], wake = KEYS[3], turns = KEYS[4]}
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
if not is_count(attempt) or not is_count(age) then
  return redis.error_reply('ERR attempt and age must be positive whole numbers')
end
if #value > 65536 then return redis.error_reply('ERR value has ' .. #value .. ' bytes; the limit is 65536') end

-- Everything is known before the first write, which is XACK.
local now = now_ms()
if not has_id(k.stream, entry, id) or redis.call('XACK', k.stream, group, entry) == 0 then return 0 end
-- SET below sets the same expiry. A server at maxmemory always accepts PEXPIRE, and then accepts SET, too.
redis.pcall('PEXPIRE', result, age)
redis.call('SET', result, digits(now) .. ' ' .. attempt .. ' ' .. entry .. '\n' .. value, 'PX', age)
if record then note_acknowledged(record, entry, id, group) end
if key ~= '' then k.key_of = {[entry] = key} end
free(k.stream, group, part_keyed(k, {entry}))
if k.left then pcall(end_turns, k) end
if record then pcall(write_record, record) end
return 1
