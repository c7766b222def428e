-- Shared by all functions of the library: publishes a script under a name, and checks each call against the lists of
-- its header.

local scripts = {}

-- Checks the numbers of keys and arguments of a call. Returns an error reply, or nil when they fit. Other clients may
-- send anything, and one missing argument would shift the meaning of all that follow.
local function misfit(name, given_keys, given_args, keys, args, each, more, later)
  local with_history = #keys + #more
  -- A caller that gives the history keys also gives the actor.
  local tells = #more > 0 and (given_keys == with_history or given_keys == with_history + #later)
  local rest = given_args - #args - (tells and 1 or 0)
  local fits = rest == 0 or (rest > 0 and #each > 0 and rest % #each == 0)
  if (tells or given_keys == #keys) and fits then return nil end
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

-- Turns a call of the shape that an earlier release documented into a current one: each key moves to its current place,
-- and arguments that an item did not have then are ''. Returns nil when the call has another shape. former: the names
-- of its keys, and of the arguments of an item.
local function of_today(former, given_keys, given_args, keys, args, each, more)
  local tells = former.keys[#former.keys] == 'history' and 1 or 0 -- its last argument is the actor
  local rest = #given_args - #args - tells
  local fits = rest == 0 or rest > 0 and #former.each > 0 and rest % #former.each == 0
  if #given_keys ~= #former.keys or not fits then return nil end
  local given = {} -- keys by name
  for i, name in ipairs(former.keys) do given[name] = given_keys[i] end
  local keys_now = {}
  for i, name in ipairs(keys) do keys_now[i] = given[name] end
  for i, name in ipairs(more) do keys_now[#keys + i] = given[name] end
  local today = {}
  for i, value in ipairs(given_args) do
    today[#today + 1] = value
    local item = i - #args -- the number of this argument among those of the items
    if item > 0 and item <= rest and item % #former.each == 0 then
      for _ = #former.each + 1, #each do today[#today + 1] = '' end
    end
  end
  return keys_now, today
end

local function publish(name, script, flags, keys, args, each, more, later, former)
  redis.register_function{function_name = name, flags = flags, callback = function(given_keys, given_args)
    local refusal = misfit(name, #given_keys, #given_args, keys, args, each, more, later)
    if not refusal then return scripts[script](given_keys, given_args) end
    for _, shape in ipairs(former) do
      local keys_now, args_now = of_today(shape, given_keys, given_args, keys, args, each, more)
      if keys_now then return scripts[script](keys_now, args_now) end
    end
    return refusal
  end}
end
