-- Shared by every script: the server's clock, key types, the head of the schedule, the wake token.

-- Separates the parts of members that are no message ID: of retries, redriven letters and imported entries. No message ID may hold it.
local SEP = '\31'

-- What a script reads in one run: these bytes, and the one message more that comes to them. What then waits its turn is left for another run.
local MOST_BYTES = 1048576
local LATER = -9 -- the answer for that, where each has one

-- Whole milliseconds as text: Lua's own conversion keeps 14 digits and may turn to an exponent, and that of integers is the cheapest.
local function digits(n)
  return string.format(n % 1 == 0 and n > -1e15 and n < 1e15 and '%d' or '%.0f', n)
end

-- The server's clock: Unix ms, and the µs since.
local function now_ms()
  local t = redis.call('TIME')
  local us = tonumber(t[2])
  return tonumber(t[1]) * 1000 + math.floor(us / 1000), us % 1000
end

-- Whether due_at can read it. Asked before the first write.
local function is_time(when)
  return string.find(when, '^%+?-?%d+%.?%d*$') ~= nil
end

-- A point in time: '+1500' is 1,500 ms from now, '1795216995000' is Unix ms. Never in the middle of a millisecond.
local function due_at(when, now)
  if string.sub(when, 1, 1) == '+' then
    return now + math.ceil(tonumber(string.sub(when, 2)))
  end
  return math.ceil(tonumber(when))
end

-- want: {key, type, key, type, ...}. Returns an error reply for the first key that holds something else.
local function wrong_type(want)
  for i = 1, #want, 2 do
    local got = want[i] and redis.call('TYPE', want[i]) or 'none' -- a former call of a function lacks a key
    got = got['ok'] or got
    if got ~= want[i + 1] and got ~= 'none' then
      return redis.error_reply('WRONGTYPE key ' .. want[i] .. ' holds a ' .. got .. ' where a ' .. want[i + 1] .. ' belongs')
    end
  end
  return nil
end

-- The text of what a command has failed with.
local function error_of(failure)
  return type(failure) == 'table' and failure.err or tostring(failure)
end

-- Whether a command was refused because of who called it, in the words of any server.
local function is_denied(failure)
  local text = error_of(failure)
  return string.find(text, 'NOPERM', 1, true) or string.find(text, 'ACL failure', 1, true) or string.find(text, 'user executing the script can', 1, true)
end

-- What a script answers that a command has ended: the error, which names the key if it holds something else than want says.
local function naming_key(failure, want)
  local text, asked, bad = error_of(failure), false, nil
  if string.find(text, 'WRONGTYPE', 1, true) then asked, bad = pcall(wrong_type, want) end
  if asked and bad then text = bad.err end
  if not string.find(text, '^%u+ ') then return redis.error_reply('ERR ' .. text) end -- an error of Lua
  return {err = text, ignore_error_stats_update = true} -- the server has counted the command's
end

-- A score as a number. What is none to Lua (the in-process server: infinities, exponents) is far away, on its side.
local function number_of(score)
  return tonumber(score) or (string.find(score, '^-') and 0 or math.huge)
end

local PARKED = 4e15 -- added to the due time of a message that waits for its key: it stays a member of the schedule, and is not due

-- The due time of a member that waits for its key; nil when it does not.
local function parked_due(score)
  local n = number_of(score)
  return n >= PARKED and n < 2 * PARKED and n - PARKED or nil
end

-- A score as the due time that it stands for, as text.
local function due_of(score)
  local due = parked_due(score)
  return due and digits(due) or score
end

-- The earliest due time, or nil; and how many bytes that read.
local function head(due)
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if first[2] then return number_of(first[2]), #first[1] end
  return nil, 0
end

-- The bytes of an entry's fields; 0 without any.
local function bytes_of(body)
  local bytes = 0
  for i = 1, body and #body or 0 do bytes = bytes + #body[i] end
  return bytes
end

-- Tells the bridge that the head became earlier. A token that cannot be added costs lateness (the ceiling), never a message.
local function wake_up(wake, head)
  redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', digits(head))
end

local function wake_if_earlier(wake, before, after)
  if after and (not before or after < before) then wake_up(wake, after) end
end

-- The earlier of two points in time, of which either may be nil.
local function earlier(a, b)
  if not a or b and b < a then return b end
  return a
end

-- command(key, values...) in calls of at most 1,000 values, from one of them on. Returns the sum of their replies.
local function in_chunks(command, key, values, from)
  local sum = 0
  for first = from or 1, #values, 1000 do
    sum = sum + redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
  return sum
end

-- Whether a text is harmless beyond doubt: UTF-8, without separator, and the same in JSON. Cheap, and true of most.
local function is_simple(s)
  return string.find(s, '^[%w _.:/+-]*$') ~= nil
end

-- A string as JSON has it.
local function quoted(s)
  return is_simple(s) and '"' .. s .. '"' or cjson.encode(s)
end

-- A positive whole number of at most 15 digits, as text.
local function is_count(s)
  return #s <= 15 and string.find(s, '^[1-9][0-9]*$') ~= nil
end

local function add_pair(list, a, b)
  local n = #list
  list[n + 1] = a
  list[n + 2] = b
end

-- The fields and values that '1:a2:bc' stands for, as one list; nil when it does not parse, or is no list of fields.
local function field_list(text)
  local values, at = {}, 1
  while at <= #text do
    local colon = string.find(text, ':', at, true)
    local length = colon and string.find(string.sub(text, at, colon - 1), '^%d+$') and tonumber(string.sub(text, at, colon - 1))
    if not length or colon + length > #text then return nil end
    values[#values + 1] = string.sub(text, colon + 1, colon + length)
    at = colon + length + 1
  end
  return #values > 0 and #values % 2 == 0 and #values <= 4000 and values or nil
end
