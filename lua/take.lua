-- take: takes n tokens out of a token bucket, or returns how long to wait for them; gives some back; or only looks when
--   the next one is there.
-- Uses: base
-- KEYS[1] bucket (string)
-- ARGV[1] interval (integer, ns that one token takes to come back)
-- ARGV[2] burst (integer, how many tokens the bucket holds)
-- ARGV[3] n (integer, how many to take, 1 to 1,000,000; more than the bucket holds are taken when it is full, and the
--   rest is owed; 0 = look; negative: give back what was taken in vain)
-- Returns: integer, 0 when they are taken, else µs until they can be. A look: µs until one token is there; negative:
--   for how many µs one has been there
-- Complexity: O(1)
-- If a command fails here: nothing is taken.
-- Run twice: the tokens are taken twice.
local bucket, each, burst, n = KEYS[1], tonumber(ARGV[1]) / 1000, tonumber(ARGV[2]), tonumber(ARGV[3])
local now, fraction = now_ms()
local now_us = now * 1000 + fraction
-- The bucket is stored as the time in µs at which it is full again, and the µs per token at that time; the key
-- expires then. After a change of the rate, as many tokens are missing as before. After the clock went back, nobody
-- waits for more than may be owed.
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

-- A write that changes nothing, after which a full server accepts the others: SET below sets the same expiry.
local function open_full()
  redis.call('PEXPIRE', bucket, left)
end
-- Everything is known before the first write. From now on the missing tokens come back at this rate.
pcall(open_full) -- who may not do that is refused by a full server only
redis.call('SET', bucket, kept, 'PX', left)
return wait
