-- Used by reclaim: which part of an entry's idle time counts against its consumer.

-- Records that the queue is looked at now, and returns the absences of the bridges, newest first. An absence is a gap
-- between two looks that is longer than half of shortest (ms, the shortest visibility timeout of the queue's groups)
-- and than 250 ms. In an absence the server or the bridge may have been down, the clock may have stepped, or the memory
-- may have been restored from an older copy. The record lies beside the pending lists, so that a restore brings back
-- both.
local function absences(calm, shortest, now)
  local known = redis.call('HMGET', calm, 'seen_ms', 'away')
  local seen, away, texts = tonumber(known[1] or nil), {}, {}
  if not seen then
    away[1] = {from = 0, to = now} -- nobody has looked yet
  elseif now - seen > math.max(shortest / 2, 250) then
    away[1] = {from = seen, to = now}
  end
  for from, to in string.gmatch(seen and known[2] or '', '(%d+)-(%d+)') do -- newest first
    from, to = tonumber(from), math.min(tonumber(to), now) -- the clock may have been set back
    if from < to then away[#away + 1] = {from = from, to = to} end
  end
  if #away > 32 then -- drop the shortest: it matters least
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
-- absence of more than half the timeout (and 250 ms) counts as an eighth of the timeout. So the wait never starts over.
local function watched_idle(away, visibility, now)
  local need, at = visibility, now
  for _, a in ipairs(away) do
    if at - a.to >= need then break end
    if a.to - a.from > math.max(visibility / 2, 250) then
      need, at = need - math.max(0, at - a.to), a.from
      if need <= visibility / 8 then return math.ceil(now - at) end
      need = need - visibility / 8
    end
  end
  return math.ceil(now - at + need)
end

-- The remaining time of a lease, in ms; below 1 when it is over. An absence extends the lease if more than half of
-- shortest (and 250 ms) of it lies within the lease; an eighth of the lease's length counts all the same.
local function left_of_lease(away, from, within, shortest, now)
  local left = from + within - now
  for _, a in ipairs(away) do
    local gone = math.min(a.to, now) - math.max(a.from, from)
    if gone > math.max(shortest / 2, 250) then left = left + gone - math.min(gone, within / 8) end
  end
  return math.ceil(left)
end
