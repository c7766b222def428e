-- Shared by the scripts that look for orphans: fields of the hash payload or meta whose message is not in the schedule.

-- Scans a hash from a cursor on, and calls found(field, bytes of its value) for each orphan. It scans one bucket at a
-- time, because the next values may be of any size. Returns the next cursor, and how many fields were scanned.
local function scan_orphans(due, fields, cursor, limit, found)
  local bytes, looked = 0, 0
  for _ = 1, limit do
    local page = redis.call('HSCAN', fields, cursor, 'COUNT', 1)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local field, size = page[2][i], #page[2][i + 1]
      bytes, looked = bytes + #field + size, looked + 1
      if not redis.call('ZSCORE', due, field) then found(field, size) end
    end
    if cursor == '0' or looked >= limit or bytes >= MOST_BYTES then break end
  end
  return cursor, looked
end
