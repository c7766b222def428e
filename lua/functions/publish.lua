-- Shared by all functions of the library: publishes a script under a name, and checks each call against the lists of
-- its header.

local scripts = {}

-- Checks the numbers of keys and arguments of a call. Returns an error reply, or nil if they fit. Clients in other
-- languages may send anything, and one missing argument would shift the meaning of all that follow.
--
-- A function's keys are `keys`, then those in `more` up to the key history, then those in `later`, which a later
-- release added. A caller may leave out `later`, or both `more` and `later`. Its arguments are `args`, then any number
-- of items with the arguments `each`, then the actor, if the caller gives the keys in `more`.
local function call_error(name, given_keys, given_args, keys, args, each, more, later)
  local with_history = #keys + #more
  local has_actor = #more > 0 and (given_keys == with_history or given_keys == with_history + #later)
  local item_args = given_args - #args - (has_actor and 1 or 0)
  local fits = item_args == 0 or (item_args > 0 and #each > 0 and item_args % #each == 0)
  if (has_actor or given_keys == #keys) and fits then return nil end
  local wanted = table.concat(args, ', ')
  if #each > 0 then
    if #args > 0 then wanted = wanted .. ', then ' end
    wanted = wanted .. 'any number of: ' .. table.concat(each, ', ')
  end
  local text = name .. ' was given ' .. given_keys .. ' keys and ' .. given_args .. ' arguments; its keys are ' ..
    table.concat(keys, ', ') .. '; its arguments ' .. wanted
  if #more > 0 then
    text = text .. '; or also the keys ' .. table.concat(more, ', ') .. ', and last the argument actor'
  end
  if #later > 0 then text = text .. '; then also the keys ' .. table.concat(later, ', ') end
  return redis.error_reply('ERR ' .. text)
end

-- Converts a call as an earlier release documented it into a current one: each key moves to its current place, and
-- arguments that an item did not have in that release become ''. former: the names of the keys, and of an item's
-- arguments, in that release. Returns the current keys and arguments; nil if the call does not fit that release.
local function convert_call(former, given_keys, given_args, keys, args, each, more)
  local actor_args = former.keys[#former.keys] == 'history' and 1 or 0
  local item_args = #given_args - #args - actor_args
  local fits = item_args == 0 or item_args > 0 and #former.each > 0 and item_args % #former.each == 0
  if #given_keys ~= #former.keys or not fits then return nil end
  local given = {} -- keys by name
  for i, name in ipairs(former.keys) do given[name] = given_keys[i] end
  local keys_now = {}
  for i, name in ipairs(keys) do keys_now[i] = given[name] end
  for i, name in ipairs(more) do keys_now[#keys + i] = given[name] end
  local args_now = {}
  for i, value in ipairs(given_args) do
    args_now[#args_now + 1] = value
    local n = i - #args -- the number of this argument among the arguments of all items
    local ends_item = n > 0 and n <= item_args and n % #former.each == 0
    if ends_item then
      for _ = #former.each + 1, #each do args_now[#args_now + 1] = '' end
    end
  end
  return keys_now, args_now
end

-- Registers a function of the library that runs a script. The lists are those of the script's header: see call_error
-- and convert_call. former: the lists of earlier releases.
local function publish(name, script, flags, keys, args, each, more, later, former)
  redis.register_function{function_name = name, flags = flags, callback = function(given_keys, given_args)
    local refusal = call_error(name, #given_keys, #given_args, keys, args, each, more, later)
    if not refusal then return scripts[script](given_keys, given_args) end
    for _, shape in ipairs(former) do
      local keys_now, args_now = convert_call(shape, given_keys, given_args, keys, args, each, more)
      if keys_now then return scripts[script](keys_now, args_now) end
    end
    return refusal
  end}
end
