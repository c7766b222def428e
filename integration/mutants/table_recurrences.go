package main

// recurrenceMutants are those of what recurs: when, and planned how often.
var recurrenceMutants = []mutant{
	{
		name: "a planner does not look whether another has planned", file: "lua/plan.lua",
		old:  "if known ~= before or redis.call('HEXISTS', recurring, name) == 0 then return {0, known} end",
		new:  "if redis.call('HEXISTS', recurring, name) == 0 then return {0, known} end",
		test: []string{"-run", "TestAnOccurrenceIsPlannedOnce|TestManyPlanners", "./lua", "./scheduler/planner"},
	},
	{
		name: "a removed recurrence is planned", file: "lua/plan.lua",
		old:  "if known ~= before or redis.call('HEXISTS', recurring, name) == 0 then return {0, known} end",
		new:  "if known ~= before then return {0, known} end",
		test: []string{"-run", "TestNothingIsPlannedOfAFormerSpec", "./lua"},
	},
	{
		name: "a change leaves what was planned", file: "lua/recur.lua",
		old:  "take_back(due, payload, meta, back, story)",
		new:  "",
		test: []string{"-run", "TestAChangeTakesBackWhatWasPlanned", "./lua"},
	},
	{
		name: "a change plans again what has left the schedule", file: "lua/recur.lua",
		old:  "plan.planned = math.max(now, latest)",
		new:  "plan.planned = now",
		test: []string{"-run", "TestAChangeDoesNotRepeatWhatHasLeftTheSchedule", "./lua"},
	},
	{
		name: "a retry that waits is done", file: "lua/find_unfinished.lua",
		old:  "if found[1] then return {1, '0'} end",
		new:  "",
		test: []string{"-run", "TestAMessageIsUnfinishedUntilEveryGroupIsDone", "./lua"},
	},
	{
		name: "what one group has acknowledged is done", file: "lua/find_unfinished.lua",
		old:  "less(group.last, entry) or group.pending > 0 and redis.call('XPENDING', stream, group.name, entry, entry, 1)[1]",
		new:  "less(group.last, entry)",
		test: []string{"-run", "TestAMessageIsUnfinishedUntilEveryGroupIsDone", "./lua"},
	},
	{
		name: "a time that comes twice counts twice", file: "scheduler/recurrence/zone.go",
		old:  "first.Before(start) && clock",
		new:  "false && clock",
		test: []string{"-run", "TestWhereClocksAreSet|TestAYearInEightZones", "./scheduler/recurrence"},
	},
	{
		name: "a time that does not exist is left out", file: "scheduler/recurrence/zone.go",
		old:  "		return gap, to\n",
		new:  "		return time.Time{}, to\n",
		test: []string{"-run", "TestWhereClocksAreSet", "./scheduler/recurrence"},
	},
	{
		name: "a date that was left out counts", file: "scheduler/recurrence/zone.go",
		old:  "from.Before(midnight) && !to.Before(tomorrow)",
		new:  "from.Before(midnight) && false",
		test: []string{"-run", "TestWhereClocksAreSet|TestAYearInEightZones", "./scheduler/recurrence"},
	},
	{
		name: "every half hour misses the repeated hour", file: "scheduler/recurrence/spec.go",
		old:  "	if s.cron.allHours() {\n",
		new:  "	if false {\n",
		test: []string{"-run", "TestWhereClocksAreSet", "./scheduler/recurrence"},
	},
	{
		name: "missed occurrences are planned as if they were not", file: "scheduler/planner/decide.go",
		old:  "	if from.Before(cut) {\n",
		new:  "	if false {\n",
		test: []string{"-run", "TestMissedOccurrences", "./scheduler/planner"},
	},
	{
		name: "the next one is planned only when it is near", file: "scheduler/planner/decide.go",
		old:  "	for ahead := coming.After(now); len(all) < left; {\n",
		new:  "	for ahead := true; len(all) < left; {\n",
		test: []string{"-run", "TestMissedOccurrences", "./scheduler/planner"},
	},
	{
		name: "overlap skip does not look", file: "scheduler/planner/queue.go",
		old:  "	case !left:\n",
		new:  "	case !left || true:\n",
		test: []string{"-run", "TestOverlapSkipWaitsForTheOneBefore", "./scheduler/planner"},
	},
}
