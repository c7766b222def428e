-- claim: gives one attempt the right to an effect for a while, with a fencing token; or ends that claim.
-- Uses: base
-- KEYS[1] once (string)
-- ARGV[1] action ('claim'; 'record' = the effect happened; 'give back' = it did not, so another attempt may claim it)
-- ARGV[2] claimer (1 to 32 letters and digits that name the attempt)
-- ARGV[3] token (integer, of the claim that ends; action claim: 0)
-- ARGV[4] hold (integer, ms for which the claim holds, 1 to 86,400,000; other actions: 0)
-- ARGV[5] keep (integer, ms for which the record stays after this call)
-- Returns: integer; action claim: the token, above all earlier tokens of this record; 0 = the effect happened; below
--   0 = minus the ms for which another attempt holds the claim; other actions: 1 = done; 0 = the claim is not the last
--   one, or the effect is recorded and cannot be given back, and nothing was changed
-- Complexity: O(1)
-- If a command fails here: nothing is claimed or ended, but the record may stay for longer.
-- Run twice: harmless; the same claimer gets the same token, and a claim that ended stays ended.
local once, action, claimer = KEYS[1], ARGV[1], ARGV[2]
local token, hold, keep = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local MOST_HOLD = 86400000
local MOST_TOKEN = 9e15 -- Lua's numbers are exact up to here
if #claimer > 32 or not string.find(claimer, '^%w+$') then
  return redis.error_reply('ERR claimer must be 1 to 32 letters and digits')
end
if not is_count(keep) then return redis.error_reply('ERR keep must be a positive whole number') end
if action == 'claim' and not (is_count(ARGV[4]) and hold <= MOST_HOLD) then
  return redis.error_reply('ERR hold must be 1 to ' .. digits(MOST_HOLD))
end
if action ~= 'claim' and not (token and token > 0 and token <= MOST_TOKEN) then
  return redis.error_reply('ERR token must be the token of a claim')
end
local now, fraction = now_ms()
-- The record is '<last token> <state> <claimer>'. The state is 'done', or the Unix ms until which the claim holds.
-- After a claim was given back, it is 0. A text of another form counts as no record.
local last, state, holder = string.match(redis.call('GETRANGE', once, 0, 79), '^(%d+) (%w+) (%w+)$')
last = tonumber(last or 0)
if last > MOST_TOKEN then last, state, holder = 0, nil, nil end

-- Returns the reply of the action claim: see Returns. The attempt holds the claim if the reply is a token.
local function claimed()
  if state == 'done' then return 0 end
  local left = (tonumber(state or 0) or 0) - now
  -- If more is left than a claim can hold, the clock was set back.
  local is_held = left > 0 and left <= MOST_HOLD
  if is_held and holder ~= claimer then return -left end
  if is_held then return last end
  return math.max(last + 1, now * 1000 + fraction)
end

-- Returns whether this action may end the claim.
local function may_end()
  -- Redis lost the record of this claim, for example in a failover, and nobody has claimed the effect since. An effect
  -- that happened is still recorded, so that it is not repeated.
  if last == 0 then return action == 'record' end
  return last == token and holder == claimer and not (state == 'done' and action == 'give back')
end

local reply = 1
if action == 'claim' then
  reply = claimed()
  if reply <= 0 then return reply end
  token, state = reply, digits(now + hold)
else
  if not may_end() then return 0 end
  state = action == 'record' and 'done' or '0'
end
local record = digits(token) .. ' ' .. state .. ' ' .. claimer

-- SET below sets the same expiry. A server at maxmemory always accepts PEXPIRE, and then accepts SET, too.
local function set_expiry()
  redis.call('PEXPIRE', once, keep)
end
-- Everything is known before the first write.
pcall(set_expiry) -- a caller without the permission is refused only by a server at maxmemory
redis.call('SET', once, record, 'PX', keep)
return reply
