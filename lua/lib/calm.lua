-- Shared by the script that takes back what was abandoned: which part of an idle time says something about a consumer.

-- The absences of whoever looks, newest first, by the times at which the queue was looked at; and notes that it is looked at now. A gap
-- between two looks of more than half of shortest (the shortest timeout of the queue's groups, ms) is an absence: the server, or whoever
-- looks, may have been away, its clock stepped, its memory restored from an older copy. The record lies beside what it judges and shares its fate.
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
  if #away > 32 then -- the shortest tells the least
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

-- How long an entry must have been idle for a visibility timeout to have passed over it. In an absence an eighth of the timeout passes at
-- most, in what lies between absences all of it, so that the wait is never begun anew.
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

-- What is left of a lease, in ms: below 1 when it is over. Only absences count that lie in its own time, and are as long as one between two looks.
local function left_of_lease(away, from, within, shortest, now)
  local left = from + within - now
  for _, a in ipairs(away) do
    local gone = math.min(a.to, now) - math.max(a.from, from)
    if gone > math.max(shortest / 2, 250) then left = left + gone - math.min(gone, within / 8) end
  end
  return math.ceil(left)
end
