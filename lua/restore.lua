-- restore: writes exported dead letters, each under its old entry ID if that is free and not ahead of the clock, unless
--   the letter exists or was restored before.
-- Uses: base history
-- KEYS[1] dead (stream)
-- KEYS[2] seen (zset)
-- KEYS[3] policy (hash)
-- KEYS[4] history (stream)
-- ARGV[1] window_ms (integer, ms that each letter is remembered)
-- ARGV[2...] name, entry, fields (string that no other letter has; its entry ID; its fields and values in turn, each as
--   <length>:<bytes>)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[4])
-- Returns: per letter an integer: 1 restored, 0 known, -1 fields malformed, -9 not looked at because the existing
--   letters came to 1 MiB: send it again
-- Complexity: O(log n) per letter
-- If a command fails here: a full server refuses the first write, and then nothing was written; after a later refusal a
--   letter may exist that is not remembered.
-- Run twice: harmless within the window, and for longer if a letter has kept its entry ID.
local dead, seen = KEYS[1], KEYS[2]
local policy, history = KEYS[3], KEYS[4]
local story = story_of(policy, history, ARGV) -- removes the actor from ARGV
local window_ms = tonumber(ARGV[1])
local bad = wrong_type({dead, 'stream', seen, 'zset'})
if bad then return bad end
local now, refused, read = now_ms(), nil, 0

-- Whether the letter exists under its entry ID, with the same fields and values in any order.
local function is_there(entry, values)
  local found = redis.pcall('XRANGE', dead, entry, entry)
  local fields = not found.err and found[1] and found[1][2] or {}
  read = read + bytes_of(fields)
  if #fields ~= #values then return false end
  local times = {}
  for i = 1, #fields, 2 do
    local fact = #fields[i] .. ':' .. fields[i] .. fields[i + 1]
    times[fact] = (times[fact] or 0) + 1
  end
  for i = 1, #values, 2 do
    local fact = #values[i] .. ':' .. values[i] .. values[i + 1]
    if (times[fact] or 0) == 0 then return false end
    times[fact] = times[fact] - 1
  end
  return true
end

-- Whether an entry ID lies more than a minute in the future; two servers may differ by that. Such an ID would block
-- further letters until then, and the largest one for ever.
local function is_ahead(entry)
  local ms = string.match(entry, '^0*(%d*)')
  return #ms > 15 or (tonumber(ms) or 0) > now + 60000
end

local function restore(name, entry, values)
  local remembered = redis.call('ZSCORE', seen, SEP .. 'dead' .. SEP .. name)
  if remembered and tonumber(remembered) > now or is_there(entry, values) then return 0 end
  -- Its own ID, else one of the same millisecond, else a new one: the ID tells how old a letter is.
  for _, id in ipairs(is_ahead(entry) and {'*'} or {entry, (string.gsub(entry, '%-.*', '')) .. '-*', '*'}) do
    local added = redis.pcall('XADD', dead, id, unpack(values))
    if type(added) == 'string' then
      redis.call('ZADD', seen, digits(now + window_ms), SEP .. 'dead' .. SEP .. name)
      if story then note_values(story, 'dead', 'letter', added, values) end
      return 1
    end
    refused = added
  end
  return nil
end

local reply = {}
for i = 2, #ARGV, 3 do
  local values = read < MOST_BYTES and field_list(ARGV[i + 2])
  local outcome = read >= MOST_BYTES and LATER or values and restore(ARGV[i], ARGV[i + 1], values) or not values and -1
  if not outcome then return refused end
  reply[#reply + 1] = outcome
end
if story then pcall(tell, story) end
return reply
