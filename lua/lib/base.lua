-- Shared by every script: the server's clock, key types, the earliest due time in the schedule, the wake token.

-- Separates the parts of a schedule member that is not a plain message ID: a retry, a redriven letter or an imported
-- entry. A message ID must not contain it.
local SEP = '\31'

-- A script stops reading after this many bytes. The message that reaches the limit is still read whole. The script's
-- result for each message that it did not read is LATER: the caller sends these messages again.
local MOST_BYTES = 1048576
local LATER = -9

-- A whole number as text. Lua's own conversion keeps 14 digits and may write an exponent. '%d' is the cheapest format;
-- it is used where it is exact.
local function digits(n)
  return string.format(n % 1 == 0 and n > -1e15 and n < 1e15 and '%d' or '%.0f', n)
end

-- The server's clock: Unix ms, and the µs within that millisecond.
local function now_ms()
  local t = redis.call('TIME')
  local us = t[1] * 1e6 + t[2]
  return (us - us % 1000) / 1000, us % 1000
end

-- Whether due_at can parse the text. Called before the first write.
local function is_time(when)
  return string.find(when, '^%+?-?%d+%.?%d*$') ~= nil
end

-- A point in time, in Unix ms: '+1500' is 1,500 ms from now, '1795216995000' is absolute. Fractions of a millisecond
-- are rounded up. Returns nil if the text does not parse.
local function due_at(when, now)
  local plus, ms = string.match(when, '^(%+?)(-?%d+%.?%d*)$')
  return ms and math.ceil(ms) + (plus == '+' and now or 0)
end

-- Returns an error reply for the first key that has another type than wanted; nil if there is none. want: {key, type,
-- key, type, ...}. A key is nil if a client of an older version calls the Redis function with fewer keys.
local function wrong_type(want)
  for i = 1, #want, 2 do
    local got = want[i] and redis.call('TYPE', want[i]) or 'none'
    got = got['ok'] or got
    if got ~= want[i + 1] and got ~= 'none' then
      local is = ' holds a ' .. got .. ' where a ' .. want[i + 1] .. ' belongs'
      return redis.error_reply('WRONGTYPE key ' .. want[i] .. is)
    end
  end
  return nil
end

-- The text of a failed command's error.
local function error_of(failure)
  return type(failure) == 'table' and failure.err or tostring(failure)
end

-- Whether a command was refused because the caller lacks the permission. Each server has its own words for that.
local function is_denied(failure)
  local text = error_of(failure)
  for _, words in ipairs({'NOPERM', 'ACL failure', 'user executing the script can'}) do
    if string.find(text, words, 1, true) then return true end
  end
  return false
end

-- Builds a script's error reply from the error of the command that stopped the script. The server's own text for a
-- WRONGTYPE does not name the key; this reply does. want: the script's keys, as in wrong_type.
local function naming_key(failure, want)
  local text = error_of(failure)
  local may_ask, bad = false, nil
  if string.find(text, 'WRONGTYPE', 1, true) then may_ask, bad = pcall(wrong_type, want) end
  if may_ask and bad then text = bad.err end
  if not string.find(text, '^%u+ ') then return redis.error_reply('ERR ' .. text) end -- an error of Lua
  return {err = text, ignore_error_stats_update = true} -- the server has counted the command's error already
end

-- A score as a number. Lua cannot parse infinities and exponents as the in-process server writes them: a negative score
-- of these becomes 0, any other one infinity.
local function number_of(score)
  return tonumber(score) or (string.find(score, '^-') and 0 or math.huge)
end

-- A message that waits until its ordering key is free is parked: it stays in the schedule, and PARKED is added to its
-- due time, so that it is not due.
local PARKED = 4e15

-- The due time of a parked member, without PARKED; nil if the score is not that of a parked member.
local function parked_due(score)
  local n = number_of(score)
  return n >= PARKED and n < 2 * PARKED and n - PARKED or nil
end

-- The due time that a score stands for, as text. For a parked member, PARKED is subtracted first.
local function due_of(score)
  local due = parked_due(score)
  return due and digits(due) or score
end

-- The earliest due time in the schedule, as a number, or nil if the schedule is empty; and the size in bytes of the
-- member that was read. due: the key of the schedule.
local function earliest_due(due)
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if first[2] then return number_of(first[2]), #first[1] end
  return nil, 0
end

-- The size in bytes of an entry's field names and values; 0 for nil.
local function bytes_of(body)
  local bytes = 0
  for i = 1, body and #body or 0 do bytes = bytes + #body[i] end
  return bytes
end

-- Wakes the bridge, because the earliest due time in the schedule is now at (Unix ms). If the token cannot be added, no
-- message is lost, and messages are late by at most a bridge's longest sleep.
local function wake_up(wake, at)
  redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', digits(at))
end

-- Wakes the bridge if the earliest due time became earlier. before and after: the earliest due times before and after
-- the script's writes; nil = nothing was, or is, scheduled.
local function wake_if_earlier(wake, before, after)
  if after and (not before or after < before) then wake_up(wake, after) end
end

-- The earlier of two points in time, each of which may be nil. Returns nil if both are.
local function earlier(a, b)
  if not a or b and b < a then return b end
  return a
end

-- Calls a command with a key and a list of values, at most 1,000 values a call, because unpack takes no more. from: the
-- index of the first value to send (default 1). Returns the sum of the replies.
local function in_chunks(command, key, values, from)
  local sum = 0
  for first = from or 1, #values, 1000 do
    sum = sum + redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
  return sum
end

-- Whether a text consists of characters that need no escape in JSON and are neither SEP nor beyond ASCII. The check is
-- cheap, and most texts pass it.
local function is_simple(s)
  return string.find(s, '^[%w _.:/+-]*$') ~= nil
end

-- A string as a JSON literal.
local function quoted(s)
  return is_simple(s) and '"' .. s .. '"' or cjson.encode(s)
end

-- Whether s is a positive whole number of at most 15 digits.
local function is_count(s)
  return #s <= 15 and string.find(s, '^[1-9][0-9]*$') ~= nil
end

-- Appends two values to a list.
local function add_pair(list, a, b)
  local n = #list
  list[n + 1] = a
  list[n + 2] = b
end

-- Decodes a text of items <length>:<bytes>, such as '1:a2:bc', into a list in which field names and values alternate.
-- Returns nil if the text does not parse, or if the list is empty, has an odd length, or more than 4,000 elements.
local function field_list(text)
  local values, at = {}, 1
  while at <= #text do
    local colon = string.find(text, ':', at, true)
    local count = colon and string.sub(text, at, colon - 1)
    local length = count and string.find(count, '^%d+$') and tonumber(count)
    if not length or colon + length > #text then return nil end
    values[#values + 1] = string.sub(text, colon + 1, colon + length)
    at = colon + length + 1
  end
  return #values > 0 and #values % 2 == 0 and #values <= 4000 and values or nil
end
