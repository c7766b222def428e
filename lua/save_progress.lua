-- save_progress: stores how far the work on a pending entry has come, so that the next attempt can go on from there.
-- Uses: base progress cancel
-- KEYS[1] stream (stream)
-- KEYS[2] progress (hash)
-- ARGV[1] group (string)
-- ARGV[2] consumer (string)
-- ARGV[3] entry (entry ID)
-- ARGV[4] id (string: the message ID with which the entry was delivered)
-- ARGV[5] cursor (bytes, 4,096 at most: how far the work has come; '' = the next attempt begins anew)
-- Returns: integer, 1 = stored; 0 = lost: the consumer does not hold the entry any more, and nothing is stored; 2 =
--   cancelled: the message needs no more work, and nothing is stored
-- Complexity: O(log n)
-- If a command fails here: nothing is stored.
-- Run twice: harmless.
local stream, progress, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local entry, id, cursor = ARGV[3], ARGV[4], ARGV[5]
local bad = wrong_type({stream, 'stream', progress, 'hash'})
if bad then return bad end
if #cursor > MAX_PROGRESS_BYTES then
  return redis.error_reply('ERR cursor has ' .. #cursor .. ' bytes; the limit is ' .. MAX_PROGRESS_BYTES)
end
if string.find(id, SEP, 1, true) then return redis.error_reply('ERR id holds the separator of retries') end
local own = pending_of(stream, group, entry)[1]
if not own or own[2] ~= consumer then return 0 end
if is_cancelled(own[4]) then return 2 end

-- HDEL of a missing field changes nothing. A server at maxmemory accepts HDEL, and after the first accepted write it
-- accepts the further writes of the script, too.
redis.call('HDEL', progress, SEP)
redis.call('HSET', progress, progress_field(entry, group), id .. SEP .. cursor)
return 1
