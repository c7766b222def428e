package main

// retriesMutants are of how often, how soon and how long messages are tried.
var retriesMutants = []mutant{
	{
		name: "the policy's delays win over those of the message", file: "lua/lib/exit.lua",
		old:  "fields['retry_delays_ms'] and own_delays(fields['retry_delays_ms']) or k.delays",
		new:  "k.delays",
		test: []string{"-run", "TestDelaysOfTheMessage", "./lua"},
	},
	{
		name: "the age of a message counts from its last retry", file: "lua/lib/exit.lua",
		old:  "ipairs({'first_due_ms', 'due_ms'})",
		new:  "ipairs({'due_ms'})",
		test: []string{"-run", "TestAMessageIsNotTried", "./lua"},
	},
	{
		name: "a retry is made that will be too old", file: "lua/lib/exit.lua",
		old:  "now + delay > first + retry_for",
		new:  "now > first + retry_for",
		test: []string{"-run", "TestAMessageIsNotTried", "./lua"},
	},
	{
		name: "a redriven letter is as old as it was", file: "lua/redrive.lua",
		old:  ", first_due_ms = true",
		new:  "",
		test: []string{"-run", "TestRedriveForgets", "./lua"},
	},
	{
		name: "a bridge leaves what an earlier one wrote into the defaults", file: "stream/policystore.go",
		old:  "values = append(values, lua.FieldValue{Field: s.name})\n\t\tdefault:",
		new:  "\t\tdefault:",
		test: []string{"-run", "TestALevelCanTurn", "./stream"},
	},
}
