-- Shared by the scripts that write entries: turns a member of the schedule into the values of an entry, and checks and
-- encodes the fields of entries and dead letters.

local MAX_FIELDS = 1000
local MAX_FIELD_BYTES = 65536
local MAX_META_BYTES = 524288
local MAX_ENTRY_BYTES = 1072693248 -- 1 GiB, the server's limit, less 1 MiB for the names and values that we add

local utf8_sequences = {
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
  '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
  '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
}

local function is_utf8(s)
  if string.find(s, '^[\1-\127]*$') then
    return true
  end
  for _, sequence in ipairs(utf8_sequences) do
    s = string.gsub(s, sequence, ' ')
  end
  return not string.find(s, '[\128-\255]')
end

local BASE64_DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

local function base64(s)
  local out = {}
  if #s > 600 then -- in pieces, because table.concat of the in-process server takes a limited number of values
    for first = 1, #s, 600 do out[#out + 1] = base64(string.sub(s, first, first + 599)) end
    return table.concat(out)
  end
  for i = 1, #s, 3 do
    local a, b, c = string.byte(s, i, i + 2)
    local n = a * 65536 + (b or 0) * 256 + (c or 0)
    for shift = 1, 4 do
      local at = math.floor(n / 64 ^ (4 - shift)) % 64 + 1
      local absent = (shift == 3 and not b) or (shift == 4 and not c)
      out[#out + 1] = absent and '=' or string.sub(BASE64_DIGITS, at, at)
    end
  end
  return table.concat(out)
end

-- Stores a field in meta. A value that is not UTF-8 cannot pass through JSON, so it is stored as base64 under
-- b64:<name>.
local function keep(meta, name, value)
  if is_utf8(value) then meta[name] = value else meta['b64:' .. name] = base64(value) end
end

-- Cuts an error text to 1 KiB and makes it UTF-8, as a field holds it.
local function error_text(s)
  if #s > 1024 then
    s = string.gsub(string.sub(s, 1, 1024), '[\192-\255][\128-\191]*$', '')
  end
  return is_utf8(s) and s or string.gsub(s, '[\128-\255]', '?')
end

-- Whether a member of the schedule is certainly a message ID: it is not empty, and has neither a separator nor bytes
-- beyond ASCII.
local function is_plain(member)
  return string.find(member, '^[^\31\128-\255]+$') ~= nil
end

-- Applies the fields of meta (a JSON text) to values, an XADD list that begins with id, payload, attempt and due_ms.
-- Returns the fields as a table; or nil and why they are malformed.
local function add_meta(values, meta)
  if #meta > MAX_META_BYTES then return nil, 'meta is larger than 512 KiB' end
  if not is_utf8(meta) then return nil, 'meta is not UTF-8' end
  -- The decoder would stop at a NUL byte without an error.
  if string.find(meta, '\0', 1, true) then return nil, 'meta holds a NUL byte' end
  local ok, fields = pcall(cjson.decode, meta)
  if not ok or type(fields) ~= 'table' or not string.find(meta, '^%s*{') then
    return nil, 'meta is not a JSON object'
  end
  local n = 8
  for name, value in pairs(fields) do
    if type(name) ~= 'string' or type(value) ~= 'string' then
      return nil, 'meta field ' .. tostring(name) .. ' is not a string'
    end
    if name == 'id' then
      values[2] = value
    elseif name == 'attempt' then
      values[6] = value
    elseif name == 'payload' or name == 'due_ms' then
      return nil, 'meta may not hold ' .. name
    else
      values[n + 1], values[n + 2] = name, value
      n = n + 2
    end
    if n > 2 * MAX_FIELDS then
      return nil, 'more than ' .. MAX_FIELDS .. ' fields'
    end
  end
  return fields
end

-- Matches the meta of most retries. A meta that matches, and is short, needs neither a further check nor a decoder.
local RETRY = '^{"id":"([^%c"\\\127-\255]+)","for":"([^%c"\\\127-\255]+)",' ..
  '"attempt":"([1-9])","error":"([^%c"\\\127-\255]*)"}$'

-- Whether the field `for` of a retry may hold this group name. It may not be '', which would mean every group; and it
-- must be UTF-8, as meta is. The same rule holds for the ordering keys of messages.
local function is_group(name)
  return name ~= '' and #name <= 256 and not string.find(name, '%c') and is_utf8(name)
end

-- The XADD values of the entry for a member of the schedule, and the member's meta as a table; or nil and why the
-- member is malformed. It does not call Redis, so it can be used before a script's first write.
local function entry_values(member, payload, meta, due)
  local values, fields = {'id', member, 'payload', payload, 'attempt', '1', 'due_ms', due}, {}
  if meta then
    local known, err = add_meta(values, meta)
    if not known then return nil, err end
    fields = known
  end
  local id = values[2]
  if not is_plain(id) then
    if id == '' or string.find(id, SEP, 1, true) then
      return nil, 'no message ID: an empty member, or a retry without its meta'
    end
    if not is_utf8(id) then
      return nil, 'the message ID is not UTF-8'
    end
  end
  if values[6] ~= '1' and not is_count(values[6]) then
    return nil, 'attempt is not a positive whole number'
  end
  if fields['max_attempts'] and not is_count(fields['max_attempts']) then
    return nil, 'max_attempts is not a positive whole number'
  end
  if fields['expires_ms'] and not is_count(fields['expires_ms']) then
    return nil, 'expires_ms is not a positive whole number'
  end
  if fields['key'] and not is_group(fields['key']) then
    return nil, 'key is empty, longer than 256 bytes, or holds control characters'
  end
  return values, fields
end

-- The groups of a stream, as a set of names; or nil and the server's error. A stream that does not exist has none.
local function group_names(stream)
  local names = {}
  local reply = redis.pcall('XINFO', 'GROUPS', stream)
  if reply.err then
    if string.find(reply.err, 'no such key', 1, true) then return names end
    return nil, reply.err
  end
  for _, flat in ipairs(reply) do
    for i = 1, #flat, 2 do
      if flat[i] == 'name' then names[flat[i + 1]] = true end
    end
  end
  return names
end

-- Whether a message with these fields has expired.
local function has_expired(fields, now)
  return fields['expires_ms'] ~= nil and tonumber(fields['expires_ms']) <= now
end

local LETTER_FIELDS = {'group', 'entry', 'reason', 'dead_ms', 'meta', 'raw'} -- fields that only dead letters have
local MESSAGE_PREFIX = 'message:'

-- Whether a field of a message has the name of a field that only dead letters have, with any number of MESSAGE_PREFIX
-- before it.
local function is_letter_name(name)
  for _, own in ipairs(LETTER_FIELDS) do
    local prefixes = string.rep(MESSAGE_PREFIX, (#name - #own) / #MESSAGE_PREFIX)
    if string.sub(name, -#own) == own and name == prefixes .. own then return true end
  end
  return false
end

-- The name of a message's field in a dead letter: with MESSAGE_PREFIX before it if is_letter_name says so.
-- name_in_message is the reverse.
local function name_in_letter(name)
  return is_letter_name(name) and MESSAGE_PREFIX .. name or name
end

local function name_in_message(name)
  local has_prefix = string.sub(name, 1, #MESSAGE_PREFIX) == MESSAGE_PREFIX
  return has_prefix and is_letter_name(name) and string.sub(name, #MESSAGE_PREFIX + 1) or name
end

-- Appends the elements of a second list to values, for example further fields and values for XADD. Returns values.
local function extend_values(values, more)
  for i = 1, #more do
    values[#values + 1] = more[i]
  end
  return values
end
