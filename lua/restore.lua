-- restore: writes exported dead letters, unless a letter exists or was restored before; each letter keeps its old entry
--   ID if that ID is free and not ahead of the clock.
-- Uses: base history
-- KEYS[1] dead (stream)
-- KEYS[2] seen (zset)
-- KEYS[3] policy (hash)
-- KEYS[4] history (stream)
-- ARGV[1] window_ms (integer, ms that each letter is remembered)
-- ARGV[2...] name, entry, fields (name: string that no other letter has; entry: entry ID of the letter; fields: the
--   names and values of its fields, one after another, each as <length>:<bytes>)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[4] is given)
-- Returns: per letter an integer: 1 = restored, 0 = the letter exists or was restored before, -1 = fields is malformed,
--   -9 = not looked at, because the existing letters came to 1 MiB: send it again
-- Complexity: O(log n) per letter
-- If a command fails here: a full server refuses the first write, and then nothing was written; after a later refusal a
--   letter may exist that is not remembered.
-- Run twice: harmless within window_ms; also after that for a letter that has kept its entry ID and still exists.
local dead, seen = KEYS[1], KEYS[2]
local policy, history = KEYS[3], KEYS[4]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local window_ms = tonumber(ARGV[1])
local bad = wrong_type({dead, 'stream', seen, 'zset'})
if bad then return bad end
local now, refused, read = now_ms(), nil, 0

-- Whether the letter exists under its entry ID, with the same fields and values in any order.
local function exists(entry, values)
  local found = redis.pcall('XRANGE', dead, entry, entry)
  local fields = not found.err and found[1] and found[1][2] or {}
  read = read + bytes_of(fields)
  if #fields ~= #values then return false end
  local counts = {} -- how often the existing letter has a field with a value
  for i = 1, #fields, 2 do
    local pair = #fields[i] .. ':' .. fields[i] .. fields[i + 1]
    counts[pair] = (counts[pair] or 0) + 1
  end
  for i = 1, #values, 2 do
    local pair = #values[i] .. ':' .. values[i] .. values[i + 1]
    if (counts[pair] or 0) == 0 then return false end
    counts[pair] = counts[pair] - 1
  end
  return true
end

-- Whether an entry ID lies more than a minute in the future; the clocks of two servers may differ by a minute. The
-- stream would refuse the IDs of further letters until that time, and after the largest possible ID for ever.
local function is_ahead(entry)
  local ms = string.match(entry, '^0*(%d*)')
  return #ms > 15 or (tonumber(ms) or 0) > now + 60000
end

-- Restores one letter. Returns its result, or nil if the stream refused it.
local function restore(name, entry, values)
  local remembered = redis.call('ZSCORE', seen, SEP .. 'dead' .. SEP .. name)
  if remembered and tonumber(remembered) > now or exists(entry, values) then return 0 end
  -- It tries the old ID, then an ID of the same millisecond, then a new ID, because the ID tells how old a letter is.
  for _, id in ipairs(is_ahead(entry) and {'*'} or {entry, (string.gsub(entry, '%-.*', '')) .. '-*', '*'}) do
    local added = redis.pcall('XADD', dead, id, unpack(values))
    if type(added) == 'string' then
      redis.call('ZADD', seen, digits(now + window_ms), SEP .. 'dead' .. SEP .. name)
      if record then note_values(record, 'dead', 'letter', added, values) end
      return 1
    end
    refused = added
  end
  return nil
end

local reply = {}
for i = 2, #ARGV, 3 do
  local values = read < MOST_BYTES and field_list(ARGV[i + 2])
  local result = -1
  if read >= MOST_BYTES then result = LATER elseif values then result = restore(ARGV[i], ARGV[i + 1], values) end
  if not result then return refused end
  reply[#reply + 1] = result
end
if record then pcall(write_record, record) end
return reply
