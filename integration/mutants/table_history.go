package main

// historyMutants are about the history that scripts record.
var historyMutants = []mutant{
	{
		name: "a cancellation is not recorded", file: "lua/cancel.lua",
		old:  "  if story then note_member(story, 'cancelled', id, '}') end\n",
		new:  "",
		test: []string{"-run", "TestHistoryTellsEveryChange", "./lua"},
	},
	{
		name: "an acknowledgement is recorded even if it was lost", file: "lua/ack.lua",
		old:  "    if story then\n      local of_message",
		new:  "  end\n  do\n    if story then\n      local of_message",
		test: []string{"-run", "TestHistoryTellsEveryChange", "./lua"},
	},
	{
		name: "a history that cannot be written fails the call", file: "lua/ack.lua",
		old:  "if story then pcall(tell, story) end\n",
		new:  "if story then tell(story) end\n",
		test: []string{"-run", "TestNothingDependsOnAHistory", "./lua"},
	},
	{
		name: "a history never expires", file: "lua/lib/history.lua",
		old:  "    redis.call('PEXPIRE', story.history, story.age)\n",
		new:  "",
		test: []string{"-run", "TestHistoryIsBounded", "./lua"},
	},
}
