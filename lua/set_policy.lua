-- set_policy: writes settings of a queue or its groups, and records who changed them; with expected values it does so
--   only if nobody has changed them since the caller read them.
-- Uses: base
-- KEYS[1] policy (hash)
-- KEYS[2] changes (stream)
-- ARGV[1] expected (integer, how many of the first pairs are values that the fields must have)
-- ARGV[2] by (string, who changes the settings, '' = unknown)
-- ARGV[3...] field, value (strings; '' = remove the field; for an expected value, '' = the field must be absent)
-- Returns: integer, how many fields got another value; -1 = a field has neither the expected nor the new value, and
--   nothing was changed
-- Complexity: O(1) per field
-- If a command fails here: the settings are written; a change may be missing in the record.
-- Run twice: harmless; the second run finds the values written, and records nothing.
local policy, changes = KEYS[1], KEYS[2]
local expected, by = tonumber(ARGV[1]), ARGV[2]
local MOST_CHANGES, MOST_TEXT = '50', 1024
local KEPT_MS = '31536000000' -- a year, which ends the records of queues that an older release has deleted
local bad = wrong_type({policy, 'hash', changes, 'stream'})
if bad then return bad end
if not expected then return redis.error_reply('ERR expected does not parse') end

local first = 2 * expected + 3 -- of the fields to write
local wanted = {}
for i = first, #ARGV, 2 do wanted[ARGV[i]] = ARGV[i + 1] end
-- A field may have its new value already, by an earlier run of this call.
for i = 3, first - 1, 2 do
  local stored = redis.call('HGET', policy, ARGV[i]) or ''
  if stored ~= ARGV[i + 1] and stored ~= wanted[ARGV[i]] then return -1 end
end
-- HDEL of a missing field changes nothing. A server at maxmemory accepts HDEL, and after the first accepted write it
-- accepts the further writes of the script, too.
redis.call('HDEL', policy, SEP)
local changed = 0
for i = first, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  local size = redis.call('HSTRLEN', policy, field)
  local before = digits(size) .. ' bytes' -- no setting is as long as this
  if size <= MOST_TEXT or size == #value then before = redis.call('HGET', policy, field) or '' end
  if before ~= value then
    changed = changed + 1
    if value == '' then redis.call('HDEL', policy, field)
    else redis.call('HSET', policy, field, value) end
    -- No setting depends on the record, so an error of it, such as a stream without a further ID, is ignored.
    redis.pcall('XADD', changes, 'MAXLEN', MOST_CHANGES, '*', 'by', string.sub(by, 1, MOST_TEXT), 'field', field,
      'old', string.sub(before, 1, MOST_TEXT), 'new', string.sub(value, 1, MOST_TEXT))
    redis.pcall('PEXPIRE', changes, KEPT_MS)
  end
end
return changed
