-- Shared by the scripts that take messages: parses their arguments, and compares messages with known ones.

-- The values of dedup that let a message replace the scheduled one with its ID: always, or only with a later, or an
-- earlier, due time.
local REPLACES = {replace = true, later = true, earlier = true}

-- Parses id, when, payload, meta, dedup of each message, from args[4] on. Returns the IDs; the due times as numbers;
-- the due times as text; whether any ID must be compared with known ones; the earliest due time; and whether any
-- message may replace another one. Returns nil if an argument does not parse. Most messages of a call have the same
-- delay, so the last due time is kept.
local function read_messages(args, asked)
  local ids, at, text = {}, {}, {}
  local compared, replacing = false, false
  local earliest, last = math.huge, nil
  local n = 0
  for i = 4, #args, 5 do
    local when, dedup = args[i + 1], args[i + 4]
    n = n + 1
    ids[n] = args[i]
    if dedup == '' and string.find(args[i], SEP, 1, true) then -- it must not overwrite a retry
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

-- Whether a message that is due at `at` may be taken. old: the due time of the scheduled message that it would replace.
-- Without one, it is taken unless its ID is known otherwise.
local function may_replace(dedup, at, old, known)
  if not old then return not known end
  old = parked_due(old) or old
  return not (dedup == 'later' and at <= old or dedup == 'earlier' and at >= old)
end

-- Records a message that was taken: as ready if it has an entry ID, else as scheduled if the verdict says so.
local function note_taken(story, verdict, id, entry, due)
  if entry then
    note(story, 'ready', id, ',"entry":"' .. entry .. '","attempt":"1","due_ms":"' .. due .. '"}')
  elseif verdict > 0 then
    note_member(story, 'scheduled', id, ',"due_ms":"' .. due .. '"}')
  end
end

-- Adds a message straight to the stream, and returns its entry ID. Returns nil if the meta is malformed. Returns false
-- if the message must go into the schedule: it may end as a dead letter, it may have to wait for its key, or the stream
-- refuses it.
local function ready(stream, id, due, body, fields, now)
  local values, meant = entry_values(id, body, fields ~= '' and fields or nil, due)
  if not values then return nil end
  if has_expired(meant, now) or (meant['for'] or '') ~= '' or meant['key'] then return false end
  local added = redis.pcall('XADD', stream, '*', unpack(values))
  local refused = type(added) == 'table' and added.err
  -- A key of another type refuses the first entry already: nothing is written.
  if refused and string.find(refused, 'WRONGTYPE', 1, true) then error(added) end
  return not refused and added
end

-- The reply to a repeated call: 0 for each message whose refusal is remembered, 3 for all others, which were taken.
local function repeated_reply(seen, token, at)
  local reply = {}
  for n = 1, #at do
    local refused = redis.call('ZSCORE', seen, refusal(token, 5 * n - 1))
    add_pair(reply, refused and 0 or 3, at[n])
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

-- Two lists of text, with false for none: the due times of the IDs that are scheduled, and the ends of the dedup
-- windows of those that are remembered.
local function known_of(due, seen, ids)
  local scheduled, windows = {}, {}
  for first = 1, #ids, 1000 do
    local last = math.min(first + 999, #ids)
    extend_values(scheduled, redis.call('ZMSCORE', due, unpack(ids, first, last)))
    extend_values(windows, redis.call('ZMSCORE', seen, unpack(ids, first, last)))
  end
  return scheduled, windows
end
