-- take: takes n tokens out of a token bucket, or returns how long to wait for them; with n below 0, gives tokens back;
--   with n = 0, only tells when the next token is there.
-- Uses: base
-- KEYS[1] bucket (string)
-- ARGV[1] interval (integer, ns that one token takes to come back)
-- ARGV[2] burst (integer, how many tokens the bucket holds)
-- ARGV[3] n (integer, how many tokens to take, 1 to 1,000,000; if n is more than the bucket can hold, they are taken
--   when the bucket is full, and the next caller waits for the tokens that were missing; 0 = take none; below 0 = give
--   back tokens that were taken in vain)
-- Returns: integer, 0 = the tokens were taken or given back, else the µs until they can be taken; if n = 0, the µs
--   until one token is there, or minus the µs since one token has been there
-- Complexity: O(1)
-- If a command fails here: nothing is taken.
-- Run twice: the tokens are taken twice.
local bucket, each, burst, n = KEYS[1], tonumber(ARGV[1]) / 1000, tonumber(ARGV[2]), tonumber(ARGV[3])
local now, fraction = now_ms()
local now_us = now * 1000 + fraction
-- The bucket is stored as the time in µs at which it is full again, and the µs per token for which that time was
-- computed. The key expires at that time.
local full, former_each = string.match(redis.call('GETRANGE', bucket, 0, 63), '^(%d+%.?%d*) ?(%d*%.?%d*)$')
full, former_each = tonumber(full or 0), tonumber(former_each or 0) or each
-- After a change of the rate, as many tokens are missing as before, and come back at the new rate.
local changed = former_each ~= each and former_each > 0
if changed then full = now_us + (full - now_us) / former_each * each end
-- If the clock was set back, the wait is limited to the time in which a whole bucket and the largest n come back.
full = math.min(math.max(full, now_us), now_us + (burst + 1e6) * each)
-- The bucket has n tokens from the time full + (n - burst) * each on.
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
local value = string.format('%.2f %.3f', full, each)
local expiry_ms = digits(math.max(1, math.ceil((full - now_us) / 1000)))

-- SET below sets the same expiry. A server at maxmemory always accepts PEXPIRE, and then accepts SET, too.
local function set_expiry()
  redis.call('PEXPIRE', bucket, expiry_ms)
end
-- Everything is known before the first write.
pcall(set_expiry) -- a caller without the permission is refused only by a server at maxmemory
redis.call('SET', bucket, value, 'PX', expiry_ms)
return wait
