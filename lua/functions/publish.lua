-- Shared by all functions of the library: a script is published under a name, with the lists of its header, which each call is held against.

local scripts = {}

-- What is wrong with the numbers of keys and arguments of a call, as an error reply; nil when they fit. Nobody checks them before: other
-- clients send what they like, and one argument too few would give each that follows another meaning.
local function misfit(name, given_keys, given_args, keys, args, each, more, later)
  local with_history = #keys + #more
  local tells = #more > 0 and (given_keys == with_history or given_keys == with_history + #later) -- who gives the keys of a history says who it is, too
  local rest = given_args - #args - (tells and 1 or 0)
  local fits = rest == 0 or (rest > 0 and #each > 0 and rest % #each == 0)
  if (tells or given_keys == #keys) and fits then return nil end
  local wanted = table.concat(args, ', ')
  if #each > 0 then wanted = wanted .. (#args > 0 and ', then ' or '') .. 'any number of: ' .. table.concat(each, ', ') end
  return redis.error_reply('ERR ' .. name .. ' was given ' .. given_keys .. ' keys and ' .. given_args .. ' arguments; its keys are ' .. table.concat(keys, ', ') ..
    '; its arguments ' .. wanted .. (#more > 0 and '; or also the keys ' .. table.concat(more, ', ') .. ', and last the argument actor' or '') ..
    (#later > 0 and '; then also the keys ' .. table.concat(later, ', ') or ''))
end

local function publish(name, script, flags, keys, args, each, more, later)
  redis.register_function{function_name = name, flags = flags, callback = function(given_keys, given_args)
    return misfit(name, #given_keys, #given_args, keys, args, each, more, later) or scripts[script](given_keys, given_args)
  end}
end
