-- Used by reclaim: which part of an entry's idle time counts against its consumer. A consumer that cannot reach the
-- server cannot extend its entries. So the time in which the queue was not watched counts only in part.

local LONGEST_BLINK = 250 -- ms: a gap up to this length is never an absence

-- Records that reclaim looks at the queue now, and returns the absences of the bridges, newest first. An absence is a
-- gap between two looks that is longer than LONGEST_BLINK and than half of shortest (ms, the shortest visibility
-- timeout of the queue's groups). In an absence the server or the bridge may have been down, the clock may have
-- stepped, or the memory may have been restored from an older copy. The record is on the same server as the pending
-- lists, so that a restore brings back both.
local function absences(calm, shortest, now)
  local known = redis.call('HMGET', calm, 'seen_ms', 'away')
  local last_look, away, texts = tonumber(known[1] or nil), {}, {}
  if not last_look then
    away[1] = {from = 0, to = now} -- nobody has looked yet
  elseif now - last_look > math.max(shortest / 2, LONGEST_BLINK) then
    away[1] = {from = last_look, to = now}
  end
  for from, to in string.gmatch(last_look and known[2] or '', '(%d+)-(%d+)') do -- newest first
    from, to = tonumber(from), math.min(tonumber(to), now) -- the clock may have been set back
    if from < to then away[#away + 1] = {from = from, to = to} end
  end
  if #away > 32 then -- keep 32 absences: drop the shortest one, because it matters least
    local least = #away
    for i = #away, 1, -1 do
      if away[i].to - away[i].from < away[least].to - away[least].from then least = i end
    end
    table.remove(away, least)
  end
  for i, a in ipairs(away) do texts[i] = digits(a.from) .. '-' .. digits(a.to) end
  redis.call('HSET', calm, 'seen_ms', digits(now), 'away', table.concat(texts, ' '))
  return away
end

-- The idle time, in ms, at which the visibility timeout of an entry is over. Time between absences counts in full. An
-- absence that is longer than LONGEST_BLINK and than half the timeout counts as an eighth of the timeout. It counts so
-- that repeated absences cannot keep an entry pending for ever.
local function watched_idle(away, visibility, now)
  local need, at = visibility, now -- the time that must still count, and the point down to which time was counted
  for _, a in ipairs(away) do
    if at - a.to >= need then break end
    if a.to - a.from > math.max(visibility / 2, LONGEST_BLINK) then
      need, at = need - math.max(0, at - a.to), a.from
      if need <= visibility / 8 then return math.ceil(now - at) end
      need = need - visibility / 8
    end
  end
  return math.ceil(now - at + need)
end

-- The remaining time of a lease, in ms; below 1 when the lease is over. from: when the lease was given out, Unix ms.
-- within: its length, ms. An absence extends the lease by the part of the absence that lies within the lease, if that
-- part is longer than LONGEST_BLINK and than half of shortest. Up to an eighth of the lease's length is deducted from
-- each such extension, so that repeated absences cannot keep a lease for ever.
local function left_of_lease(away, from, within, shortest, now)
  local remaining = from + within - now
  for _, a in ipairs(away) do
    local absent = math.min(a.to, now) - math.max(a.from, from)
    if absent > math.max(shortest / 2, LONGEST_BLINK) then
      remaining = remaining + absent - math.min(absent, within / 8)
    end
  end
  return math.ceil(remaining)
end
