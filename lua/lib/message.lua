-- Shared by the scripts that take messages: parses their arguments, and compares messages with known ones.

-- The values of dedup with which a message may replace the scheduled message with its ID: 'replace' always, 'later' if
-- the new due time is later, 'earlier' if it is earlier.
local REPLACES = {replace = true, later = true, earlier = true}

-- Parses id, when, payload, meta, dedup of each message, from args[4] on. asked: the time from which a relative due
-- time counts, Unix ms. Returns six values: the IDs; the due times as numbers; the due times as text; whether any ID
-- must be compared with known ones; the earliest due time; and whether any message may replace another one. Returns nil
-- if an argument does not parse. Most messages of a call have the same due time, so the last one is kept, and is not
-- parsed again.
local function read_messages(args, asked)
  local ids, at, text = {}, {}, {}
  local compared, replacing = false, false
  local earliest, last = math.huge, nil
  local n = 0
  for i = 4, #args, 5 do
    local when, dedup = args[i + 1], args[i + 4]
    n = n + 1
    ids[n] = args[i]
    if dedup == '' and string.find(args[i], SEP, 1, true) then -- an imported retry must not overwrite another one
      dedup = '0'
      args[i + 4] = '0'
    end
    if when == last then
      at[n] = at[n - 1]
      text[n] = text[n - 1]
    else
      if not is_time(when) then return nil end
      at[n] = due_at(when, asked)
      text[n] = digits(at[n])
      last = when
      earliest = math.min(earliest, at[n])
    end
    if dedup ~= '' then
      if string.find(dedup, '[^0-9]') then
        if not REPLACES[dedup] then return nil end
        if string.find(args[i], SEP, 1, true) then args[i + 4] = '0' else replacing = true end
      end
      compared = true
    end
  end
  return ids, at, text, compared, earliest, replacing
end

-- Whether a message that may replace another one is taken. at: its due time. old: the score of the scheduled message
-- with its ID; nil if there is none, and then the message is taken unless known is true. known: whether the ID is in
-- its dedup window.
local function may_replace(dedup, at, old, known)
  if not old then return not known end
  old = parked_due(old) or old
  if dedup == 'later' then return at > old end
  return dedup ~= 'earlier' or at < old
end

-- Records for the history that a message was taken: as ready if it has an entry ID; else as scheduled if the verdict is
-- positive.
local function note_taken(record, verdict, id, entry, due)
  if entry then
    note(record, 'ready', id, ',"entry":"' .. entry .. '","attempt":"1","due_ms":"' .. due .. '"}')
  elseif verdict > 0 then
    note_member(record, 'scheduled', id, ',"due_ms":"' .. due .. '"}')
  end
end

-- Adds a message straight to the stream, and returns its entry ID. Returns nil if the meta is malformed. Returns false
-- if the message must go into the schedule, because it may become a dead letter, because it may have to wait for its
-- ordering key, or because the stream refuses it.
local function add_ready(stream, id, due, body, fields, now)
  local values, meant = entry_values(id, body, fields ~= '' and fields or nil, due)
  if not values then return nil end
  if has_expired(meant, now) or (meant['for'] or '') ~= '' or meant['key'] then return false end
  local added = redis.pcall('XADD', stream, '*', unpack(values))
  local refused = type(added) == 'table' and added.err
  -- If the key has another type, the first entry is refused already, so nothing is written yet.
  if refused and string.find(refused, 'WRONGTYPE', 1, true) then error(added) end
  return not refused and added
end

-- The reply to a repeated call: 0 for each message whose refusal is remembered, 3 for each other message, which the
-- first call took. A refusal that has ended belongs to an earlier call with the same token, so it does not count.
local function repeated_reply(seen, token, at, now)
  local reply = {}
  for n = 1, #at do
    local refused = redis.call('ZSCORE', seen, refusal(token, 5 * n - 1))
    add_pair(reply, refused and tonumber(refused) > now and 0 or 3, at[n])
  end
  return reply
end

-- The members of a set, as a list.
local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end

-- Removes scheduled messages whose replacements went straight into the stream. replaced: a set of IDs.
local function unschedule(due, payload, meta, replaced)
  local ids = names_of(replaced)
  if in_chunks('ZREM', due, ids) > 0 then
    in_chunks('HDEL', payload, ids)
    in_chunks('HDEL', meta, ids)
  end
end

-- For each ID, the score of the scheduled message and the end of the dedup window, in two lists of texts. An ID that is
-- not scheduled, or not remembered, has false in the list.
local function known_of(due, seen, ids)
  local scheduled, windows = {}, {}
  for first = 1, #ids, 1000 do
    local last = math.min(first + 999, #ids)
    extend_values(scheduled, redis.call('ZMSCORE', due, unpack(ids, first, last)))
    extend_values(windows, redis.call('ZMSCORE', seen, unpack(ids, first, last)))
  end
  return scheduled, windows
end
