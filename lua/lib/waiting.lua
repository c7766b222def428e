-- Shared by the scripts that take a message's retries out of the schedule, or move them: how they are found.

-- Looks at about limit members of the schedule, or 1 MiB of them, from a cursor on, for those that stand for one of the messages again, in the
-- group, or in any when it is ''. One by one, because how large a member is is known only when it is read. Returns the next cursor, '0' when
-- all were looked at, and a list of member, ID, group, score. weight: what one that was found adds to the bytes, or nil.
local function waiting(due, cursor, limit, group, ids, weight)
  local found, wanted, looked, bytes = {}, {}, 0, 0
  for _, id in ipairs(ids) do wanted[id] = true end
  repeat
    local page = redis.call('ZSCAN', due, cursor, 'COUNT', 1)
    cursor, looked = page[1], looked + 1
    local members = page[2]
    for i = 1, #members, 2 do
      local member = members[i]
      bytes = bytes + #member
      local first = string.find(member, SEP, 1, true)
      if first and wanted[string.sub(member, 1, first - 1)] then
        local own = string.match(string.sub(member, first + 1), '^(.*)' .. SEP)
        if own and (group == '' or group == own) then
          local n = #found
          if weight then bytes = bytes + weight(member) end
          found[n + 1], found[n + 2], found[n + 3], found[n + 4] = member, string.sub(member, 1, first - 1), own, members[i + 1]
        end
      end
    end
  until cursor == '0' or looked >= limit or bytes >= MOST_BYTES
  return cursor, found
end
