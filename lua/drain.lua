-- drain: moves what is due into the stream, oldest due first; what is expired or malformed, or for a group that is gone, becomes a dead letter.
-- Uses: base history entry due
-- KEYS[1] due (zset)
-- KEYS[2] payload (hash)
-- KEYS[3] meta (hash)
-- KEYS[4] stream (stream)
-- KEYS[5] dead (stream)
-- KEYS[6] policy (hash)
-- KEYS[7] history (stream)
-- ARGV[1] limit (integer, members at most)
-- ARGV[2] max_bytes (integer, bytes of members, payloads and metas after which no further member is taken)
-- ARGV[#] actor (string, who calls; the last one, given with KEYS[7])
-- Returns: moved (integer), buried (integer), wait (integer, µs until the next due time, -1 = nothing is scheduled or the queue is held), error (string, '' = none: the stream refused an entry), dead_error (string, '' = none: the stream of dead letters refused one, or several, and each waits another minute), late (integer, ms by which the oldest that was due was late; 0 also for due times before 2001, which mean now)
-- Complexity: O(log n) per member; once O(groups) when any is for one group alone
-- If a command fails here: a stream that refuses an entry, or to name its groups, stops the batch; what was added before is removed, the rest stays scheduled. Dead letters that refuse stop nothing.
-- Run twice: harmless; the second run takes the next members.
local due, payload, meta, stream, dead, policy, history = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('XDEL', stream, '0-0') -- removes nothing, and opens a full server for the rest
local set = redis.call('HMGET', policy, 'history', 'history_ms', 'held')
if set[3] == '1' then return {0, 0, -1, '', '', 0} end
local now, fraction = now_ms()
local has_meta, is_gone, story = redis.call('HLEN', meta) > 0, gone_from(stream), history and begin_story(history, ARGV[3], set[1], set[2])
-- Everything is known before the first write.
local score_before, due_before = nil, nil -- most messages are due when the one before is

-- Adds one member to the stream, or to the dead letters. Returns 'moved' or 'buried'; or 'put_off' and the refusal of the dead letters, nil and that
-- of the stream.
local function add(member, score, body, fields)
  local added, outcome, told, id, group, attempt, error = nil, 'moved', nil, nil, nil, nil, nil
  local fits = #member + #body + (fields and #fields or 0) <= MAX_ENTRY_BYTES
  if score ~= score_before then score_before, due_before = score, due_ms(score) end
  if fits and fields and #fields < 8192 then id, group, attempt, error = string.match(fields, RETRY) end
  if id and is_gone(group) == false then
    added = redis.pcall('XADD', stream, '*', 'id', id, 'payload', body, 'attempt', attempt, 'due_ms', due_before, 'for', group, 'error', error)
  elseif fits and not fields and is_plain(member) then
    added = redis.pcall('XADD', stream, '*', 'id', member, 'payload', body, 'attempt', '1', 'due_ms', due_before)
  else
    local values, dies, err = delivered_values(member, score, body, fields, is_gone, now)
    if err then return nil, err end
    local target = dies and dead or stream
    outcome, added = dies and 'buried' or outcome, redis.pcall('XADD', target, '*', unpack(values))
    told = values
    if dies and type(added) == 'table' and added.err then return 'put_off', put_off(due, member, dead, added, now) end
  end
  if type(added) == 'table' and added.err then return nil, added.err end
  if story and outcome == 'buried' then note_values(story, 'dead', 'letter', added, told)
  elseif told and story then note_values(story, 'ready', 'entry', added, told)
  elseif story then note(story, 'ready', id or member, ',"entry":"' .. added .. '","attempt":"' .. (attempt or '1') .. '","due_ms":"' .. due_before .. (group and '","group":' .. told_text(group) .. '}' or '"}')) end
  return outcome
end

-- Bodies are read one by one, because the next may be of any size; members a few at a time, because nobody can ask how long they are.
local done, bytes, counts, refusal, dead_refusal, page, next_due, empty, late = {}, 0, {moved = 0, buried = 0, put_off = 0}, '', '', 2, nil, false, nil
while #done + counts.put_off < limit and bytes < max_bytes and refusal == '' and not (next_due or empty) do
  local asked, longest = math.min(page, limit - #done - counts.put_off), 0
  local members = redis.call('ZRANGE', due, #done, #done + asked - 1, 'WITHSCORES')
  empty = #members < 2 * asked
  for i = 1, #members, 2 do
    local member, score = members[i], members[i + 1]
    if score ~= score_before and number_of(score) > now then next_due = number_of(score) break end
    late = late or number_of(score) >= 1e12 and now - math.ceil(number_of(score)) or 0
    local body, fields = redis.call('HGET', payload, member) or '', has_meta and redis.call('HGET', meta, member) or nil
    local outcome, err = add(member, score, body, fields)
    if not outcome then refusal, empty = err, false break end
    if outcome == 'put_off' then dead_refusal = err else done[#done + 1] = member end
    counts[outcome] = counts[outcome] + 1
    bytes, longest = bytes + #member + #body + (fields and #fields or 0), math.max(longest, #member)
    if bytes >= max_bytes then empty = false break end
  end
  page = longest > 1024 and 1 or math.min(16, 4 * page)
end
if #done > 0 then redis.call('ZREMRANGEBYRANK', due, 0, #done - 1) end -- the first ones, and nothing came in between
in_chunks('HDEL', payload, done)
if has_meta then in_chunks('HDEL', meta, done) end
if counts.put_off > 0 or not (next_due or empty) then next_due = head(due) end
if story then pcall(tell, story) end
return {counts.moved, counts.buried, wait_us(next_due, now, fraction), refusal, dead_refusal, late or 0}
