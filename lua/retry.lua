-- retry: takes entries out of a group's pending list. Each entry becomes a retry or, if its attempts are used up, a
--   dead letter (action retry); or a dead letter (dead); or is scheduled again at once with the same attempt (release),
--   or later with the same attempt (snooze); or ends (cancel).
-- Uses: base history entry free key progress exit cancel
-- KEYS[1] stream (stream)
-- KEYS[2] due (zset)
-- KEYS[3] payload (hash)
-- KEYS[4] meta (hash)
-- KEYS[5] dead (stream)
-- KEYS[6] wake (stream)
-- KEYS[7] turns (zset)
-- KEYS[8] policy (hash)
-- KEYS[9] history (stream)
-- ARGV[1] group (string)
-- ARGV[2] max_attempts (integer, for messages without their own; it may be followed by further settings of the policy,
--   each as ' name=integer': retry_for_ms, max_snoozes)
-- ARGV[3] delays (integers, comma separated, ms: the i-th is the delay after the i-th failed attempt, and the last one
--   the delay after all further attempts; '' = each entry has its own delay, or needs none)
-- ARGV[4...] entry, id, action, delay, reason, error (entry: entry ID; id: message ID that was delivered: an entry with
--   another one counts as lost, '' = it is not compared; action: 'retry' or '', 'dead', 'release', 'snooze', 'cancel';
--   a space and the traceparent of the attempt may follow, which is kept in the field last_trace; then a line feed and
--   the progress of the attempt may follow, 4,096 bytes at most, which is kept in the field progress; nothing after the
--   line feed = the next attempt begins anew; delay: ms, '' = taken from delays; a snooze needs a delay; reason:
--   string, the reason if the entry becomes a dead letter; error: string)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[9] is given)
-- Returns: per entry an integer: 0 = lost (it was no longer pending, or carries another message), 1 = retry scheduled,
--   2 = dead letter, 3 = released, 4 = acknowledged, because it is for another group, 5 = snoozed, 6 = cancelled: it
--   will not be delivered again, whatever the action was, -1 = still pending, because the dead letter was refused; or
--   still pending or lost, because the message has an ordering key, would be scheduled again, and the call gives no key
--   turns, -9 = not looked at, because the entries before it came to 1 MiB: send it again
-- Complexity: O(log n) per entry; it reads at most 1 MiB and one entry more
-- If a command fails here: before XACK the entry stays pending; after XACK come only commands that cannot fail.
-- Run twice: harmless; the second run answers 0.
local k = {
  stream = KEYS[1], due = KEYS[2], payload = KEYS[3], meta = KEYS[4], dead = KEYS[5],
  wake = KEYS[6], turns = KEYS[7], policy = KEYS[8],
  delays = delay_list(ARGV[3]), tails = {},
}
local history, group = KEYS[9], ARGV[1]
k.record = record_of(k.policy, history, ARGV) -- removes the actor from ARGV
local bad = wrong_type({k.payload, 'hash', k.meta, 'hash'}) or wrong_group(group)
if bad then return bad end
local args = ARGV
local entries, traces, cursors = {}, {}, {}
local actions = {retry = true, [''] = true, dead = true, release = true, snooze = true, cancel = true}
local without_delay = {dead = true, release = true, cancel = true}
for i = 4, #args, 6 do
  -- A traceparent and progress may follow the action: they are moved into traces and cursors, so that the argument is
  -- the action alone.
  entries[#entries + 1] = args[i]
  if not actions[args[i + 2]] then
    local line_feed = string.find(args[i + 2], '\n', 1, true)
    if line_feed then
      cursors[#entries] = string.sub(args[i + 2], line_feed + 1)
      args[i + 2] = string.sub(args[i + 2], 1, line_feed - 1)
    end
    if #(cursors[#entries] or '') > MAX_PROGRESS_BYTES then
      return redis.error_reply('ERR progress is longer than ' .. MAX_PROGRESS_BYTES .. ' bytes')
    end
  end
  if not actions[args[i + 2]] then
    local action, trace = string.match(args[i + 2], '^(%a*) (%x%x%-%x+%-%x+%-%x%x)$')
    if not actions[action or 0] or #trace ~= 55 then
      return redis.error_reply('ERR action is none of retry, dead, release, snooze, cancel: ' .. args[i + 2])
    end
    args[i + 2] = action
    traces[#entries] = trace
  end
  local action, delay = args[i + 2], args[i + 3]
  local needs_delay = delay == '' and not without_delay[action]
  if string.find(delay, '[^0-9]') or needs_delay and (#k.delays == 0 or action == 'snooze') then
    return redis.error_reply('ERR delay, or delays, does not parse: ' .. delay)
  end
end
if not read_limits(k, ARGV[2]) then return redis.error_reply('ERR max_attempts does not parse') end

-- This changes nothing. A server at maxmemory always accepts it, and then accepts this script's further writes, too.
redis.call('XACK', k.stream, group, '0-0')
local now = now_ms()
local before = earliest_due(k.due)
-- Everything is known before the first write.
local bodies, read = bodies_of(k.stream, entries)
local plans = {}
for n = 1, read do
  local i, entry = 6 * n - 2, entries[n]
  local how = {
    id = args[i + 1], action = args[i + 2], trace = traces[n], progress = cursors[n],
    delay = tonumber(args[i + 3]), reason = args[i + 4], error = args[i + 5],
  }
  how.cancelled = how.action == 'cancel' or cancelled_among(pending_of(k.stream, group, entry), entry)
  plans[n] = plan_exit(k, group, entry, bodies[entry], how, now)
end
local verdicts, failed = carry_out(k, group, entries, plans)
local left = {}
for n, verdict in ipairs(verdicts) do
  if verdict > LOST then left[#left + 1] = entries[n] end
end
-- Deletes the entries that no group needs any more. Entries with an ordering key are kept apart in k.left: end_turns
-- deletes them, too, and makes the next message of each key due.
free(k.stream, group, part_keyed(k, left))
if k.left then pcall(end_turns, k) end
wake_if_earlier(k.wake, before, k.soonest)
for n = read + 1, #entries do verdicts[n] = LATER end
if k.record then pcall(write_record, k.record) end
return failed or verdicts
