-- Shared by the scripts that can be repeated after a lost reply: a call's token and its refusals, in the zset of dedup
-- windows.

-- Whether a token is empty or valid. 'dead' and tokens with a separator are invalid: their members could be taken for
-- those of a restored dead letter, or of another call.
local function is_token(token)
  return token ~= 'dead' and not string.find(token, SEP, 1, true)
end

-- Whether the token is valid, and token_ms is a whole number of at most 15 digits.
local function is_call(token, token_ms)
  return string.find(token_ms, '^%d+$') and #token_ms <= 15 and is_token(token)
end

-- The member that remembers a refused message of a call, so that a repeat of the call refuses it again. i: its
-- argument's index.
local function refusal(token, i)
  return SEP .. token .. SEP .. i
end

-- Removes a token and its refusals; all of them end at the same millisecond. The work is bounded: what remains ends
-- with the window.
local function forget(seen, token)
  local ends = redis.call('ZSCORE', seen, SEP .. token)
  local own = SEP .. token .. SEP -- the beginning of its refusals
  local gone, at, bytes = {}, 0, 0
  while ends and bytes < MOST_BYTES and at < 2000 do
    local page = redis.call('ZRANGEBYSCORE', seen, ends, ends, 'LIMIT', at, 16)
    for _, member in ipairs(page) do
      if string.sub(member .. SEP, 1, #own) == own then gone[#gone + 1] = member end
    end
    bytes = bytes + bytes_of(page)
    at = at + 16
    if #page < 16 then break end
  end
  in_chunks('ZREM', seen, gone)
end

-- Removes up to `most` ended members, without reading them: they may be of any size. Returns how many.
local function forget_ended(seen, now, most)
  local ended = math.min(most, redis.call('ZCOUNT', seen, '-inf', digits(now)))
  if ended > 0 then redis.call('ZREMRANGEBYRANK', seen, 0, ended - 1) end
  return ended
end
