-- Shared by the scripts that can be repeated after a lost reply. A call's token, and the messages that the call
-- refused, are remembered as members of the zset seen, beside the dedup windows.

-- Whether the token is empty or valid, and token_ms is a whole number of at most 15 digits. The token 'dead' is
-- invalid, because its members of seen would be those of restored dead letters. A token with SEP is invalid, because
-- its members could be those of another call.
local function is_call(token, token_ms)
  return string.find(token_ms, '^%d+$') and #token_ms <= 15 and token ~= 'dead' and not string.find(token, SEP, 1, true)
end

-- The member by which a refused message of a call is remembered, so that a repeat of the call refuses it again. i: the
-- index of the message's first argument. Index 0 says that the call refused any message.
local function refusal(token, i)
  return SEP .. token .. SEP .. i
end

-- Removes a token and its refusals. All of them have the same score, the end of their window. It looks at no more than
-- 2,000 members or 1 MiB; members that it does not reach are removed when the window has ended.
local function forget(seen, token)
  local ends = redis.call('ZSCORE', seen, SEP .. token)
  local own = SEP .. token .. SEP -- the beginning of the refusals' members
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

-- Removes up to `most` members whose window has ended. It does not read them, because they may be of any size. Returns
-- how many it removed.
local function forget_ended(seen, now, most)
  local ended = math.min(most, redis.call('ZCOUNT', seen, '-inf', digits(now)))
  if ended > 0 then redis.call('ZREMRANGEBYRANK', seen, 0, ended - 1) end
  return ended
end
