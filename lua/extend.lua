-- extend: restarts the visibility timeout of a consumer's entries, and returns which entries the consumer has lost.
-- Uses: base history entry exit cancel
-- KEYS[1] stream (stream)
-- KEYS[2] dead (stream)
-- KEYS[3] policy (hash)
-- KEYS[4] history (stream)
-- ARGV[1] group (string)
-- ARGV[2] consumer (string)
-- ARGV[3...] entry, id (entry: entry ID; a space and the idle time to set, in ms, may follow; without these, the idle
--   time becomes 0; id: message ID, for the dead letter of an entry that was deleted)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[4] is given)
-- Returns: per entry an integer: 1 = extended; 0 = lost, because it is not pending for the consumer any more, or was
--   deleted; 2 = cancelled and extended: the message needs no more work, and ends whatever the consumer does with it
-- Complexity: O(log n) per entry; of cancelled entries it reads at most 1 MiB and one entry more
-- If a command fails here: some entries are extended, the others not.
-- Run twice: harmless.
local stream, dead, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local policy, history = KEYS[3], KEYS[4]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local bad = wrong_type({dead, 'stream'})
if bad then return bad end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XACK', stream, group, '0-0')
local now = now_ms()
-- Everything is known before the first write.
local reply, bytes = {}, 0

-- Extends a cancelled entry, so that its ordering key is not passed on while the consumer still works on it. An entry
-- that was deleted from the stream is not claimed, because the claim would remove it from the pending list.
local function extend_cancelled(entry, idle)
  local one = bytes < MOST_BYTES and redis.call('XRANGE', stream, entry, entry)[1]
  if not one then return end
  bytes = bytes + bytes_of(one[2])
  redis.call('XCLAIM', stream, group, consumer, 0, entry, 'IDLE', idle, 'JUSTID')
end

for i = 3, #ARGV, 2 do
  local entry, idle = string.match(ARGV[i], '^(%S+) ?(%d*)$')
  local extended = 0
  entry = entry or ARGV[i]
  local own = redis.call('XPENDING', stream, group, entry, entry, 1, consumer)
  if own[1] and is_cancelled(own[1][4]) then
    extended = 2
    extend_cancelled(entry, idle == '' and 0 or idle)
  elseif own[1] then
    -- JUSTID leaves the delivery counter as it is. If the entry was deleted from the stream, XCLAIM removes it from the
    -- pending list and returns nothing.
    extended = #redis.call('XCLAIM', stream, group, consumer, 0, entry, 'IDLE', idle == '' and 0 or idle, 'JUSTID')
    if extended == 0 then
      local letter = lost_body_values(group, entry, ARGV[i + 1], now)
      bury({dead = dead, stream = stream, record = record}, group, entry, letter, true)
    end
  end
  reply[#reply + 1] = extended
end
if record then pcall(write_record, record) end
return reply
