package main

// flowMutants are about changing many messages, and about how workers choose among queues.
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
		old:  "return first == nil || c.line.rank <= first.rank",
		new:  "return true",
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
	{
		name: "a clock that is set back stops a queue with a rate", file: "lua/lib/flow.lua",
		old:  "    full = math.min(math.max(tonumber(redis.call('GET', rate) or '') or 0, now_us), empty)\n",
		new:  "    full = math.max(tonumber(redis.call('GET', rate) or '') or 0, now_us)\n",
		test: []string{"-run", "TestRateSurvivesWhateverItsBucketSays", "./lua"},
	},
	{
		name: "what a drain lets pass uses no token", file: "lua/lib/flow.lua",
		old:  "    if spent > 0 then keep(at) end\n",
		new:  "",
		test: []string{"-run", "TestDrainKeepsTheRate|TestRateHoldsOverTime", "./lua"},
	},
	{
		name: "a group that nobody serves holds back the retries of others", file: "lua/lib/flow.lua",
		old:  "    if room < 1 and not again then",
		new:  "    if room < 1 then",
		test: []string{"-run", "TestRetriesPassTheReadyLimit", "./lua"},
	},
	{
		name: "what is due at once passes by a rate", file: "lua/lib/flow.lua",
		old:  "  return set[1] == '1' or interval_of(set[2]) ~= nil or",
		new:  "  return set[1] == '1' or",
		test: []string{"-run", "TestMessagesDueAtOnceKeepTheRate", "./lua"},
	},
	{
		name: "a worker goes on reading in a pause that it is to keep", file: "stream/reader.go",
		old:  "	if p.policy.Load().HeldWorkers {\n",
		new:  "	if p.policy.Load().HeldWorkers && false {\n",
		test: []string{"-run", "TestWorkersKeepAPause", "./stream"},
	},
	{
		name: "what a rate holds back makes a bridge unready", file: "scheduler/late.go",
		old:  "	if late > 0 && !d.held {",
		new:  "	if late > 0 {",
		test: []string{"-run", "TestMessagesHeldBackMakeNoBridgeUnready", "./scheduler"},
	},
}
