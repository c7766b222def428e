-- Shared by scripts that can be repeated after a lost reply: what a call remembers of itself, in the zset of dedup windows.

-- Whether a token is none, or one whose traces cannot be taken for those of others: of another call, or of a dead letter that was restored.
local function is_token(token)
  return token ~= 'dead' and not string.find(token, SEP, 1, true)
end

-- Whether a call can be remembered so long under that token.
local function is_call(token, token_ms)
  return string.find(token_ms, '^%d+$') and #token_ms <= 15 and is_token(token)
end

-- What a call refused is remembered beside its token, so that a repeat refuses it again.
local function refusal(token, i)
  return SEP .. token .. SEP .. i
end

-- Forgets a token and its refusals: all of them end at the same millisecond. Bounded: what is left ends with the window.
local function forget(seen, token)
  local ends, own, gone, at, bytes = redis.call('ZSCORE', seen, SEP .. token), SEP .. token .. SEP, {}, 0, 0
  while ends and bytes < MOST_BYTES and at < 2000 do
    local page = redis.call('ZRANGEBYSCORE', seen, ends, ends, 'LIMIT', at, 16)
    for _, member in ipairs(page) do
      if string.sub(member .. SEP, 1, #own) == own then gone[#gone + 1] = member end
    end
    bytes, at = bytes + bytes_of(page), at + 16
    if #page < 16 then break end
  end
  in_chunks('ZREM', seen, gone)
end

-- Forgets what has ended, a few at most, without reading it: it may be of any size.
local function forget_ended(seen, now, most)
  local ended = math.min(most, redis.call('ZCOUNT', seen, '-inf', digits(now)))
  if ended > 0 then redis.call('ZREMRANGEBYRANK', seen, 0, ended - 1) end
  return ended
end
