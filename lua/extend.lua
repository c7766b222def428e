-- extend: restarts the visibility timeout of a consumer's entries, and returns which of them it has lost.
-- Uses: base history entry exit cancel
-- KEYS[1] stream (stream)
-- KEYS[2] dead (stream)
-- KEYS[3] policy (hash)
-- KEYS[4] history (stream)
-- ARGV[1] group (string)
-- ARGV[2] consumer (string)
-- ARGV[3...] entry, id (entry ID, which may be followed by a space and the idle time to set, ms; message ID, for the
--   dead letter of an entry that was deleted)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[4])
-- Returns: per entry an integer: 1 extended, 0 lost, 2 cancelled: it is extended, too, but the message needs no more
--   work, and every exit ends it
-- Complexity: O(log n) per entry; of cancelled entries it reads 1 MiB and one entry more at most
-- If a command fails here: some entries are extended, the others not.
-- Run twice: harmless.
local stream, dead, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local policy, history = KEYS[3], KEYS[4]
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
local bad = wrong_type({dead, 'stream'})
if bad then return bad end

redis.call('XACK', stream, group, '0-0') -- acknowledges nothing; after this write a full server accepts the others
local now = now_ms()
-- Everything is known before the first write.
local reply, bytes = {}, 0

-- Extends a cancelled entry, so that its key waits for the consumer that holds it. An entry that was deleted is not
-- claimed: the claim would remove it from the pending list.
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
    -- JUSTID does not change the delivery counter. XCLAIM drops an entry that was deleted from the pending list, and
    -- does not return it.
    extended = #redis.call('XCLAIM', stream, group, consumer, 0, entry, 'IDLE', idle == '' and 0 or idle, 'JUSTID')
    if extended == 0 then
      local letter = lost_body_values(group, entry, ARGV[i + 1], now)
      bury({dead = dead, stream = stream, story = story}, group, entry, letter, true)
    end
  end
  reply[#reply + 1] = extended
end
if story then pcall(tell, story) end
return reply
