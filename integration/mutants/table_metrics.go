package main

// metricsMutants are about metrics.
var metricsMutants = []mutant{
	{
		name: "queues beyond the bound get series of their own", file: "bridge/metrics/names.go",
		old:  " || !n.roomForQueue(now)",
		new:  "",
		test: []string{"-run", "TestNamesBeyondTheBoundAreOther", "./bridge/metrics"},
	},
	{
		name: "a name that no label can hold becomes one", file: "bridge/metrics/names.go",
		old:  "lua.CheckGroup(group) != nil || !n.roomForGroup(now)",
		new:  "!n.roomForGroup(now)",
		test: []string{"-run", "TestNamesThatNoLabelCanHoldAreOther", "./bridge/metrics"},
	},
	{
		name: "each scrape reads the state by itself", file: "bridge/metrics/state.go",
		old:  "\t\ts.reading = r\n",
		new:  "",
		test: []string{"-run", "TestConcurrentScrapesShareARead", "./bridge/metrics"},
	},
	{
		name: "a read that failed says that it did not", file: "bridge/metrics/state.go",
		old:  "\t} else {\n\t\tg.set(gaugeUp, 0)\n\t}\n",
		new:  "\t} else {\n\t\tg.set(gaugeUp, 1)\n\t}\n",
		test: []string{"-run", "TestScrapeWithFewRights", "./bridge/metrics"},
	},
	{
		name: "a consumer counts in each partition", file: "bridge/metrics/gauges.go",
		old:  "if s.Partition == 0 {",
		new:  "if s.Partition >= 0 {",
		test: []string{"-run", "TestPartitionsAddUpOverBridges", "./bridge/metrics"},
	},
	{
		name: "dead letters that are gone stay counted", file: "stream/inspect/letters.go",
		old:  "known.guess || known.length+l.read != length",
		new:  "known.guess",
		test: []string{"-run", "TestScrapeCostsFewRoundTrips", "./bridge/metrics"},
	},
	{
		name: "a script that the server does not know yet is an error", file: "internal/observe/client.go",
		old:  "ok && answer.IsNoScript()",
		new:  "ok && answer.IsNoScript() && script == \"\"",
		test: []string{"-run", "TestErrorsAreCountedByKind", "./bridge/metrics"},
	},
	{
		name: "a trimmed stream of dead letters is read again at each scrape", file: "stream/inspect/letters.go",
		old:  "l.guess && (again || known.bytes <= letterCheap)",
		new:  "l.guess",
		test: []string{"-run", "TestATrimmedStreamOfLettersIsNotReadAgainAtEachLook", "./stream/inspect"},
	},
	{
		name: "each foreign group of a dead letter is remembered", file: "stream/inspect/letters.go",
		old:  "len(l.kinds) >= letterKinds",
		new:  "len(l.kinds) < 0",
		test: []string{"-run", "TestForeignLettersMakeFewKinds", "./stream/inspect"},
	},
	{
		name: "groups behind the first 64 of a partition have no lag", file: "stream/inspect/state.go",
		old:  "range p.infos[len(p.groups):]",
		new:  "range p.infos[len(p.infos):]",
		test: []string{"-run", "TestEveryGroupHasItsLag", "./stream/inspect"},
	},
	{
		name: "a queue that comes back is counted anew", file: "bridge/metrics/family.go",
		old:  "f.hidden[key] = one",
		new:  "_ = one",
		test: []string{"-run", "TestLabelsOfQueuesThatAreGoneAreGivenBack", "./bridge/metrics"},
	},
	{
		name: "labels of queues that are gone stay taken", file: "bridge/metrics/names.go",
		old:  "now.Unix()-one.seen.Load() > int64(goneAfter.Seconds())",
		new:  "now.Unix()-one.seen.Load() < 0",
		test: []string{"-run", "TestLabelsOfQueuesThatAreGoneAreGivenBack", "./bridge/metrics"},
	},
	{
		name: "a group of dead letters keeps its label from one that is there", file: "bridge/metrics/names.go",
		old:  "if g.onlyLetters {",
		new:  "if g.onlyLetters && false {",
		test: []string{"-run", "TestGroupsThatAreThereHaveLabelsBeforeThoseOfLetters", "./bridge/metrics"},
	},
	{
		name: "a scrape keeps its lock while it sends", file: "bridge/metrics/family.go",
		old:  "\tall := maps.Clone(f.all)\n\tf.mu.Unlock()\n",
		new:  "\tall := maps.Clone(f.all)\n\tdefer f.mu.Unlock()\n",
		test: []string{"-run", "TestNobodyWaitsForASlowScrape", "./bridge/metrics"},
	},
	{
		name: "nobody is told of what waits when a worker is stopped for good", file: "stream/settle.go",
		old:  "\tdefer s.giveUp()\n",
		new:  "",
		test: []string{"-run", "TestEachDeliveryIsToldOfWhenTheWorkerIsStoppedForGood", "./stream"},
	},
	{
		name: "a stuck delivery is told at every try", file: "stream/keeper/stuck.go",
		old:  "\tr.told[group] = now\n",
		new:  "",
		test: []string{"-run", "TestEntryTheDeadLettersRefuseStaysPendingAndIsReportedOnce", "./stream/keeper"},
	},
}
