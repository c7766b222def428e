package main

// What is to notice a mutant. The campaign is the short one, with a random seed unless DUESTREAM_TEST_SEED is set.
var (
	campaign = []string{"-run", "TestCampaign$", "./integration/campaign"}
	model    = []string{"./integration/model", "-rapid.nofailfile", "-rapid.shrinktime=5s"}
)

var mutants = []mutant{
	{
		name: "retry does not ask whether its XACK was the one", file: "lua/lib/exit.lua",
		old:  "      if acked == 0 then verdict = LOST end\n",
		new:  "",
		test: campaign,
	},
	{
		name: "dead-lettering does not ask whether its XACK was the one", file: "lua/lib/exit.lua",
		old:  "  if not acked and redis.call('XACK', k.stream, group, entry) == 0 then\n",
		new:  "  if not acked and redis.call('XACK', k.stream, group, entry) < 0 then\n",
		test: campaign,
	},
	{
		name: "ack does not ask whether its XACK was the one", file: "lua/ack.lua",
		old:  "won = redis.call('XACK', stream, group, entry) end\n",
		new:  "won = redis.call('XACK', stream, group, entry) + 1 > 0 and 1 or 0 end\n",
		test: campaign,
	},
	{
		name: "drain removes before it adds", file: "lua/drain.lua",
		old:  "    local outcome, err = add(member, members[first + 1], body, fields)\n",
		new:  "    redis.call('ZREM', due, member)\n    redis.call('HDEL', payload, member)\n    local outcome, err = add(member, members[first + 1], body, fields)\n",
		test: campaign,
	},
	{
		name: "trim does not look at what is pending", file: "lua/lib/free.lua",
		old:  "    if oldest[1] and less(oldest[1][1], own) then own = oldest[1][1] end\n",
		new:  "",
		test: campaign,
	},
	{
		name: "the reclaimer forgets how far it has looked", file: "stream/reclaimer.go",
		old:  "\t\tr.cursors[group] = done.Cursor\n",
		new:  "\t\tdelete(r.cursors, group)\n",
		test: campaign,
	},

	// What a campaign meets too seldom to be sure of, the model or the crash points find.
	{
		name: "trim frees what was not delivered", file: "lua/lib/free.lua",
		old:  "  if not bound or less(own, bound) then bound = own end\n",
		new:  "  if not bound or less(bound, own) then bound = own end\n",
		test: model,
	},
	{
		name: "a retry is not only for its group", file: "lua/lib/exit.lua",
		old:  "  if meant_for and meant_for ~= '' and meant_for ~= group then",
		new:  "  if meant_for and meant_for == '' then",
		test: model,
	},
	{
		name: "a release burns an attempt", file: "lua/lib/exit.lua",
		old:  "    verdict, next_attempt = RELEASED, attempt\n",
		new:  "    verdict = RELEASED\n",
		test: model,
	},
	{
		name: "an acknowledgement frees what another group needs", file: "lua/lib/free.lua",
		old:  "      for _, one in ipairs(pending) do needed[one[1]] = true end\n",
		new:  "",
		test: model,
	},
	{
		name: "a lost reply is repeated as another call", file: "scheduler/line.go",
		old:  "lua.EnqueueDurably(ctx, l.p.cfg.Client, l.keys, token, items, l.p.cfg.Durability)",
		new:  "lua.EnqueueDurably(ctx, l.p.cfg.Client, l.keys, lua.Token{}, items, l.p.cfg.Durability)",
		test: []string{"-run", "TestProducerInterrupted", "./integration/crashpoint"},
	},
	{
		name: "a worker does not look for what it never saw", file: "stream/reader.go",
		old:  "\t\t\tif !held[entry] && len(unseen) < limit {\n",
		new:  "\t\t\tif held[entry] && false {\n",
		test: []string{"-run", "TestWorkerInterrupted", "./integration/crashpoint"},
	},
	{
		name: "a queue grows without its groups", file: "stream/partition.go",
		old:  "\treturn s.groups(ctx)\n",
		new:  "\treturn nil\n",
		test: []string{"-run", "TestGrow", "./stream"},
	},
	{
		name: "a growth does not look for what happened beside it", file: "stream/partition.go",
		old:  "\t_, err = lua.RegisterCounts(call,",
		new:  "\ts = spread{c: c, prefix: prefix, queue: \"elsewhere\"}\n\t_, err = lua.RegisterCounts(call,",
		test: []string{"-run", "TestGrowMisses", "./stream"},
	},
	{
		name: "a redrive deletes the letter before it has read it", file: "lua/redrive.lua",
		old:  "  local body, fields, kept = found[1][2], {}, {}\n",
		new:  "  local body, fields, kept = found[1][2], {}, {}\n  redis.call('XDEL', dead, letter)\n",
		test: []string{"-run", "TestEveryScriptStepFails", "./integration/crashpoint"},
	},
	{
		name: "a redriven letter stays", file: "lua/redrive.lua",
		old:  "  if redis.call('XDEL', dead, letter) == 0 then return 0 end\n",
		new:  "",
		test: []string{"-run", "TestDeadEditOfOneLetter", "./cmd/duestream"},
	},
	{
		name: "an export leaves out what is being worked on", file: "stream/export.go",
		old:  "\t\t\tfor r, err := range e.held(ctx, key, g) {\n",
		new:  "\t\t\tfor r, err := range e.held(ctx, key, groupInfo{name: g.name}) {\n",
		test: []string{"-run", "TestExportAndImport", "./cmd/duestream"},
	},
	{
		name: "an import gives a retry to every group", file: "stream/record.go",
		old:  "\tset(lua.FieldFor, r.For, r.For != \"\")\n",
		new:  "",
		test: []string{"-run", "TestScheduledRecords", "./stream"},
	},
	{
		name: "a write does not wait to be replicated", file: "lua/durability.go",
		old:  "Numreplicas(int64(d.Replicas))",
		new:  "Numreplicas(0)",
		test: []string{"-run", "TestReplicatedSurvives", "./integration"},
	},
	{
		name: "a purge asks nobody where there is no terminal", file: "cmd/duestream/consent.go",
		old:  "\tif c.yes || isTerminal(a.in) && isTerminal(a.err) {\n",
		new:  "\tif c.yes || !isTerminal(a.in) || isTerminal(a.err) {\n",
		test: []string{"-run", "WithoutConsent|NeedsConsent", "./cmd/duestream"},
	},
	{
		name: "a flag may be given without a value", file: "cmd/duestream/app.go",
		old:  "error { return checkEmpty(cmd) },\n",
		new:  "error { return nil },\n",
		test: []string{"-run", "TestFlagsThatAreGiven", "./cmd/duestream"},
	},
	{
		name: "a write that failed is forgotten", file: "cmd/duestream/outlet.go",
		old:  "\tif err != nil && o.err == nil {\n\t\to.err = err\n\t}\n\treturn err\n",
		new:  "\t_ = err\n\treturn nil\n",
		test: []string{"-run", "TestOutputThatIsLost", "./cmd/duestream"},
	},
	{
		name: "a second signal leaves the commands running", file: "cmd/duestream/main.go",
		old:  "\t\tchild.EndAll(lastGrace)\n",
		new:  "\t\t_ = child.EndAll\n",
		test: []string{"-run", "TestSecondSignalLeaves", "./cmd/duestream"},
	},
	{
		name: "a redriven letter is called as the retry of an entry", file: "lua/redrive.lua",
		old:  "'dead:' .. letter",
		new:  "letter",
		test: []string{"-run", "TestMembersOfRetriesAndRedrivenLettersCannotMeet", "./lua"},
	},
	{
		name: "a letter that is redriven again replaces what waits from before", file: "lua/redrive.lua",
		old:  "  while redis.call('ZSCORE', due, member) do member = member .. '+' end",
		new:  "  ",
		test: []string{"-run", "TestALetterThatIsRedrivenTwice", "./lua"},
	},
	{
		name: "an imported entry is called as its retry", file: "stream/record.go",
		old:  "	case r.Kind == RecordReady:\n\t\tname.Kind = lua.MemberImported\n",
		new:  "",
		test: []string{"-run", "TestReadyRecords", "./stream"},
	},
	{
		name: "cancel asks the newest partition alone", file: "scheduler/seek.go",
		old:  "\t\tfor _, at := range counts.Candidates(id) {\n",
		new:  "\t\tfor _, at := range counts.Candidates(id)[:1] {\n",
		test: []string{"-run", "TestCancelAndRescheduleReachEveryPartition", "./scheduler"},
	},
	{
		name: "cancel believes old partition counts when it found the message", file: "scheduler/seek.go",
		old:  "\tif !s.over(ctx) {\n",
		new:  "\tif !s.over(ctx) && slices.Contains(s.found, false) {\n",
		test: []string{"-run", "TestStaleCountsMakeNoDefiniteYes", "./scheduler"},
	},
	{
		name: "looking for a message registers its queue", file: "scheduler/route.go",
		old:  "counts.String() && (registers || text != \"\") {\n",
		new:  "counts.String() {\n",
		test: []string{"-run", "TestLookingForAMessageRegistersNoQueue", "./scheduler"},
	},
	{
		name: "bridges bring back a deleted queue", file: "scheduler/scheduler.go",
		old:  "\t\tif n > 0 {\n\t\t\tfound[of[i]]",
		new:  "\t\tif n >= 0 {\n\t\t\tfound[of[i]]",
		test: []string{"-run", "TestADeletedQueueIsNotRegisteredAgain", "./scheduler"},
	},
	{
		name: "a walk for retries ends with its first step", file: "lua/lib/waiting.lua",
		old:  "  return cursor, found\n",
		new:  "  return '0', found\n",
		test: []string{"-run", "TestCancelRetriesTakesWhatWaits", "./scheduler"},
	},
	{
		name: "a retry of any ID that begins so is cancelled", file: "lua/lib/waiting.lua",
		old:  "wanted[string.sub(member, 1, first - 1)] then",
		new:  "string.sub(member, 1, #ids[1]) == ids[1] then",
		test: []string{"-run", "TestCancelRetriesTakesWhatWaits", "./scheduler"},
	},
	{
		name: "a heartbeat of many leaves out the caller", file: "lua/heartbeat.lua",
		old:  "if not found then reply[#reply + 1] = bridge end\n",
		new:  "",
		test: []string{"-run", "TestHeartbeatAlwaysReturnsTheCaller", "./lua"},
	},
	{
		name: "a queue that leaves the line keeps its turn", file: "stream/gate.go",
		old:  "\tg.first <- turn\n",
		new:  "\tg.first <- time.Now().Add(g.interval)\n",
		test: []string{"-run", "TestTurnOfWhoLeaves", "./stream"},
	},
	{
		name: "a script does not ask what its user may", file: "lua/script.go",
		old:  "return guard(name, needs(name+\".lua\", text)) + text",
		new:  "return text",
		test: []string{"-run", "TestScriptIsRefusedBeforeItBegins", "./lua"},
	},
	{
		name: "what a script may need is looked for in its own text alone", file: "lua/needs.go",
		old:  "\t\t\tif functions[name] != nil && hasWord(text, name) {",
		new:  "\t\t\tif functions[name] != nil && strings.Contains(name, \"_wrong\") && hasWord(text, name) {",
		test: []string{"-run", "TestScriptsNeedNoMoreThanIsRead", "./lua"},
	},
	{
		name: "the documented worker lacks XTRIM", file: "docs/OPERATIONS.md",
		old:  " +xdel +xtrim +xrange +xpending",
		new:  " +xdel +xrange +xpending",
		test: []string{"-run", "TestUsersFollowFromTheSources", "./integration/acl"},
	},
	{
		name: "the documented producer may write settings", file: "docs/OPERATIONS.md",
		old:  "(%R~duestream:{*}:policy +hget) (~duestream:{*}:stream +xadd)",
		new:  "(~duestream:{*}:policy +hget +hset) (~duestream:{*}:stream +xadd)",
		test: []string{"-run", "TestUsersFollowFromTheSources", "./integration/acl"},
	},
	{
		name: "the documented operator may flush all functions", file: "docs/OPERATIONS.md",
		old:  " -function|flush",
		new:  "",
		test: []string{"-run", "TestUsersCanDoNothingElse", "./integration"},
	},
	{
		name: "a bridge does not say that it could not check the server", file: "bridge/server.go",
		old:  "\t\t\tinfo.Untold = lua.Classify(\"INFO\", err)\n",
		new:  "",
		test: []string{"-run", "TestBridgeSaysThatItCouldNotCheckTheServer", "./integration"},
	},
	{
		name: "the doctor lists what it may not look at, and finds nothing", file: "cmd/duestream/doctor/read.go",
		old:  "\tif !errors.Is(err, lua.ErrDenied) {\n\t\te.leftOut",
		new:  "\tif err != nil {\n\t\te.leftOut",
		test: []string{"-run", "TestDoctorSaysWhatItCouldNotLookAt", "./cmd/duestream/doctor"},
	},
	{
		name: "the documented plain worker reads settings one by one only", file: "docs/OPERATIONS.md",
		old:  "+hget +hmget +hgetall)",
		new:  "+hget +hmget)",
		test: []string{"-run", "TestExamplesWorkAsPlainUsers", "./integration"},
	},
	{
		name: "each absence begins the wait anew", file: "lua/lib/calm.lua",
		old:  "need, at = need - math.max(0, at - a.to), a.from",
		new:  "need, at = visibility, a.from",
		test: []string{"-run", "TestOnlyWatchedTimeCountsAsIdle", "./lua"},
	},
	{
		name: "an absence counts as idle time", file: "lua/lib/calm.lua",
		old:  "if a.to - a.from > math.max(visibility / 2, 250) then",
		new:  "if a.to < a.from then",
		test: []string{"-run", "TestOnlyWatchedTimeCountsAsIdle", "./lua"},
	},
	{
		name: "the survey does not know of paused queues", file: "lua/survey.lua",
		old:  " and redis.call('HGET', policy, 'held') ~= '1' then",
		new:  " then",
		test: []string{"-run", "TestSurveySeesEachQueue", "./lua"},
	},
	{
		name: "entries that nobody reads are kept", file: "scheduler/survey.go",
		old:  "return standing == \"\" || standing != before",
		new:  "return before != \"never\"",
		test: []string{"-run", "TestSurveyPokesLoops", "./scheduler"},
	},
	{
		name: "a drain takes whatever the page of members brings", file: "lua/drain.lua",
		old:  "    if bytes >= max_bytes then break end\n",
		new:  "",
		test: []string{"-run", "TestDrainStopsWithinAPage", "./lua"},
	},
	{
		name: "a retry reads all entries it is given", file: "lua/lib/exit.lua",
		old:  "    if bytes >= MOST_BYTES then return bodies, i - 1 end\n",
		new:  "",
		test: []string{"-run", "TestLargeEntriesAreTakenInSeveralCalls", "./lua"},
	},
	{
		name: "a trim sweeps as many entries for thousands of groups as for one", file: "lua/lib/free.lua",
		old:  "  return math.max(1, math.floor(4000 / math.max(1, holding)))\n",
		new:  "  return 4000\n",
		test: []string{"-run", "TestTrimSweepsWithManyGroups", "./lua"},
	},
}
