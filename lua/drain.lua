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
-- Returns: wait alone if no message is due, or if the queue is held; else a list of moved (integer, messages that
--   became ready), buried (integer, messages that became dead letters), wait (integer, µs until the next due time,
--   or until the next message may pass the limit named by held; -1 = nothing is scheduled, or the queue is held),
--   error (string, why the stream refused an entry; '' = it refused none), dead_error (string, why the dead-letter
--   stream refused a letter; '' = it refused none; a message whose letter was refused waits another minute), late
--   (integer, ms by which the oldest due message was late, without the delay by the rate; a due time before 2001
--   means now, so late is 0 for it), held (string, the limit that holds back due messages: 'rate' or 'ready_limit';
--   '' = none)
-- Complexity: three commands if no message is due; else O(log n) per member; once O(groups) if any message is for a
--   single group, or there is a ready limit; O(1,000) when a limit holds messages back
-- If a command fails here: if the stream refuses an entry, or its groups cannot be listed, the batch stops: members
--   that were added to the stream are removed from the schedule, and the others stay scheduled. A refusal by the
--   dead-letter stream does not stop the batch.
-- Run twice: harmless; the second run takes the next members.
local due, policy = KEYS[1], KEYS[7]
local set = redis.call('HMGET', policy, 'held', 'history', 'rate', 'ready_limit')
if set[1] == '1' then return -1 end
-- Members are read in small pages, because no command tells the length of a member before the script reads the member.
local now, fraction = now_ms()
local page, members = 2, redis.call('ZRANGE', due, '0', '1', 'WITHSCORES')
local next_due = members[2] and number_of(members[2])
if not next_due or next_due > now then return wait_us(next_due, now, fraction) end
-- Declared here: what only the lines below need.

local payload, meta, stream, dead, turns = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local rate, history = KEYS[8], KEYS[9]
local limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
-- This XDEL changes nothing. A server at maxmemory always accepts it, and then accepts the script's later writes, too.
redis.call('XDEL', stream, '0-0')
local has_meta = redis.call('HLEN', meta) > 0
local record, flow = nil, nil -- flow stays nil if the policy limits nothing
if history and set[2] then
  record = begin_record(history, ARGV[3], set[2], redis.call('HMGET', policy, 'history_ms')[1])
end
if set[3] or set[4] then
  local more = redis.call('HMGET', policy, 'burst', 'free_retries')
  flow = begin_flow(set[3], more[1], more[2], set[4], due, stream, rate, now, fraction)
end
-- Everything is known before the first write.

local q = nil -- the state of add_other; nil until a message needs it
local done = {} -- the members that leave the schedule; they are its first ones, in order of due time
-- nil until a limit holds a member back. Then: the index in done of the first retry from behind that member.
local behind = nil
local moved, buried, put_off = 0, 0, 0
local room, bytes = limit, 0 -- how many members may still be taken; bytes of all members taken
local refusal, dead_refusal = '', ''
local late = nil
local empty = false -- true: the schedule has no member behind the taken ones
-- The score of the member before, and its due time as text: most members have the same due time as the one before.
local score_before, due_before = nil, nil
next_due = nil
-- The loop declares no functions, because each declaration costs the server time in each call.
while members do
  empty = #members < 2 * page
  local longest = 0
  for i = 1, #members, 2 do
    local member, score = members[i], members[i + 1]
    if room == 0 or score ~= score_before and number_of(score) > now then
      next_due = number_of(score)
      break
    end
    local passes = not flow or flow.may_pass(member)
    if passes then
      -- Payloads are read one by one, because the next one may be of any size.
      local body = redis.call('HGET', payload, member) or ''
      local fields = has_meta and redis.call('HGET', meta, member) or nil
      local size = #member + #body + (fields and #fields or 0)
      local outcome, added, values = 'moved', nil, nil
      local id, attempt, group = member, '1', nil
      if score ~= score_before then
        score_before = score
        due_before = due_ms(score)
      end
      if not fields and size <= MAX_ENTRY_BYTES and is_plain(member) then
        if q then q.key = nil end
        added = redis.pcall('XADD', stream, '*', 'id', member, 'payload', body, 'attempt', '1', 'due_ms', due_before)
      else
        q = q or {due = due, stream = stream, dead = dead, turns = turns, now = now, held = {}}
        outcome, added, values, id, attempt, group = add_other(q, member, score, body, fields, due_before)
      end
      if not outcome or type(added) == 'table' then
        refusal = outcome and added.err or added
      else
        room = room - 1
        bytes = bytes + size
        if outcome == 'put_off' then
          put_off = put_off + 1
          dead_refusal = added
        elseif outcome ~= 'parked' then
          done[#done + 1] = member
          if outcome == 'moved' then moved = moved + 1 else buried = buried + 1 end
          if flow and outcome == 'moved' then flow.passed(member) end
          if record then note_drained(record, outcome, added, values, id, attempt, due_before, group) end
        end
      end
    end
    if not late and not (q and q.key) then -- a message that waited for its ordering key does not count as late
      local at = number_of(score)
      late = at >= 1e12 and now - math.ceil(at) or 0
    end
    if not passes or refusal ~= '' or bytes >= max_bytes then
      empty = false
      break
    end
    if #member > longest then longest = #member end
  end
  if behind or refusal ~= '' or bytes >= max_bytes or room == 0 then
    members = nil
  elseif flow and flow.held then
    behind = #done + 1
    members = flow.retries_behind(#done)
  elseif next_due or empty then
    members = nil
  else
    page = math.min(longest > 1024 and 1 or math.min(16, 4 * page), room)
    members = redis.call('ZRANGE', due, #done, #done + page - 1, 'WITHSCORES')
  end
end

-- Members that were put off or parked have moved behind the others. So the first members of the schedule are in done.
local first_ones = behind and behind - 1 or #done
if first_ones > 0 then redis.call('ZREMRANGEBYRANK', due, '0', first_ones - 1) end
if behind then flow.remove_behind(done, behind) end
in_chunks('HDEL', payload, done)
if has_meta then in_chunks('HDEL', meta, done) end
if q and q.held[1] then pcall(pass_held, q) end
if put_off > 0 or q and q.held[1] or not (next_due or empty) then next_due = earliest_due(due) end
if record then pcall(write_record, record) end
local reply = {moved, buried, wait_us(next_due, now, fraction), refusal, dead_refusal, late or 0, ''}
return flow and flow.finish(reply) or reply
