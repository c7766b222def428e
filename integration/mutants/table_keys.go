package main

// keyMutants are about messages with a key.
var keyMutants = []mutant{
	{
		name: "a retry does not keep the key of its entry", file: "lua/lib/key.lua",
		old:  "  if key and (always or not k.passes) then",
		new:  "  if key and always then",
		test: model,
	},
	{
		name: "a message with a key overtakes an older one that waits", file: "lua/lib/key.lua",
		old:  "or kind == 'wait' and first >= at then return false end",
		new:  "or kind == 'wait' then return false end",
		test: model,
	},
	{
		name: "a call without turns schedules a retry that does not hold its key", file: "lua/lib/exit.lua",
		old:  "  if not k.turns and fields['key'] and is_group(fields['key']) then",
		new:  "  if false then",
		test: []string{"-run", "TestFunctionsWithoutTurns", "./lua"},
	},
	{
		name: "the sweep of keys takes what one group holds for done with", file: "lua/pass_turns.lua",
		old:  "    if group.pending > 0 and redis",
		new:  "    if group.pending > 1e9 and redis",
		test: model,
	},
	{
		name: "who waits keeps its place though it was moved", file: "lua/lib/key.lua",
		old:  "    if score and parked_due(score) == at then",
		new:  "    if score then",
		test: model,
	},
}
