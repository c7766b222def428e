-- Shared by scripts that take messages: their arguments as lists.

-- id, when, payload, meta, dedup of each message from args[4] on. Returns the IDs, their due times as numbers and as text, and whether any ID is
-- to be compared with those that are known; nil when something does not parse. Most messages of a call have the same delay.
local function read_messages(args, asked)
  local ids, at, text, compared, last, n = {}, {}, {}, false, nil, 0
  for i = 4, #args, 5 do
    local when, dedup = args[i + 1], args[i + 4]
    n = n + 1
    ids[n] = args[i]
    if dedup == '' and string.find(args[i], SEP, 1, true) then dedup, args[i + 4] = '0', '0' end -- no retry is written over
    if when == last then
      at[n], text[n] = at[n - 1], text[n - 1]
    else
      if not is_time(when) then return nil end
      at[n] = due_at(when, asked)
      text[n] = digits(at[n])
      last = when
    end
    if dedup ~= '' then
      if string.find(dedup, '[^0-9]') then return nil end
      compared = true
    end
  end
  return ids, at, text, compared
end

-- The members of a set, as a list.
local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end

-- Takes out of the schedule what was to be replaced by a message that went straight into the stream. replaced: a set of IDs.
local function unschedule(due, payload, meta, replaced)
  local ids = names_of(replaced)
  if in_chunks('ZREM', due, ids) > 0 then
    in_chunks('HDEL', payload, ids)
    in_chunks('HDEL', meta, ids)
  end
end

-- The score of each member, as text; false for one that is not there.
local function scores(key, members)
  local found = {}
  for first = 1, #members, 1000 do
    local some = redis.call('ZMSCORE', key, unpack(members, first, math.min(first + 999, #members)))
    if first == 1 then found = some else extend_values(found, some) end
  end
  return found
end
