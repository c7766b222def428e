-- Shared by the scripts that search messages: the filter, and the bounds of one call.

-- A call ends after about this much time, in seconds. A call does not stop in the middle of a message.
local MOST_SECONDS = 0.001

-- The processor time of the server, in seconds. Redis 7.0 does not have os.clock, but its TIME advances while a
-- script runs. On later servers TIME stands still.
local has_clock, clock = pcall(function() return os.clock end)
local began = 0 -- when the call began, as seconds returns it
local looking_began = 0 -- when the call began to look at messages
local function seconds()
  if has_clock then return clock() end
  local ms, us = now_ms()
  return ms / 1000 + us / 1000000
end

local function start_clock()
  began = seconds()
end

-- Starts the time of a call. It starts after the filter is decoded, because decoding 1,000 IDs may take as long, and
-- then the call would look at nothing.
local function start_looking()
  looking_began = seconds()
end

-- The time that this call took so far, in µs; 0 if the server does not tell it.
local function used_us()
  return math.max(0, math.floor((seconds() - began) * 1000000))
end

-- Whether the call has used its time.
local function is_over()
  return seconds() - looking_began >= MOST_SECONDS
end

local MOST_UNTIMED = 64 * 1024 -- bytes that are read until the clock is asked again
local timed = 0 -- bytes that were read when the clock was asked last

-- Whether to ask the clock: after each 8th message, and after many bytes.
local function is_time(looked, bytes)
  if looked % 8 ~= 0 and bytes - timed < MOST_UNTIMED then return false end
  timed = bytes
  return true
end

-- Decodes a filter, a text as field_list reads it. Names: id and state (each may be there several times), prefix,
-- group, key, from_ms, until_ms, error, text, reason, and h:<name> for headers. Returns nil if the text does not parse.
local function filter_of(text)
  local list = text == '' and {} or field_list(text)
  if not list then return nil end
  local filter = {ids = nil, states = {}, headers = {}, has_headers = false}
  for i = 1, #list, 2 do
    local name, value = list[i], list[i + 1]
    if string.sub(name, 1, 2) == 'h:' then
      filter.headers[name] = value
      filter.has_headers = true
    elseif name == 'id' then
      filter.ids = filter.ids or {}
      filter.ids[value] = true
    elseif name == 'state' then
      filter.states[value] = true
    elseif name == 'from_ms' or name == 'until_ms' then
      filter[name] = tonumber(value)
      if not filter[name] then return nil end
    else
      filter[name] = value
    end
  end
  return filter
end

-- Whether a text contains a part. Without a part (nil) every text passes; a text of nil contains no part.
local function has_part(text, part)
  return not part or (type(text) == 'string' and string.find(text, part, 1, true) ~= nil)
end

-- Whether an ID passes the filter.
local function passes_id(filter, id)
  if filter.ids and not filter.ids[id] then return false end
  return not filter.prefix or string.sub(id, 1, #filter.prefix) == filter.prefix
end

-- Whether a due time passes the filter. due: Unix ms; nil = unknown.
local function passes_due(filter, due)
  if not filter.from_ms and not filter.until_ms then return true end
  if not due or filter.from_ms and due < filter.from_ms then return false end
  return not filter.until_ms or due < filter.until_ms
end

-- Whether fields, by name, pass the filter's headers, its key and its part of the error.
local function passes_fields(filter, fields)
  for name, value in pairs(filter.headers) do
    if fields[name] ~= value then return false end
  end
  return (not filter.key or fields['key'] == filter.key) and has_part(fields['error'], filter.error)
end
