-- reclaim: ends deliveries whose visibility timeout, or whose lease, is over: each counts as failed, and becomes a
--   retry or a dead letter; a message that was cancelled meanwhile ends. It also ends deliveries that a worker gave
--   back by XNACK: as a release, a failed attempt or a dead letter.
-- Uses: base history entry free key progress exit calm lease cancel held
-- KEYS[1] stream (stream)
-- KEYS[2] due (zset)
-- KEYS[3] payload (hash)
-- KEYS[4] meta (hash)
-- KEYS[5] dead (stream)
-- KEYS[6] wake (stream)
-- KEYS[7] calm (hash)
-- KEYS[8] turns (zset)
-- KEYS[9] policy (hash)
-- KEYS[10] leases (zset)
-- KEYS[11] history (stream)
-- KEYS[12] progress (hash)
-- ARGV[1] group (string)
-- ARGV[2] max_attempts (integer, for messages without their own; it may be followed by further settings of the policy,
--   each as ' name=integer': retry_for_ms, max_crashes)
-- ARGV[3] delays (integers, comma separated, ms: the i-th follows the i-th failed attempt, the last one all further)
-- ARGV[4] consumer (string, the name under which entries are claimed)
-- ARGV[5] min_idle (integer, ms: the visibility timeout)
-- ARGV[6] cursor (entry ID to go on from, '0-0' at first)
-- ARGV[7] limit (integer, entries at most, and as many leases)
-- ARGV[8] max_bytes (integer, bytes of entries: the entry that reaches the limit is the last one)
-- ARGV[9] shortest (integer, ms: the shortest visibility timeout of the queue's groups; the time in which no bridge
--   watched the queue then counts only in part as idle time; 0 = idle times always count in full)
-- ARGV[10] notes (integer: for this many of the oldest pending entries, record since when they are held; absent or 0 =
--   record nothing)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[11] is given)
-- Returns: cursor (entry ID for the next call; '0-0' = all were looked at, and no lease is over), retried, buried,
--   skipped, stuck, cancelled (integers, how many entries; a released one counts as retried) and leases (integer: 1 =
--   the call dealt with some ended leases, and more have ended: call again)
-- Complexity: O(log n) per entry, and 10 pending entries are looked at for each; O(1) for each of the notes
-- If a command fails here: the entry stays pending, under the reclaimer's name, and is taken again after the visibility
--   timeout.
-- Run twice: harmless; the second run finds the next entries.
local LOOKED_AT = 10 -- pending entries that XAUTOCLAIM with COUNT 1 looks at
local k = {
  stream = KEYS[1], due = KEYS[2], payload = KEYS[3], meta = KEYS[4], dead = KEYS[5],
  wake = KEYS[6], turns = KEYS[8], policy = KEYS[9],
  delays = delay_list(ARGV[3]), tails = {},
}
local calm, leases, history, progress = KEYS[7], KEYS[10], KEYS[11], KEYS[12]
local group, consumer = ARGV[1], ARGV[4]
local min_idle, cursor = ARGV[5], ARGV[6]
local limit, max_bytes, shortest = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
k.record = record_of(k.policy, history, ARGV) -- removes the actor from ARGV
local bad = wrong_type({k.payload, 'hash', k.meta, 'hash', k.dead, 'stream', calm, 'hash'}) or wrong_group(group)
if bad then return bad end
if not read_limits(k, ARGV[2]) then return redis.error_reply('ERR max_attempts does not parse') end
local now = now_ms()
-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XACK', k.stream, group, '0-0')
redis.call('XPENDING', k.stream, group, '-', '+', 1) -- if there is no such stream or group, the script ends here
local before = earliest_due(k.due)
-- Everything is known before the first write.
local away = shortest > 0 and absences(calm, shortest, now) or {}
local idle = shortest > 0 and digits(watched_idle(away, tonumber(min_idle), now)) or min_idle
local count = {
  [RETRIED] = 0, [RELEASED] = 0, [BURIED] = 0, [SKIPPED] = 0, [STUCK] = 0, [LOST] = 0, [CANCELLED] = 0,
}
local left = {} -- entries that left the pending list
local bytes = 0

-- The message ID in an entry's flat field list; nil if there is none.
local function id_of(body)
  for i = 1, #body, 2 do
    if body[i] == 'id' then return body[i + 1] end
  end
end

-- The row of XPENDING for an entry; nil if there is none.
local function row_of(entry, holders)
  for _, one in ipairs(holders) do
    if one[1] == entry then return one end
  end
end

-- How the delivery of an entry ends that a worker gave back by XNACK. counter: the delivery counter before the claim.
-- SILENT subtracts one from it. So 0 means a release, and a higher counter is the number of failed deliveries.
local function given_back_as(counter)
  if is_fatal(counter) then
    return {action = 'dead', reason = 'xnack_fatal', error = 'a worker gave the message up: XNACK FATAL'}
  elseif counter == 0 then
    return {action = 'release', reason = '', error = ''}
  end
  local error = 'a worker could not handle the message: XNACK'
  return {action = 'retry', reason = 'max_attempts', error = error, burnt = counter - 1}
end

-- Ends the delivery of a claimed entry: plans and carries out its exit. holders: the XPENDING rows before the claim.
-- within: the timeout that is over, in ms.
local function take(entry, body, holders, within)
  local owner = redis.call('XPENDING', k.stream, group, entry, entry, 1)
  local before_claim = row_of(entry, holders)
  local cursor_of_attempt = stored_progress(progress, entry, group, id_of(body) or entry)
  local how
  if before_claim and (is_given_back(before_claim) or is_fatal(before_claim[4])) then
    how = given_back_as(before_claim[4])
  else
    how = {
      action = 'retry', reason = 'visibility_timeout', crash = true,
      error = 'visibility timeout: not acknowledged within ' .. within .. ' ms',
      -- The counter is 2 after one delivery by XREADGROUP and this claim. A higher counter tells of claims by other
      -- clients.
      burnt = owner[1] and math.max(0, owner[1][4] - 2) or 0,
    }
  end
  how.id, how.progress = '', cursor_of_attempt
  how.cancelled = owner[1] and is_cancelled(owner[1][4])
  local verdicts, failed = carry_out(k, group, {entry}, {plan_exit(k, group, entry, body, how, now)})
  if failed then error(failed) end
  local verdict = verdicts[1]
  count[verdict] = count[verdict] + 1
  if verdict == STUCK and owner[1] then -- the entry stays pending, and this claim must not count as a delivery later
    local counter = is_fatal(owner[1][4]) and '9223372036854775807' or digits(owner[1][4] - 1)
    redis.call('XCLAIM', k.stream, group, consumer, 0, entry, 'RETRYCOUNT', counter, 'JUSTID')
  end
  if verdict > LOST then left[#left + 1] = entry end
  if verdict > LOST and cursor_of_attempt then redis.pcall('HDEL', progress, progress_field(entry, group)) end
  for _, part in ipairs(body) do bytes = bytes + #part end
  bytes = bytes + #(cursor_of_attempt or '')
end

-- Ends the delivery of a deleted entry, which the claim has removed from the pending list. holders: the XPENDING rows
-- before the claim.
local function end_without_body(entry, holders)
  local verdict = CANCELLED
  if cancelled_among(holders, entry) then
    if k.record then
      local owner, idle_ms = holder(k.record, k.stream, group, entry)
      note_values(k.record, 'cancelled', 'entry', entry, {'group', group}, owner, idle_ms)
    end
  else
    verdict = bury(k, group, entry, lost_body_values(group, entry, '', now), true)
  end
  count[verdict] = count[verdict] + 1
end

-- Claims an idle entry and ends its delivery. It claims with the idle time 0: if the clock stepped back, a claim with a
-- longer one would return nothing, and the entry would look deleted.
local function claim(entry, holders, within)
  local claimed = redis.call('XCLAIM', k.stream, group, consumer, 0, entry)[1]
  if claimed and claimed[2] then take(entry, claimed[2], holders, within) else end_without_body(entry, holders) end
end

-- Ends the delivery of a lease that is over.
local function end_lease(entry, within)
  local holders = redis.call('XPENDING', k.stream, group, entry, entry, 1)
  if k.record then k.record.holders = holders end
  claim(entry, holders, digits(within))
end

-- Looks at the leases that are over, oldest first. Returns whether more are over, and whether it dealt with any.
local function end_leases()
  local over = redis.pcall('ZRANGE', leases, 0, limit - 1, 'WITHSCORES')
  if over.err then return false end -- if leases cannot be read, the entries are reclaimed later, by their idle time
  local done = false
  for i = 1, #over, 2 do
    local ends = number_of(over[i + 1])
    if ends > now then return false end
    if bytes >= max_bytes then return true, done end
    local within, entry, lease_group = parts_of_lease(over[i])
    local held = entry and redis.pcall('XPENDING', k.stream, lease_group, entry, entry, 1)[1] -- an error has no [1]
    local mine = not held or lease_group == group -- otherwise a call for the lease's own group deals with it
    -- Above 0 if the consumer extended the entry.
    local remaining = held and mine and not is_given_back(held) and tonumber(min_idle) - held[3] or 0
    if held and mine and remaining <= 0 then
      remaining = left_of_lease(away, ends - within, within, shortest, now)
      if remaining <= 0 then end_lease(entry, within) end
    end
    if remaining > 0 then
      redis.call('ZADD', leases, digits(now + remaining), over[i])
    elseif mine then
      redis.call('ZREM', leases, over[i])
    end
    done = done or mine
  end
  return #over >= 2 * limit, done
end

-- Whether the delivery of one of the pending entries was cancelled, or given back. holders: XPENDING rows.
local function some_special(holders)
  for _, one in ipairs(holders) do
    if is_cancelled(one[4]) or is_given_back(one) then return true end
  end
end

-- Does the work of reclaim_next when some deliveries are cancelled or given back, because XAUTOCLAIM would do two
-- things wrong. It removes a deleted entry from the pending list whatever its idle time is, although a consumer may
-- still work on the cancelled delivery. And it leaves an entry that was given back pending until the timeout,
-- although nobody works on it. So this function looks at the pending entries one by one. Returns the pending entry to
-- go on from, as XAUTOCLAIM does.
local function reclaim_each(holders)
  for i = 1, math.min(#holders, LOOKED_AT) do
    if holders[i][3] >= tonumber(idle) or is_given_back(holders[i]) then
      claim(holders[i][1], holders, min_idle)
      return holders[i + 1] and holders[i + 1][1] or '0-0'
    end
  end
  return #holders > LOOKED_AT and holders[LOOKED_AT + 1][1] or '0-0'
end

-- Ends the delivery of the next entry whose timeout is over. Returns the pending entry to go on from.
local function reclaim_next(holders)
  local reply = redis.call('XAUTOCLAIM', k.stream, group, consumer, idle, cursor, 'COUNT', 1)
  for _, one in ipairs(reply[2]) do
    if one and one[2] then take(one[1], one[2], holders, min_idle) end
  end
  for _, entry in ipairs(reply[3] or {}) do
    end_without_body(entry, holders)
  end
  return reply[1]
end

local more, done = end_leases()
for _ = 1, limit do
  -- If the server was stopped while this script ran, idle times do not count.
  if shortest > 0 and now_ms() - now > math.max(shortest / 2, 250) then break end
  -- The claim changes the holders and removes deleted entries, so the pending list is read before the claim.
  local holders = redis.call('XPENDING', k.stream, group, cursor, '+', LOOKED_AT + 1)
  if k.record then k.record.holders = holders end
  cursor = some_special(holders) and reclaim_each(holders) or reclaim_next(holders)
  if cursor == '0-0' or bytes >= max_bytes then break end
end
if cursor == '0-0' and #redis.call('XPENDING', k.stream, group, '-', '+', 1, consumer) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', k.stream, group, consumer) -- it holds nothing, so nothing is lost
end
-- Deletes the entries that no group needs any more. Entries with an ordering key are kept apart in k.left: end_turns
-- deletes them, too, and makes the next message of each key due.
free(k.stream, group, part_keyed(k, left))
if k.left then pcall(end_turns, k) end
local notes = tonumber(ARGV[10] or 0) -- older bridges send none
if notes > 0 then
  pcall(note_held, calm, leases, k.stream, group, tonumber(min_idle), notes) -- nothing depends on them
end
wake_if_earlier(k.wake, before, k.soonest)
if k.record then pcall(write_record, k.record) end
if more and cursor == '0-0' then cursor = '0-1' end -- not '0-0', which would tell the caller that no lease is over
local retried = count[RETRIED] + count[RELEASED]
return {cursor, retried, count[BURIED], count[SKIPPED], count[STUCK], count[CANCELLED], more and done and 1 or 0}
