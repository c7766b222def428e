-- orphans: deletes hash fields that were without a member of the schedule at an earlier look and still are, and looks for more.
-- Uses: base
-- KEYS[1] due (zset)
-- KEYS[2] fields (hash)
-- ARGV[1] cursor (integer, of HSCAN)
-- ARGV[2] limit (integer, fields looked at, roughly)
-- ARGV[3...] confirmed (string: a field that was an orphan a minute ago)
-- Returns: deleted (integer), cursor (string), then the orphans found now (strings)
-- Complexity: O(limit + confirmed)
-- If a command fails here: the rest stays for the next pass.
-- Run twice: harmless.
local due, fields = KEYS[1], KEYS[2]
local bad = wrong_type({due, 'zset', fields, 'hash'})
if bad then return bad end

local deleted = 0
for i = 3, #ARGV do
  if not redis.call('ZSCORE', due, ARGV[i]) then deleted = deleted + redis.call('HDEL', fields, ARGV[i]) end
end
local page = redis.call('HSCAN', fields, ARGV[1], 'COUNT', ARGV[2])
local reply = {deleted, page[1]}
for i = 1, #page[2], 2 do
  if not redis.call('ZSCORE', due, page[2][i]) then reply[#reply + 1] = page[2][i] end
end
return reply
