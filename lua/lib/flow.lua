-- Shared by the scripts that make messages ready: how many the release rate and the ready limit of the policy allow.

local MOST_BURST = 1e6
local MOST_LOOKED_AT = 1000 -- members after the first one that is held back
local MOST_LOOKED_BYTES = 65536 -- bytes of these members
local READY_LIMIT_WAIT = 5000 -- µs; if a bridge finds the limit reached several times, it waits longer by itself

-- The time in µs per message of a release rate, which is a text such as '500' or '500/s', '30/m', '1/h'. Returns nil if
-- the text is not a rate.
local function interval_of(rate)
  if type(rate) ~= 'string' then return nil end
  if string.find(rate, '^%d+$') then rate = rate .. '/s' end
  local n, unit = string.match(rate, '^([1-9]%d*)/([smh])$')
  if not n or #n > 7 or tonumber(n) > 1e6 then return nil end
  return ({s = 1e6, m = 6e7, h = 3.6e9})[unit] / tonumber(n)
end

-- Whether messages that are due must go through the schedule and drain, because the queue is held or its flow limited.
local function waits_for_drain(policy)
  local set = redis.call('HMGET', policy, 'held', 'rate', 'ready_limit')
  return set[1] == '1' or interval_of(set[2]) ~= nil or type(set[3]) == 'string' and is_count(set[3])
end

-- Starts the flow control of a drain; returns nil if the policy limits nothing. per, burst, free_retries and
-- ready_limit are the values of the policy's settings rate, burst, free_retries and ready_limit. rate is the key of the
-- token bucket.
--
-- The token bucket is stored as one time in µs: the bucket is full again at that time, and the key expires then. So a
-- clock that goes back empties the bucket at most, and no clock overfills it.
--
-- begin_flow is called before the first write of a script, and tries the writes that only a limited drain makes. The
-- functions are defined inside begin_flow, because a drain without limits need not create them.
local function begin_flow(per, burst, free_retries, ready_limit, due, stream, rate, now, fraction)
  local each = interval_of(per) -- µs per message
  local limit = type(ready_limit) == 'string' and is_count(ready_limit) and tonumber(ready_limit) or nil
  if not each and not limit then return nil end
  local flow = {}
  local now_us = now * 1000 + fraction
  local free_places = math.huge -- the messages that may become ready until the ready limit is reached
  local tokens, spent = math.huge, 0 -- tokens in the bucket at the start, and those that this drain has spent
  local full = nil -- when the bucket is full again, µs
  local full_if_empty = nil -- when the bucket would be full again if it were empty now, µs
  free_retries = free_retries == '1' -- whether retries and redriven letters need no token
  burst = type(burst) == 'string' and is_count(burst) and tonumber(burst) or MOST_BURST + 1

  -- An upper bound of the number of entries that the slowest group has not been given; without groups, the length of
  -- the stream. Entries that the slowest group holds are not counted. Entries that it has acknowledged but that another
  -- group holds are counted, unless the slowest group has been given all entries.
  local function count_waiting()
    local length = redis.call('XLEN', stream)
    if length < limit then return length end
    local last, pending = nil, 0 -- the slowest group's last delivered entry, and the number of entries that it holds
    for _, group in ipairs(groups_of(stream)) do
      if not last or less(group.last, last) then
        last = group.last
        pending = group.pending
      elseif not less(last, group.last) then
        pending = math.max(pending, group.pending)
      end
    end
    if length - pending < limit or not last then return length - pending end
    return #redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1) > 0 and length - pending or 0
  end

  -- Stores the time at which the bucket is full again.
  local function store_bucket(full_at)
    local rest_ms = math.max(1, math.ceil((full_at - now_us) / 1000))
    redis.call('SET', rate, digits(math.ceil(full_at)), 'PX', digits(rest_ms))
  end

  -- Called when a limit holds a member back. Returns the due retries and redriven letters behind this member, with
  -- their scores; nil if no retry may pass. taken: the number of members that drain has taken; they are the first ones
  -- of the schedule. If more than MOST_LOOKED_AT members are due, the function looks at only MOST_LOOKED_AT of them.
  -- The clock chooses the first one, so that over several calls the function looks at each member.
  function flow.retries_behind(taken)
    if flow.held == 'rate' and not free_retries then return nil end
    local all = redis.call('ZCOUNT', due, '-inf', digits(now)) - taken
    local skipped = all > MOST_LOOKED_AT and math.max(0, now_us % (all + MOST_LOOKED_AT) - MOST_LOOKED_AT) or 0
    local first, last = taken + skipped, taken + math.min(skipped + MOST_LOOKED_AT, all)
    local found, bytes, page = {}, 0, 1
    while first < last and bytes < MOST_LOOKED_BYTES do
      local members = redis.call('ZRANGE', due, first, math.min(first + page, last) - 1, 'WITHSCORES')
      local longest = 0
      for i = 1, #members, 2 do
        if string.find(members[i], SEP, 1, true) then add_pair(found, members[i], members[i + 1]) end
        bytes = bytes + #members[i]
        longest = math.max(longest, #members[i])
      end
      first = first + page
      page = longest > 1024 and 1 or 16
    end
    return found
  end

  -- Whether a due member may become ready. If not, flow.held is set to the name of the limit that holds the member
  -- back. Retries and redriven letters always pass the ready limit; they pass the rate if the policy sets free_retries.
  function flow.may_pass(member)
    local is_retry = string.find(member, SEP, 1, true)
    if tokens - spent < 1 and not (is_retry and free_retries) then
      flow.held = 'rate'
      return false
    end
    if free_places < 1 and not is_retry then
      flow.held = 'ready_limit'
      return false
    end
    return true
  end

  -- Counts a member that became ready.
  function flow.passed(member)
    free_places = free_places - 1
    if not (free_retries and string.find(member, SEP, 1, true)) then spent = spent + 1 end
  end

  -- Removes from the schedule the retries that drain took from behind a member that was held back. These are the
  -- members of done from index first on.
  function flow.remove_behind(done, first) in_chunks('ZREM', due, done, first) end

  -- Completes drain's reply, and stores the bucket: reply[3] is the wait, reply[6] the lateness without the delay by
  -- the rate, reply[7] the limit that holds the next member back. When the rate holds the next member back, the wait is
  -- at least the smaller of 1 ms and the time of half a burst, because timers are no finer.
  function flow.finish(reply)
    reply[7] = flow.held or ''
    if flow.held == 'ready_limit' then reply[3] = READY_LIMIT_WAIT end
    if not each then return reply end
    local full_at = full + spent * each
    if flow.held == 'rate' then
      local until_next = full_at + each - full_if_empty
      reply[3] = math.ceil(math.max(until_next, math.min(1000, burst * each / 2)))
    end
    if full > now_us then
      local since_token = now - math.floor((full + each - burst * each) / 1000) -- ms since a token was there
      reply[6] = math.max(0, math.min(reply[6], since_token))
    end
    if spent > 0 then store_bucket(full_at) end
    return reply
  end

  redis.call('ZREM', due, SEP) -- removes nothing; it fails here if the caller lacks the permission
  if limit then free_places = limit - count_waiting() end
  if each and rate then
    -- Without a valid setting, the burst is the number of messages in 100 ms.
    if burst > MOST_BURST then burst = math.max(1, math.floor(1e5 / each)) end
    full_if_empty = now_us + burst * each
    full = math.min(math.max(tonumber(redis.call('GET', rate) or '') or 0, now_us), full_if_empty)
    tokens = math.floor((full_if_empty - full) / each + 1e-6)
    store_bucket(full)
  else
    each = nil
  end
  return flow
end
