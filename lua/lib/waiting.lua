-- Shared by the scripts that cancel or move the retries of a message: finds them in the schedule.

-- Scans the schedule from a cursor on for retries and redriven letters of the given messages, about limit members or 1
-- MiB of them. group: finds only those for this group; '' = for any group. weight: nil, or a function that returns the
-- bytes by which a found member counts besides its own size. It scans one member at a time, because the size of a
-- member is known only when it is read. Returns the next cursor ('0' = the scan is complete), and a flat list of
-- member, ID, group, score.
local function waiting(due, cursor, limit, group, ids, weight)
  local wanted = {}
  for _, id in ipairs(ids) do wanted[id] = true end
  local found, looked, bytes = {}, 0, 0
  repeat
    local page = redis.call('ZSCAN', due, cursor, 'COUNT', 1)
    cursor = page[1]
    looked = looked + 1
    local members = page[2]
    for i = 1, #members, 2 do
      local member = members[i]
      bytes = bytes + #member
      local first = string.find(member, SEP, 1, true)
      local id = first and string.sub(member, 1, first - 1)
      if id and wanted[id] then
        local own = string.match(string.sub(member, first + 1), '^(.*)' .. SEP)
        if own and (group == '' or group == own) then
          if weight then bytes = bytes + weight(member) end
          add_pair(found, member, id)
          add_pair(found, own, members[i + 1])
        end
      end
    end
  until cursor == '0' or looked >= limit or bytes >= MOST_BYTES
  return cursor, found
end
