-- Used by reclaim: records since when consumers hold their entries.

-- The idle time of a pending entry restarts with each extension, so it does not tell since when the entry is held.
-- note_held looks at the oldest pending entries of a group, at most `most` of them, and stores in the field
-- held:<group> of calm when each was delivered:
--
--  <usual> <entry>=<since>/<holder> <entry>=<since>/<holder> ...
--
-- usual is how long recent deliveries took (ms; '-' = none has ended yet). since is a Unix time in ms. holder is the
-- first eight digits of the SHA-1 of the consumer's name. since is exact if the delivery was not extended before the
-- first look, else it is too late. The ten oldest entries are stored. Another entry is stored when it has been idle for
-- an eighth of the visibility timeout, or for 1.8 s. A consumer extends at a third of the timeout, and after 4.5 s at
-- the latest, so an entry that is acknowledged soon is not stored. When another consumer claims an entry, this is a new
-- delivery.
--
-- A lease that is shorter than the visibility timeout starts with an idle time above 0. So its start is taken from the
-- zset leases. note_held looks at the leases that end first.
local function note_held(calm, leases, stream, group, visibility, most)
  local field, now = 'held:' .. group, now_ms()
  local lease_starts = {} -- Unix ms, by entry
  local first_leases = redis.pcall('ZRANGE', leases, 0, most - 1, 'WITHSCORES') -- an error reply has the length 0
  for i = 1, #first_leases, 2 do
    local within, entry, lease_group = parts_of_lease(first_leases[i])
    if lease_group == group then lease_starts[entry] = number_of(first_leases[i + 1]) - within end
  end
  local stored = redis.call('HGET', calm, field) or ''
  local usual = tonumber(string.match(stored, '^%d+') or nil)
  local ended, texts = {}, {} -- ended: the stored deliveries that are not pending any more
  for entry, since, holder in string.gmatch(stored, '(%d+%-%d+)=(%d+)/(%x+)') do
    ended[entry] = {since = tonumber(since), holder = holder}
  end
  for i, one in ipairs(redis.call('XPENDING', stream, group, '-', '+', most)) do
    local entry, idle = one[1], one[3]
    if not is_given_back(one) then -- otherwise the delivery has ended
      local holder, delivery = string.sub(redis.sha1hex(one[2]), 1, 8), ended[entry]
      if delivery and delivery.holder ~= holder then delivery = nil end
      local since = delivery and delivery.since or lease_starts[entry] or now - math.max(0, idle)
      if delivery or i <= 10 or idle >= math.min(visibility / 8, 1800) then
        texts[#texts + 1] = entry .. '=' .. digits(since) .. '/' .. holder
      end
      ended[entry] = nil
    end
  end
  for _, delivery in pairs(ended) do
    local took = math.max(0, now - delivery.since)
    -- A moving average of about eight deliveries. A very long one is capped, so that it does not hide the next one.
    usual = usual and usual + (math.min(took, 4 * usual + 1000) - usual) / 8 or took
  end
  local text = table.concat({usual and digits(math.floor(usual)) or '-', unpack(texts)}, ' ')
  if text ~= stored then redis.call('HSET', calm, field, text) end
end
