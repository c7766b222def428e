package main

// healthMutants are about advice, probes and log lines.
var healthMutants = []mutant{
	{
		name: "a flood of lines is written as a whole", file: "internal/loop/floods.go",
		old:  "if one.said < floodLines {",
		new:  "if true {",
		test: []string{"-run", "TestFloodsAreSampledAndCounted", "./internal/loop"},
	},
	{
		name: "a worker that ends does not count what it left out", file: "stream/worker.go",
		old:  "\tdefer w.floods.Close()\n",
		new:  "",
		test: []string{"-run", "TestAFloodOfFailuresIsAFewLines", "./stream"},
	},
	{
		name: "a partition that was drained stays late", file: "scheduler/drain.go",
		old:  "\t\t\td.sawHead(0)\n",
		new:  "",
		test: []string{"-run", "TestStatusSaysWhatIsLate", "./scheduler"},
	},
	{
		name: "a bridge is ready whatever its heartbeats say", file: "scheduler/late.go",
		old:  "case age > GoneAfter:",
		new:  "case false:",
		test: []string{"-run", "TestStatusSaysWhenNobodyAnswers", "./scheduler"},
	},
	{
		name: "a queue that is drained, and late, is said to stand still", file: "stream/inspect/standstill.go",
		old:  "return min(p.behind, view.Millis(max(0, r.now.Sub(last))))",
		new:  "return p.behind",
		test: []string{"-run", "TestSamplesAgreeWithStats", "./stream/inspect"},
	},
	{
		name: "without a bridge each consequence is said as well", file: "bridge/admin/doctor/advice.go",
		old:  "\t\t\tbridged = false\n",
		new:  "",
		test: []string{"-run", "TestAdviceNamesEachTroubleAndNothingElse", "./bridge/admin/doctor"},
	},
	{
		name: "a queue of which a key has another type makes its bridge unready", file: "scheduler/late.go",
		old:  "case l.WrongType != wrongType:",
		new:  "case wrongType && !l.WrongType:",
		test: []string{"-run", "TestAQueueOfAnotherTypeIsNamedAndMakesNoBridgeUnready", "./scheduler"},
	},
	{
		name: "pages of browsers set the log level", file: "cmd/duestream/internal/process/probes.go",
		old:  "if len(r.Header.Values(\"Origin\"))+len(r.Header.Values(\"Sec-Fetch-Site\")) > 0 {",
		new:  "if r.Header.Get(\"Origin\") == \"-\" {",
		test: []string{"-run", "TestLogLevelChangesAtRunTimeAndProfilesAreAsked", "./cmd/duestream/internal/servers"},
	},
	{
		name: "a worker whose settlements hang is alive", file: "stream/alive.go",
		old:  "if n%2 == 0 || n != u.seen || u.since.IsZero() {",
		new:  "if n%2 == 0 || n != u.seen || u.since.IsZero() || n > 0 {",
		test: []string{"-run", "TestWorkerSaysThatItHangs", "./stream"},
	},
}
