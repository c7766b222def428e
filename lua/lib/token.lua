-- Shared by scripts that can be repeated after a lost reply: what a call remembers of itself, in the zset of dedup windows.

-- What a call refused is remembered beside its token, so that a repeat refuses it again.
local function refusal(token, i)
  return SEP .. token .. SEP .. i
end

-- Forgets a token and its refusals: all of them end at the same millisecond.
local function forget(seen, token)
  local ends, own, gone = redis.call('ZSCORE', seen, SEP .. token), SEP .. token .. SEP, {}
  for _, member in ipairs(ends and redis.call('ZRANGEBYSCORE', seen, ends, ends) or {}) do
    if string.sub(member .. SEP, 1, #own) == own then gone[#gone + 1] = member end
  end
  in_chunks('ZREM', seen, gone)
end
