package main

// flowMutants are those of what changes many messages, and of how workers choose among queues.
var flowMutants = []mutant{
	{
		name: "what expires is not due", file: "lua/expire.lua",
		old:  "  if not is_due then redis.call('ZADD', due, 'XX', stamp, member) end\n",
		new:  "",
		test: []string{"-run", "TestExpiredMessagesBecomeDeadLetters", "./lua"},
	},
	{
		name: "what expires is delivered", file: "lua/expire.lua",
		old:  "    fields['expires_ms'] = stamp\n",
		new:  "",
		test: []string{"-run", "TestExpiredMessagesBecomeDeadLetters", "./lua"},
	},
	{
		name: "nobody is woken for what expires", file: "lua/expire.lua",
		old:  "if changed then wake_if_earlier(wake, before, now) end",
		new:  "",
		test: []string{"-run", "TestExpiredMessagesBecomeDeadLetters", "./lua"},
	},
	{
		name: "a beginning of an ID is a pattern", file: "scheduler/bulk/filter.go",
		old:  "view.EscapeGlob(f.Prefix) + \"*\"",
		new:  "strings.ReplaceAll(view.EscapeGlob(f.Prefix), \"\\\\\", \"\") + \"*\"",
		test: []string{"-run", "TestHostileNamesAreTexts", "./scheduler/bulk"},
	},
	{
		name: "a dry run changes what it finds", file: "scheduler/bulk/run.go",
		old:  "\tif r.options.DryRun {\n",
		new:  "\tif false {\n",
		test: []string{"-run", "TestDryRunChangesNothing", "./scheduler/bulk"},
	},
	{
		name: "what became ready meanwhile counts as changed", file: "scheduler/bulk/run.go",
		old:  "\t\tcase changed:\n",
		new:  "\t\tcase changed, gone:\n",
		test: []string{"-run", "TestWhatBecomesReadyMeanwhileIsReported", "./scheduler/bulk"},
	},
	{
		name: "a partition that comes meanwhile is not looked at", file: "scheduler/bulk/run.go",
		old:  "if before != nil && counts.Latest() == before.Latest() {",
		new:  "if before != nil {",
		test: []string{"-run", "TestQueueGrowsMeanwhile", "./scheduler/bulk"},
	},
	{
		name: "what was moved is moved again", file: "scheduler/bulk/run.go",
		old:  "if r.target != nil && m.Due.Equal(r.target(m)) {",
		new:  "if false {",
		test: []string{"-run", "TestRunThatWasInterruptedGoesOn", "./scheduler/bulk"},
	},
	{
		name: "a strict order lets anybody read", file: "stream/priority.go",
		old:  "if (first == nil || c.line.rank <= first.rank) && (best",
		new:  "if (first == nil || true) && (best",
		test: []string{"-run", "TestStrictOrderUnderABacklog|TestOrderOfQueues", "./stream"},
	},
	{
		name: "deliveries are not counted against a share", file: "stream/priority.go",
		old:  "\t\tl.served += float64(deliveries) / l.weight\n",
		new:  "",
		test: []string{"-run", "TestWeightsAreSharesOfDeliveries", "./stream"},
	},
	{
		name: "a share is saved", file: "stream/priority.go",
		old:  "\t\tl.served = max(l.served, s.order.served)\n",
		new:  "",
		test: []string{"-run", "TestShareIsNotSaved", "./stream"},
	},
	{
		name: "a queue that fails has work for ever", file: "stream/reader.go",
		old:  "\t\tp.setIdle(true)\n\t\trecovered,",
		new:  "\t\trecovered,",
		test: []string{"-run", "TestQueueThatFailsDoesNotStopOthers", "./stream"},
	},
	{
		name: "a burst is not spread", file: "scheduler/producer/group_commit.go",
		old:  "\t\t\tw.item.When = w.item.When.Later(lua.SpreadOf(w.item.ID, w.spread))\n",
		new:  "",
		test: []string{"-run", "TestSpreadScattersABurst", "./scheduler/producer"},
	},
}
