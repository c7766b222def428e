-- Shared by the scripts that compare versions of a message: the messages that were scheduled under one ID, one after
-- the other.

local VERSION = SEP .. 'version ' -- begins a version, and tells it from an ID among arguments

local MOST_COMPARED = 524288 -- bytes of meta; a message with more is malformed

-- The version of the message scheduled under an ID: its due time (also while it waits for its key), the length of its
-- payload, and the length and SHA-1 of its meta. '' when nothing is scheduled. Second: how many bytes it read.
local function version_of(due, payload, meta, id)
  local score = redis.call('ZSCORE', due, id)
  if not score then return '', 0 end
  local length = redis.call('HSTRLEN', meta, id)
  local fields = length > 0 and length <= MOST_COMPARED and redis.call('HGET', meta, id) or ''
  local at = digits(parked_due(score) or number_of(score))
  local body = redis.call('HSTRLEN', payload, id)
  return VERSION .. at .. ' ' .. body .. ' ' .. length .. ' ' .. redis.sha1hex(fields), #fields
end
