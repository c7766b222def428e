-- take: takes so many out of a token bucket, or tells how long to wait for them; gives some back; or tells only when the next one is there.
-- Uses: base
-- KEYS[1] bucket (string)
-- ARGV[1] interval (integer, ns that one takes to come back)
-- ARGV[2] burst (integer, how many the bucket holds)
-- ARGV[3] n (integer, how many to take, 1 to 1,000,000; more than the bucket holds are taken when it is full, and are owed; 0 = look; negative: give back what was taken for nothing)
-- Returns: integer, 0 when they are taken, else µs after which they are there. A look: µs until one is there; negative: it has been for so long
-- Complexity: O(1)
-- If a command fails here: nothing is taken.
-- Run twice: they are taken twice.
local bucket, each, burst, n = KEYS[1], tonumber(ARGV[1]) / 1000, tonumber(ARGV[2]), tonumber(ARGV[3])
local now, fraction = now_ms()
local now_us = now * 1000 + fraction
-- The bucket is a time in µs, when it is full again, and the µs that one took to come back then; it is kept until then. After another rate
-- was set as many are missing as before. After a clock that went back nobody waits for more than may be owed.
local full, former = string.match(redis.call('GETRANGE', bucket, 0, 63), '^(%d+%.?%d*) ?(%d*%.?%d*)$')
full, former = tonumber(full or 0), tonumber(former or 0) or each
local changed = former ~= each and former > 0
if changed then full = now_us + (full - now_us) / former * each end
full = math.min(math.max(full, now_us), now_us + (burst + 1e6) * each)
local wait, taken = 0, false
if n == 0 then
  wait = math.ceil(full + (1 - burst) * each - now_us)
else
  wait = math.max(0, math.ceil(full + (math.min(n, burst) - burst) * each - now_us))
  taken = n < 0 or wait == 0
end
if not taken and not changed then return wait end
if taken then
  wait = 0
  full = math.max(full + n * each, now_us)
end
local kept = string.format('%.2f %.3f', full, each)
local left = digits(math.max(1, math.ceil((full - now_us) / 1000)))

-- Opens a full server for the rest, and changes nothing: SET says again how long the bucket is kept.
local function open_full()
  redis.call('PEXPIRE', bucket, left)
end
-- Everything is known before the first write. From now on what is missing comes back at this rate.
pcall(open_full) -- who may not do that is refused by a full server only
redis.call('SET', bucket, kept, 'PX', left)
return wait
