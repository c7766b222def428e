-- Shared by the scripts that compare versions of a message: the messages that were scheduled under one ID, one after
-- the other.

local VERSION = SEP .. 'version ' -- the beginning of a version, by which it is told from an ID among the arguments

local MOST_COMPARED = 524288 -- bytes of meta; a message with a larger meta is malformed

-- Returns the version of the message that is scheduled under an ID, and how many bytes it read. The version is a text
-- of the due time (without PARKED), the length of the payload, and the length and SHA-1 of the meta; '' if nothing is
-- scheduled.
local function version_of(due, payload, meta, id)
  local score = redis.call('ZSCORE', due, id)
  if not score then return '', 0 end
  local length = redis.call('HSTRLEN', meta, id)
  local fields = length > 0 and length <= MOST_COMPARED and redis.call('HGET', meta, id) or ''
  local at = digits(parked_due(score) or number_of(score))
  local body = redis.call('HSTRLEN', payload, id)
  return VERSION .. at .. ' ' .. body .. ' ' .. length .. ' ' .. redis.sha1hex(fields), #fields
end
