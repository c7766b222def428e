-- Shared by the scripts that keep the progress of attempts: a text, called cursor, that a handler stores so that the
-- next attempt goes on from there. While the entry is pending, the cursor is in the hash progress:
--
--  <entry> SEP <group>   ->   <message ID> SEP <cursor>
--
-- When the delivery ends, the cursor becomes a field of the retry or of the dead letter. A field of the hash whose
-- entry is not pending any more means nothing; the worker removes it, or trim does. The message ID is compared, because
-- entry IDs may repeat after a failover.

local MAX_PROGRESS_BYTES = 4096

local function progress_field(entry, group)
  return entry .. SEP .. group
end

-- The cursor that was stored in this delivery; nil if none was. A key that cannot be read counts as empty,
-- because only the start of the next attempt depends on it.
local function stored_progress(progress, entry, group, id)
  local stored = progress and redis.pcall('HGET', progress, progress_field(entry, group))
  if type(stored) ~= 'string' or string.sub(stored, 1, #id + 1) ~= id .. SEP then return nil end
  return string.sub(stored, #id + 2)
end

-- Removes fields of entries that their group does not hold any more: the scripts that settle entries leave the fields.
-- pending: the number of entries that all groups hold. A call looks at about 100 fields, from the place at which the
-- last call ended. The field '' keeps this place until the walk ends. Returns the number of removed fields.
local function forget_progress(progress, stream, pending)
  local known = redis.pcall('HLEN', progress)
  if type(known) ~= 'number' or known == 0 then return 0 end -- a key of another type has no fields
  local from = redis.call('HGET', progress, '')
  local page = redis.call('HSCAN', progress, from or '0', 'COUNT', 100)
  local gone = {}
  for i = 1, #page[2], 2 do
    local entry, group = string.match(page[2][i], '^(%d+%-%d+)' .. SEP .. '(.*)$')
    local held = entry and pending > 0 and redis.pcall('XPENDING', stream, group, entry, entry, 1) or {}
    local in_doubt = held.err and not string.find(held.err, 'NOGROUP', 1, true)
    if not held[1] and not in_doubt and page[2][i] ~= '' then gone[#gone + 1] = page[2][i] end
  end
  if page[1] ~= '0' then
    -- HDEL of a missing field changes nothing. A server at maxmemory accepts it, and then accepts HSET, too.
    redis.call('HDEL', progress, SEP)
    redis.call('HSET', progress, '', page[1])
  elseif from then
    gone[#gone + 1] = ''
  end
  if gone[1] then in_chunks('HDEL', progress, gone) end
  return #gone
end
