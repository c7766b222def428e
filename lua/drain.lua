-- drain: moves due messages into the stream, oldest due first, as far as the policy allows; a message that is expired,
--   malformed, or for a group that is gone becomes a dead letter; a message whose ordering key is in flight waits in
--   line.
-- Uses: base history entry free key due flow
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] stream (stream)
-- KEYS[5] dead (stream)
-- KEYS[6] turns (zset)
-- KEYS[7] policy (hash)
-- KEYS[8] rate (string)
-- KEYS[9] history (stream)
-- ARGV[1] limit (integer, members at most)
-- ARGV[2] max_bytes (integer, bytes of members, payloads and metas: the member that reaches the limit is the last one)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[9] is given)
-- Returns: moved (integer, messages that became ready), buried (integer, messages that became dead letters), wait
--   (integer, µs until the next due time, or until the next message may pass the limit named by held; -1 = nothing is
--   scheduled, or the queue is held), error (string, why the stream refused an entry; '' = it refused none), dead_error
--   (string, why the dead-letter stream refused a letter; '' = it refused none; a message whose letter was refused
--   waits another minute), late (integer, ms by which the oldest due message was late, without the delay by the rate; a
--   due time before 2001 means now, so late is 0 for it), held (string, the limit that holds back due messages: 'rate'
--   or 'ready_limit'; '' = none)
-- Complexity: O(log n) per member; once O(groups) if any message is for a single group, or there is a ready limit;
--   O(1,000) when a limit holds messages back
-- If a command fails here: if the stream refuses an entry, or its groups cannot be listed, the batch stops: members
--   that were added to the stream are removed from the schedule, and the others stay scheduled. A refusal by the
--   dead-letter stream does not stop the batch.
-- Run twice: harmless; the second run takes the next members.
local due, payload, meta, stream, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local turns, policy, rate, history = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XDEL', stream, '0-0')
local set = redis.call('HMGET', policy, 'history', 'history_ms', 'held', 'rate', 'burst', 'free_retries', 'ready_limit')
if set[3] == '1' then return {0, 0, -1, '', '', 0, ''} end
local now, fraction = now_ms()
-- is_gone(group) tells whether the stream does not have the group. flow is nil if the policy limits nothing.
local has_meta = redis.call('HLEN', meta) > 0
local is_gone = gone_from(stream)
local record = history and set[1] and begin_record(history, ARGV[3], set[1], set[2])
local flow = nil
if set[4] or set[7] then
  flow = begin_flow(set[4], set[5], set[6], set[7], due, stream, rate, now, fraction)
end
-- Everything is known before the first write.

local q = {due = due, stream = stream, dead = dead, turns = turns, now = now, is_gone = is_gone, held = {}}
-- The score of the member before, and its due time as text: most members have the same due time as the one before.
local score_before, due_before = nil, nil

-- Adds one member to the stream or to the dead letters. Returns the outcome as add_described does: 'moved', 'buried',
-- 'parked', 'put_off', or nil if a command was refused; and, for 'put_off' and nil, the error text.
local function add(member, score, body, fields)
  if score ~= score_before then
    score_before = score
    due_before = due_ms(score)
  end
  q.key = nil
  local fits = #member + #body + (fields and #fields or 0) <= MAX_ENTRY_BYTES
  -- The meta of most retries is short and matches the pattern RETRY, so that it need not be decoded.
  local id, group, attempt, error
  if fits and fields and #fields < 8192 then id, group, attempt, error = string.match(fields, RETRY) end
  local outcome, added, values = 'moved', nil, nil
  if id and is_gone(group) == false then
    added = redis.pcall('XADD', stream, '*', 'id', id, 'payload', body, 'attempt', attempt, 'due_ms', due_before,
      'for', group, 'error', error)
  elseif fits and not fields and is_plain(member) then
    added = redis.pcall('XADD', stream, '*', 'id', member, 'payload', body, 'attempt', '1', 'due_ms', due_before)
  else
    outcome, added, values = add_described(q, member, score, body, fields)
    if not values then return outcome, added end
  end
  if type(added) == 'table' and added.err then return nil, added.err end
  if record then note_drained(record, outcome, added, values, id or member, attempt or '1', due_before, group) end
  return outcome
end

local done = {} -- the members that leave the schedule; they are its first ones, in order of due time
local counts = {moved = 0, buried = 0, put_off = 0, parked = 0}
local bytes, longest = 0, 0 -- of all members taken; of the longest member of the page
local refusal, dead_refusal = '', ''
local empty = false -- whether the schedule has no member behind those that were taken

-- Takes one due member. Returns whether another one may be taken.
local function take(member, score)
  local body = redis.call('HGET', payload, member) or ''
  local fields = has_meta and redis.call('HGET', meta, member) or nil
  local outcome, err = add(member, score, body, fields)
  if not outcome then
    refusal = err
    empty = false
    return false
  end
  if outcome == 'put_off' then
    dead_refusal = err
  elseif outcome ~= 'parked' then
    done[#done + 1] = member
  end
  if flow and outcome == 'moved' then flow.passed(member) end
  counts[outcome] = counts[outcome] + 1
  bytes = bytes + #member + #body + (fields and #fields or 0)
  longest = math.max(longest, #member)
  return bytes < max_bytes
end

-- How many members may still be taken.
local function remaining()
  return limit - #done - counts.put_off - counts.parked
end

-- Payloads are read one by one, because the next one may be of any size. Members are read in small pages, because no
-- command tells how long a member is before it is read.
local page = 2
local next_due, late = nil, nil
while remaining() > 0 and bytes < max_bytes and refusal == '' and not (flow and flow.held) do
  local asked = math.min(page, remaining())
  local members = redis.call('ZRANGE', due, #done, #done + asked - 1, 'WITHSCORES')
  empty = #members < 2 * asked
  longest = 0
  for i = 1, #members, 2 do
    local member, score = members[i], members[i + 1]
    if score ~= score_before and number_of(score) > now then
      next_due = number_of(score)
      break
    end
    local goes_on = (not flow or flow.may_pass(member)) and take(member, score)
    if not late and not q.key then -- a message that waited for its ordering key does not count as late
      local at = number_of(score)
      late = at >= 1e12 and now - math.ceil(at) or 0
    end
    if not goes_on then
      empty = false
      break
    end
  end
  if next_due or empty then break end
  page = longest > 1024 and 1 or math.min(16, 4 * page)
end

-- Members that were put off or parked have moved behind the others, so those in done are the first ones.
if #done > 0 then redis.call('ZREMRANGEBYRANK', due, 0, #done - 1) end
if flow then flow.take_retries(done, limit, take) end
in_chunks('HDEL', payload, done)
if has_meta then in_chunks('HDEL', meta, done) end
if q.held[1] then pcall(pass_held, q) end
if counts.put_off > 0 or q.held[1] or not (next_due or empty) then next_due = earliest_due(due) end
if record then pcall(write_record, record) end
local reply = {counts.moved, counts.buried, wait_us(next_due, now, fraction), refusal, dead_refusal, late or 0, ''}
return flow and flow.finish(reply) or reply
