package main

// runningMutants are about cancelling messages that are ready or running.
var runningMutants = []mutant{
	{
		name: "a failure of a cancelled delivery is tried again", file: "lua/retry.lua",
		old:  "  how.cancelled = how.action == 'cancel' or cancelled_among(",
		new:  "  how.cancelled = how.action == 'cancel' or false and cancelled_among(",
		test: []string{"-run", "TestCancelOfWhatIsHeldEndsIt", "./lua"},
	},
	{
		name: "what a dead worker held and was cancelled is tried again", file: "lua/reclaim.lua",
		old:  "  local cancelled = owner[1] and is_cancelled(owner[1][4])\n",
		new:  "  local cancelled = false\n",
		test: []string{"-run", "TestCancelOfWhatIsHeldEndsIt", "./lua"},
	},
	{
		name: "a cancelled delivery without a body becomes a dead letter", file: "lua/reclaim.lua",
		old:  "  if cancelled_among(holders, entry) then\n",
		new:  "  if false then\n",
		test: []string{"-run", "TestCancelAmongSeveralGroups", "./lua"},
	},
	{
		name: "what another group needs is deleted", file: "lua/cancel_entries.lua",
		old:  "  plan.delete = asked_unread and not needed\n",
		new:  "  plan.delete = asked_unread\n",
		test: []string{"-run", "TestCancelForOneGroup", "./lua"},
	},
	{
		name: "the key of a cancelled entry stays busy", file: "lua/cancel_entries.lua",
		old:  "if k.held[1] then pcall(pass_held, k) end\n",
		new:  "",
		test: []string{"-run", "TestCancelOfAReadyMessageFreesItsKey", "./lua"},
	},
	{
		name: "a handler hears of a cancel late", file: "stream/extend.go",
		old:  "min(visibility/3, learnWithin)",
		new:  "visibility / 3",
		test: []string{"-run", "TestCancelReachesARunningHandler", "./stream"},
	},
	{
		name: "a retry that hops is not found", file: "scheduler/producer/running.go",
		old:  "const mostRounds = 3",
		new:  "const mostRounds = 1",
		test: []string{"-run", "TestCancelRunningFindsARetryThatHops", "./scheduler/producer"},
	},
	{
		name: "what was read between two looks does not count", file: "scheduler/producer/running.go",
		old:  "\t\tbefore = next\n",
		new:  "\t\tbefore, _ = now, next\n",
		test: []string{"-run", "TestCancelRunningFindsARetryThatHops", "./scheduler/producer"},
	},
}
