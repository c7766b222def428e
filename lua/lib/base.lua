-- Shared by every script: the server's clock, key types, the head of the schedule, the wake token.

-- Separates the parts of a schedule member that is not a plain message ID: a retry, a redriven letter or an imported
-- entry. A message ID must not contain it.
local SEP = '\31'

-- A script stops reading after this many bytes; it reads the message that reaches the limit whole. The rest is left for
-- another run.
local MOST_BYTES = 1048576
local LATER = -9 -- the answer per message for the rest

-- Whole milliseconds as text. Lua's own conversion keeps 14 digits and may write an exponent. '%d' is the cheapest
-- format, and used where it is exact.
local function digits(n)
  return string.format(n % 1 == 0 and n > -1e15 and n < 1e15 and '%d' or '%.0f', n)
end

-- The server's clock: Unix ms, and the µs within that millisecond.
local function now_ms()
  local t = redis.call('TIME')
  local us = tonumber(t[2])
  return tonumber(t[1]) * 1000 + math.floor(us / 1000), us % 1000
end

-- Whether due_at can parse the text. Called before the first write.
local function is_time(when)
  return string.find(when, '^%+?-?%d+%.?%d*$') ~= nil
end

-- A point in time, in Unix ms: '+1500' is 1,500 ms from now, '1795216995000' is absolute. Fractions of a millisecond
-- are rounded up.
local function due_at(when, now)
  if string.sub(when, 1, 1) == '+' then
    return now + math.ceil(tonumber(string.sub(when, 2)))
  end
  return math.ceil(tonumber(when))
end

-- want: {key, type, key, type, ...}. Returns an error reply for the first key of another type.
local function wrong_type(want)
  for i = 1, #want, 2 do
    local got = want[i] and redis.call('TYPE', want[i]) or 'none' -- nil: an older caller of a function gives fewer keys
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

-- The error reply of a script that a failed command has ended. After a WRONGTYPE it names the key of want that has
-- another type.
local function naming_key(failure, want)
  local text = error_of(failure)
  local asked, bad = false, nil
  if string.find(text, 'WRONGTYPE', 1, true) then asked, bad = pcall(wrong_type, want) end
  if asked and bad then text = bad.err end
  if not string.find(text, '^%u+ ') then return redis.error_reply('ERR ' .. text) end -- an error of Lua
  return {err = text, ignore_error_stats_update = true} -- the server has counted the command's error already
end

-- A score as a number. Lua cannot parse some scores of the in-process server (infinities, exponents): a negative one
-- becomes 0, any other one infinity.
local function number_of(score)
  return tonumber(score) or (string.find(score, '^-') and 0 or math.huge)
end

-- Added to the due time of a message that waits for its key: it stays a member of the schedule, and is not due.
local PARKED = 4e15

-- The due time of a member that waits for its key; nil when it does not.
local function parked_due(score)
  local n = number_of(score)
  return n >= PARKED and n < 2 * PARKED and n - PARKED or nil
end

-- The due time that a score stands for, as text; a waiting member's is taken without PARKED.
local function due_of(score)
  local due = parked_due(score)
  return due and digits(due) or score
end

-- The earliest due time, or nil; and how many bytes of members were read.
local function head(due)
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if first[2] then return number_of(first[2]), #first[1] end
  return nil, 0
end

-- The bytes of an entry's fields; 0 for nil.
local function bytes_of(body)
  local bytes = 0
  for i = 1, body and #body or 0 do bytes = bytes + #body[i] end
  return bytes
end

-- Wakes the bridge, because the head of the schedule became earlier. If the token cannot be added, messages are late by
-- the ceiling at most; none is lost.
local function wake_up(wake, head)
  redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', digits(head))
end

local function wake_if_earlier(wake, before, after)
  if after and (not before or after < before) then wake_up(wake, after) end
end

-- The earlier of two points in time; nil stands for none.
local function earlier(a, b)
  if not a or b and b < a then return b end
  return a
end

-- Calls command(key, values...) with at most 1,000 values at a time, from index `from` on (default 1). Returns the sum
-- of the replies.
local function in_chunks(command, key, values, from)
  local sum = 0
  for first = from or 1, #values, 1000 do
    sum = sum + redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
  return sum
end

-- Whether a text consists of plain ASCII characters: it has no separator, and JSON needs no escapes. The check is
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

local function add_pair(list, a, b)
  local n = #list
  list[n + 1] = a
  list[n + 2] = b
end

-- Decodes '1:a2:bc' (<length>:<bytes>, repeated) into a list of fields and values in turn. Returns nil if the text does
-- not parse, or if the list is empty, has an odd length, or more than 4,000 elements.
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
