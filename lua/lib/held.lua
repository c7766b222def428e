-- Used by reclaim: since when deliveries are held.

-- An idle time restarts with each extension, so it does not tell since when a delivery is held. note_held looks at the
-- oldest pending entries of a group, and stores in the field held:<group> of calm when each was delivered:
--
--  <usual> <entry>=<since>/<holder> <entry>=<since>/<holder> ...
--
-- usual is how long deliveries took lately (ms; '-' = none has ended yet). since is a Unix time in ms. holder is the
-- first eight digits of the SHA-1 of the consumer's name. since is exact if the delivery was not extended before the
-- first look, else too late. The first ten entries are stored, and the others once they have been idle for an eighth of
-- the visibility timeout, or for 1.8 s. A consumer extends at a third of the timeout, after 4.5 s at the latest, so
-- deliveries that end soon cost no note. An entry that another consumer has claimed is a new delivery.
--
-- A lease that is shorter than the visibility timeout starts with an idle time. Its member of leases tells when it was
-- given out. note_held looks at the leases that end first.
local function note_held(calm, leases, stream, group, visibility, most)
  local field, now, given = 'held:' .. group, now_ms(), {}
  local ending = redis.pcall('ZRANGE', leases, 0, most - 1, 'WITHSCORES') -- another type has none
  for i = 1, #ending, 2 do
    local within, entry, of = parts_of_lease(ending[i])
    if of == group then given[entry] = number_of(ending[i + 1]) - within end
  end
  local known = redis.call('HGET', calm, field) or ''
  local usual, before, texts = tonumber(string.match(known, '^%d+') or nil), {}, {}
  for entry, since, holder in string.gmatch(known, '(%d+%-%d+)=(%d+)/(%x+)') do
    before[entry] = {since = tonumber(since), holder = holder}
  end
  for i, one in ipairs(redis.call('XPENDING', stream, group, '-', '+', most)) do
    local entry, idle = one[1], one[3]
    local holder, noted = string.sub(redis.sha1hex(one[2]), 1, 8), before[entry]
    if noted and noted.holder ~= holder then noted = nil end
    local since = noted and noted.since or given[entry] or now - math.max(0, idle)
    if noted or i <= 10 or idle >= math.min(visibility / 8, 1800) then
      texts[#texts + 1] = entry .. '=' .. digits(since) .. '/' .. holder
    end
    before[entry] = nil
  end
  for _, ended in pairs(before) do
    local took = math.max(0, now - ended.since)
    -- A moving average of about eight deliveries. A very long one is capped, so that it does not hide the next one.
    usual = usual and usual + (math.min(took, 4 * usual + 1000) - usual) / 8 or took
  end
  local text = table.concat({usual and digits(math.floor(usual)) or '-', unpack(texts)}, ' ')
  if text ~= known then redis.call('HSET', calm, field, text) end
end
