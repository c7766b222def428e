-- Shared by the scripts that make messages ready: how many the release rate and the ready limit of the policy allow.

local MOST_BURST = 1e6
local MOST_LOOKED_AT = 1000 -- members after one that is held back
local MOST_LOOKED_BYTES = 65536
local READY_LIMIT_WAIT = 5000 -- µs; a bridge that finds no room several times waits longer by itself

-- µs per message of a release rate, '500' or '500/s', '30/m', '1/h'; nil if it is not a rate.
local function interval_of(rate)
  if type(rate) ~= 'string' then return nil end
  if string.find(rate, '^%d+$') then rate = rate .. '/s' end
  local n, unit = string.match(rate, '^([1-9]%d*)/([smh])$')
  if not n or #n > 7 or tonumber(n) > 1e6 then return nil end
  return ({s = 1e6, m = 6e7, h = 3.6e9})[unit] / tonumber(n)
end

-- Whether due messages must wait for drain, because the queue is held or its flow is limited.
local function waits_for_drain(policy)
  local set = redis.call('HMGET', policy, 'held', 'rate', 'ready_limit')
  return set[1] == '1' or interval_of(set[2]) ~= nil or type(set[3]) == 'string' and is_count(set[3])
end

-- Starts the flow control of a drain from values of the policy; nil if nothing is limited. The token bucket of the rate
-- is one time in µs, at which it is full again; the key rate holds it until then. So a clock that goes back empties
-- the bucket at most, and no clock overfills it. begin_flow is called before the first write, and tries the writes that
-- only a limited drain makes. Its functions are inside it, because other drains need not create them.
local function begin_flow(per, burst, free, ready_limit, due, stream, rate, now, fraction)
  local each = interval_of(per) -- µs
  local limit = type(ready_limit) == 'string' and is_count(ready_limit) and tonumber(ready_limit) or nil
  if not each and not limit then return nil end
  local flow = {}
  local now_us = now * 1000 + fraction
  local room = math.huge -- messages until the ready limit
  local tokens, spent = math.huge, 0
  local full, empty = nil, nil -- when the bucket is full again; when it would be, if it were empty now. µs
  free = free == '1'
  burst = type(burst) == 'string' and is_count(burst) and tonumber(burst) or MOST_BURST + 1

  -- An upper bound of the entries that the slowest group has not been given; without groups, the length of the stream.
  -- Entries that this group holds are not counted. Entries that it has finished and another group holds are counted,
  -- unless it has been given all.
  local function waiting()
    local length = redis.call('XLEN', stream)
    if length < limit then return length end
    local last, pending = nil, 0 -- of the slowest group
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
  local function keep(at)
    redis.call('SET', rate, digits(math.ceil(at)), 'PX', digits(math.max(1, math.ceil((at - now_us) / 1000))))
  end

  -- Due retries and redriven letters after a member that is held back, with their scores. If more than 1,000 members
  -- are due, it looks at 1,000 of them, from a position that the clock chooses: so each has its turn.
  local function members_behind()
    local all = redis.call('ZCOUNT', due, '-inf', digits(now))
    local first = all > MOST_LOOKED_AT and math.max(0, now_us % (all + MOST_LOOKED_AT) - MOST_LOOKED_AT) or 0
    local last = math.min(first + MOST_LOOKED_AT, all)
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

  -- Whether a due member may become ready; if not, flow.held is the reason. Retries and redriven letters pass the ready
  -- limit always, and the rate if the policy sets free_retries.
  function flow.may_pass(member)
    local again = string.find(member, SEP, 1, true)
    if tokens - spent < 1 and not (again and free) then
      flow.held = 'rate'
      return false
    end
    if room < 1 and not again then
      flow.held = 'ready_limit'
      return false
    end
    return true
  end

  -- Counts a member that became ready.
  function flow.passed(member)
    room = room - 1
    if not (free and string.find(member, SEP, 1, true)) then spent = spent + 1 end
  end

  -- If a member is held back, takes the ones after it that may pass, and removes them. done: all members taken so far.
  function flow.take_behind(done, most, take)
    if not flow.held or flow.held == 'rate' and not free then return end
    local first = #done + 1
    local found = members_behind()
    for i = 1, #found, 2 do
      if #done >= most or not flow.may_pass(found[i]) or not take(found[i], found[i + 1]) then break end
    end
    in_chunks('ZREM', due, done, first)
  end

  -- Completes drain's reply: the wait, the lateness without the delay by the rate, and the limit that holds the next
  -- member back. When the rate holds it, the wait is at least 1 ms, or half a burst if that is less: timers are no
  -- finer.
  function flow.finish(reply)
    reply[7] = flow.held or ''
    if flow.held == 'ready_limit' then reply[3] = READY_LIMIT_WAIT end
    if not each then return reply end
    local at = full + spent * each
    if flow.held == 'rate' then
      local until_next = at + each - empty
      reply[3] = math.ceil(math.max(until_next, math.min(1000, burst * each / 2)))
    end
    if full > now_us then
      local since_last = now - math.floor((full + each - burst * each) / 1000) -- ms
      reply[6] = math.max(0, math.min(reply[6], since_last))
    end
    if spent > 0 then keep(at) end
    return reply
  end

  redis.call('ZREM', due, SEP) -- removes nothing: tries whether drain may
  if limit then room = limit - waiting() end
  if each and rate then
    if burst > MOST_BURST then burst = math.max(1, math.floor(1e5 / each)) end
    empty = now_us + burst * each -- when an empty bucket would be full
    full = math.min(math.max(tonumber(redis.call('GET', rate) or '') or 0, now_us), empty)
    tokens = math.floor((empty - full) / each + 1e-6)
    keep(full)
  else
    each = nil
  end
  return flow
end
