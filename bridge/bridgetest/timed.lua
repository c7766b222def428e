-- Stands before a script of duestream in the tests of a user's program. It makes the script use the clock of the test
-- kit. The kit adds three arguments at the end: its time in s, the µs within that second, and the ID for new entries.
local untimed, seconds, micros, stamp = redis, ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]
for _ = 1, 3 do table.remove(ARGV) end

-- Adds an entry with an ID of the kit's time. If the stream has a later entry, the server chooses the ID.
local function add(send, key, ...)
  local a, b, c = ...
  local args = {...}
  local at = a == '*' and 1 or a == 'MAXLEN' and c == '*' and 3
  if not at then return send('XADD', key, ...) end
  args[at] = stamp
  local reply = untimed.pcall('XADD', key, unpack(args))
  if type(reply) == 'table' and reply.err then return send('XADD', key, ...) end
  return reply
end

-- Keys do not expire, because the server would count the time by its own clock.
local function timed(send)
  return function(command, ...)
    if command == 'TIME' then return {seconds, micros} end
    if command == 'PEXPIRE' then return 1 end
    if command == 'SET' then
      local key, value = ...
      return send('SET', key, value)
    end
    if command == 'XADD' then return add(send, ...) end
    return send(command, ...)
  end
end
local redis = setmetatable({call = timed(untimed.call), pcall = timed(untimed.pcall)}, {__index = untimed})
