-- drain: moves due messages into the stream, oldest due first, as far as the policy allows; one that is expired,
--   malformed, or for a group that is gone becomes a dead letter; one whose key is in flight waits for its turn.
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
-- ARGV[2] max_bytes (integer, bytes of members, payloads and metas: no further member is taken once they are reached)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[9])
-- Returns: moved (integer), buried (integer), wait (integer, µs until the next due time, -1 = nothing is scheduled or
--   the queue is held), error (string, '' = none: the stream refused an entry), dead_error (string, '' = none: the
--   dead-letter stream refused some, and each of these waits another minute), late (integer, ms by which the oldest due
--   message was late, without the delay by the rate; 0 also for due times before 2001, which mean now), held (string,
--   '' = nothing due is held back, else the limit that does: 'rate' or 'ready_limit'; then wait is until the next
--   message may pass)
-- Complexity: O(log n) per member; once O(groups) if any message is for a single group, or there is a ready limit;
--   O(1,000) when a limit holds messages back
-- If a command fails here: if the stream refuses an entry, or to list its groups, the batch stops; members added before
--   are removed, the rest stays scheduled. A refusal by the dead-letter stream stops nothing.
-- Run twice: harmless; the second run takes the next members.
local due, payload, meta, stream, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local turns, policy, rate, history = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])

redis.call('XDEL', stream, '0-0') -- removes nothing; after this write a full server accepts the others
local set = redis.call('HMGET', policy, 'history', 'history_ms', 'held', 'rate', 'burst', 'free_retries', 'ready_limit')
if set[3] == '1' then return {0, 0, -1, '', '', 0, ''} end
local now, fraction = now_ms()
local has_meta = redis.call('HLEN', meta) > 0
local is_gone = gone_from(stream)
local story = history and begin_story(history, ARGV[3], set[1], set[2])
local flow = nil
if set[4] or set[7] then
  flow = begin_flow(set[4], set[5], set[6], set[7], due, stream, rate, now, fraction)
end
-- Everything is known before the first write.

local q = {due = due, stream = stream, dead = dead, turns = turns, now = now, is_gone = is_gone, held = {}}
local score_before, due_before = nil, nil -- most members have the due time of the one before

-- Adds one member. Returns 'moved', 'buried' or 'parked'; or 'put_off' and the refusal of the dead-letter stream; or
-- nil and any other refusal.
local function add(member, score, body, fields)
  if score ~= score_before then
    score_before = score
    due_before = due_ms(score)
  end
  q.key = nil
  local fits = #member + #body + (fields and #fields or 0) <= MAX_ENTRY_BYTES
  local id, group, attempt, error
  if fits and fields and #fields < 8192 then id, group, attempt, error = string.match(fields, RETRY) end
  local outcome, added, told = 'moved', nil, nil
  if id and is_gone(group) == false then
    added = redis.pcall('XADD', stream, '*', 'id', id, 'payload', body, 'attempt', attempt, 'due_ms', due_before,
      'for', group, 'error', error)
  elseif fits and not fields and is_plain(member) then
    added = redis.pcall('XADD', stream, '*', 'id', member, 'payload', body, 'attempt', '1', 'due_ms', due_before)
  else
    outcome, added, told = add_described(q, member, score, body, fields)
    if not told then return outcome, added end
  end
  if type(added) == 'table' and added.err then return nil, added.err end
  if story then note_drained(story, outcome, added, told, id or member, attempt or '1', due_before, group) end
  return outcome
end

local done = {} -- members that leave the schedule: its first ones, in its order
local counts = {moved = 0, buried = 0, put_off = 0, parked = 0}
local bytes, longest = 0, 0
local refusal, dead_refusal = '', ''
local empty = false -- whether no member is left behind the ones that were taken

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

-- Bodies are read one by one, because the next may be of any size. Members are read a few at a time, because no command
-- tells how long they are.
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
    if not late and not q.key then -- waiting for a key is not lateness
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

if #done > 0 then redis.call('ZREMRANGEBYRANK', due, 0, #done - 1) end -- nothing came in between
if flow then flow.take_behind(done, limit, take) end
in_chunks('HDEL', payload, done)
if has_meta then in_chunks('HDEL', meta, done) end
if q.held[1] then pcall(pass_held, q) end
if counts.put_off > 0 or q.held[1] or not (next_due or empty) then next_due = head(due) end
if story then pcall(tell, story) end
local reply = {counts.moved, counts.buried, wait_us(next_due, now, fraction), refusal, dead_refusal, late or 0, ''}
return flow and flow.finish(reply) or reply
