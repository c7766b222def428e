-- redrive: schedules dead letters again, each for the group in which it failed or for another group, with attempt 1 and
--   without its old expiry; also letters of other partitions, which the caller deletes in those partitions later.
-- Uses: base history entry
-- KEYS[1] dead (stream)
-- KEYS[2] due (zset)
-- KEYS[3] payload (hash)
-- KEYS[4] meta (hash)
-- KEYS[5] wake (stream)
-- KEYS[6] stream (stream)
-- KEYS[7] policy (hash)
-- KEYS[8] history (stream)
-- ARGV[1...] letter, when, edited, payload, fields, to (letter: entry ID of the dead letter; when: '+ms' or Unix ms;
--   edited: '1' = deliver the given payload, 'moved' = the letter is in another partition, '' = neither; payload:
--   bytes; for a moved letter its names and values of fields, one after another, each as <length>:<bytes>; fields: a
--   JSON object of strings that replaces headers, max_attempts and expires_ms, '' = keep them; to: the group that gets
--   the message, '' = the group in which it failed)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[8] is given)
-- Returns: per dead letter an integer: 1 = scheduled (by an earlier call, too, if it is moved), 0 = the letter does not
--   exist, -1 = the letter has no payload, because the body was lost or unreadable: give one, -2 = fields is malformed,
--   or payload is, if the letter is moved, -3 = the letter's other fields are unreadable or too large: give fields, -4
--   = the stream has no such group: give another one, -9 = not looked at, because the letters before it came to 1 MiB:
--   send it again
-- Complexity: O(log n) per dead letter, and O(groups)
-- If a command fails here: before XDEL nothing of the letter is written; after XDEL come only commands that cannot
--   fail.
-- Run twice: harmless; the second run answers 0; for a moved letter it answers 1 as long as the message is scheduled.
local dead, due, payload, meta, wake, stream = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local policy, history = KEYS[7], KEYS[8]
local record = record_of(policy, history, ARGV) -- removes the actor from ARGV
local bad = wrong_type({dead, 'stream', due, 'zset', payload, 'hash', meta, 'hash', wake, 'stream', stream, 'stream'})
if bad then return bad end
local groups, refused
if stream then -- nil for a client of an older version: drain then decides about a message whose group is gone
  groups, refused = group_names(stream)
  if not groups then return redis.error_reply(refused) end
end
for i = 2, #ARGV, 6 do
  if not is_time(ARGV[i]) then return redis.error_reply('ERR when does not parse: ' .. ARGV[i]) end
end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XDEL', dead, '0-0')
local now = now_ms()
local before = earliest_due(due)
local read = 0

-- Fields that are not kept, because they belong to the letter or to the attempts before it.
local drop = {
  id = true, payload = true, attempt = true, due_ms = true, error = true, expires_ms = true,
  group = true, reason = true, dead_ms = true, entry = true,
  first_due_ms = true, snoozes = true, crashes = true,
}

-- Fields that describe the work of one group. They are kept only if the message goes back to this group with the same
-- payload.
local PROGRESS = {progress = true, ['b64:progress'] = true}

-- The fields of a letter, as a flat list. Returns nil if the letter does not exist, or if it is moved and its fields do
-- not parse.
local function body_of(letter, edited, given)
  if edited == 'moved' then return string.find(letter, '^%d+%-%d+$') and field_list(given) end
  local found = redis.pcall('XRANGE', dead, letter, letter) -- people type these IDs: an invalid one does not exist
  return not found.err and found[1] and found[1][2] or nil
end

-- The member of the schedule under which a letter is redriven, and whether it is scheduled already: an earlier call may
-- have added a moved letter.
local function member_of(id, group, letter, edited, bytes)
  local member = id .. SEP .. group .. SEP .. 'dead:' .. letter
  while redis.call('ZSCORE', due, member) do
    if edited == 'moved' and (redis.call('HGET', payload, member) or '') == bytes then return member, true end
    member = member .. '+' -- the letter was redriven before, and restored from an export since
  end
  return member, false
end

-- Redrives one letter. Returns its result.
local function redrive(letter, when, edited, new_payload, new_fields, to)
  if read >= MOST_BYTES then return LATER end
  local body = body_of(letter, edited, new_payload)
  if not body then return edited == 'moved' and -2 or 0 end
  local fields = {}
  for i = 1, #body, 2 do fields[body[i]] = body[i + 1] end
  read = read + bytes_of(body)
  local bytes = edited == '1' and new_payload or fields['payload']
  if not bytes then return -1 end
  local id = fields['id'] or ''
  if id == '' or string.find(id, SEP, 1, true) or not is_utf8(id) then id = letter end
  local kept = {} -- the meta of the scheduled message
  local fresh = new_fields ~= '' and new_fields or nil
  if fresh then
    local ok, decoded = pcall(cjson.decode, fresh)
    if not entry_values(id, '', fresh, '0') or not ok then return -2 end
    for name, value in pairs(decoded) do kept[name] = value end
  end
  local group = to ~= '' and to or fields['group'] or ''
  local goes_on = edited ~= '1' and group ~= '' and group == fields['group']
  if fields['reason'] == 'malformed' then -- the letter has the unreadable parts as text, in meta or raw
    if not fresh and ((fields['meta'] or '') ~= '' or fields['raw']) then return -3 end
    fields['meta'] = nil
    fields['raw'] = nil
  end
  for name, value in pairs(fields) do
    local replaced = fresh and (string.sub(name, 1, 2) == 'h:' or name == 'max_attempts')
    local own = name_in_message(name)
    local is_unique = is_utf8(value) or not fields['b64:' .. own] -- else keep would give two fields one name
    local stays = not drop[name] and not replaced and is_utf8(name) and (goes_on or not PROGRESS[name])
    if stays and is_unique and kept[own] == nil then keep(kept, own, value) end
  end
  if kept['max_attempts'] and not is_count(kept['max_attempts']) then kept['max_attempts'] = nil end
  if group ~= '' and not (is_group(group) and (not groups or groups[group])) then return -4 end
  kept['id'] = id
  kept['attempt'] = '1'
  kept['for'] = group ~= '' and group or nil
  local member, waits = member_of(id, group, letter, edited, bytes)
  if waits then return 1 end
  local encoded = cjson.encode(kept)
  local at = due_at(when, now)
  if not entry_values(member, '', encoded, '0') then return -3 end -- drain would make a dead letter of it again

  if edited ~= 'moved' and redis.call('XDEL', dead, letter) == 0 then return 0 end
  if bytes ~= '' then redis.call('HSET', payload, member, bytes) end
  redis.call('HSET', meta, member, encoded)
  redis.call('ZADD', due, digits(at), member)
  if record then note_values(record, 'redriven', 'letter', letter, {'id', id, 'group', group, 'due_ms', digits(at)}) end
  return 1
end

local reply = {}
for i = 1, #ARGV, 6 do reply[#reply + 1] = redrive(unpack(ARGV, i, i + 5)) end
wake_if_earlier(wake, before, earliest_due(due))
if record then pcall(write_record, record) end
return reply
