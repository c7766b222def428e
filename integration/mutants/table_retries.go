package main

// retriesMutants are about how often, how soon and how long messages are retried.
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
		old:  "first_due_ms = true, ",
		new:  "",
		test: []string{"-run", "TestRedriveForgets", "./lua"},
	},
	{
		name: "a snooze uses an attempt up", file: "lua/lib/exit.lua",
		old:  "    verdict = SNOOZED\n    next_attempt = attempt\n",
		new:  "    verdict = SNOOZED\n",
		test: []string{"-run", "TestSnoozedMessage", "./lua"},
	},
	{
		name: "a message is snoozed for ever", file: "lua/lib/exit.lua",
		old:  "if snoozes > (limit > 0 and limit or MOST_SNOOZES) then",
		new:  "if limit > 0 and snoozes > limit then",
		test: []string{"-run", "TestSnoozesAreBounded", "./lua"},
	},
	{
		name: "a crash uses an attempt up where it is counted apart", file: "lua/lib/exit.lua",
		old:  "    failed = attempt\n    next_attempt = attempt\n    delay = delay_after(k, fields, crashes)\n",
		new:  "    delay = delay_after(k, fields, crashes)\n",
		test: []string{"-run", "TestCrashesAreCounted", "./lua"},
	},
	{
		name: "a message may crash its workers for ever", file: "lua/lib/exit.lua",
		old:  "if crashes >= setting(k, fields, 'max_crashes') then",
		new:  "if false then",
		test: []string{"-run", "TestCrashesAreCounted", "./lua"},
	},
	{
		name: "a bridge does not know how many crashes a message may have", file: "lua/consume.go",
		old:  ", {FieldMaxCrashes, int64(a.MaxCrashes)}",
		new:  "",
		test: []string{"-run", "TestCrashesAreCounted", "./lua"},
	},
	{
		name: "a bridge leaves what an earlier one wrote into the defaults", file: "stream/policystore.go",
		old:  "values = append(values, lua.FieldValue{Field: s.name})\n\t\tdefault:",
		new:  "\t\tdefault:",
		test: []string{"-run", "TestALevelCanTurn", "./stream"},
	},
	{
		name: "a worker takes up what its name held before it started", file: "stream/reader.go",
		old:  "from := p.start.String()",
		new:  "from := \"-\"",
		test: []string{"-run", "TestWorkerLeavesWhatItsNameHeld", "./stream"},
	},
}
