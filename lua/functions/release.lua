-- release: takes entries out of a group's pending list as never started: each is scheduled again at once, with the same
--   attempt.
-- Uses: base history entry free key exit
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
-- ARGV[2...] entry, id (entry: entry ID; id: message ID that was delivered: an entry with another one counts as lost,
--   '' = it is not compared)
-- ARGV[#] actor (string, who calls; the last argument, only if KEYS[9] is given)
-- Returns: per entry an integer: 0 = lost (it was no longer pending, or carries another message), 2 = dead letter,
--   because it is malformed or its body was deleted, 3 = released, 4 = acknowledged, because it is for another group, 6
--   = cancelled, -1 = still pending, because the dead letter was refused; or still pending or lost, because the message
--   has an ordering key and the call gives no key turns, -9 = not looked at, because the entries before it came to 1
--   MiB: send it again
-- Complexity: O(log n) per entry
-- If a command fails here: as in retry, which does the work.
-- Run twice: harmless; the second run answers 0.
local args, actor = {ARGV[1], '1', '0'}, KEYS[9] and table.remove(ARGV)
for i = 2, #ARGV, 2 do extend_values(args, {ARGV[i], ARGV[i + 1], 'release', '', '', ''}) end
if actor then args[#args + 1] = actor end
return scripts.retry(KEYS, args)
