package main

// producingMutants are of what takes messages into the schedule.
var producingMutants = []mutant{
	{
		name: "a lost reply is repeated as another call", file: "scheduler/producer/group_commit.go",
		old:  "lua.Enqueue(ctx, g.p.cfg.Client, g.keys, token, items, d)",
		new:  "lua.Enqueue(ctx, g.p.cfg.Client, g.keys, lua.Token{}, items, d)",
		test: []string{"-run", "TestProducerInterrupted", "./integration/crashpoint"},
	},
	{
		name: "a lost reply of fresh messages is repeated as another call", file: "scheduler/producer/group_commit.go",
		old:  "lua.EnqueueFresh(ctx, g.p.cfg.Client, g.keys, token, items)",
		new:  "lua.EnqueueFresh(ctx, g.p.cfg.Client, g.keys, lua.Token{}, items)",
		test: []string{"-run", "TestLostReplyOfAMessage", "./scheduler/producer"},
	},
	{
		name: "a commit that is refused one way is not made the other way", file: "scheduler/producer/group_commit.go",
		old:  "if err == nil || lua.Ambiguous(err) || lua.Temporary(err) {",
		new:  "if err == nil || err != nil {",
		test: []string{"-run", "TestCommitIsMadeTheWay", "./scheduler/producer"},
	},
	{
		name: "payloads are written again while the server refuses their messages", file: "scheduler/producer/group_commit.go",
		old:  "\t\tg.refusing.Store(true)\n",
		new:  "\t\tg.longWay.Store(now.Add(longWayFor).UnixMilli())\n",
		test: []string{"-run", "TestRefusedCommits", "./scheduler/producer"},
	},
	{
		name: "a message is scheduled whose payload was not written", file: "lua/enqueue_fresh.lua",
		old:  "if not written then",
		new:  "if false then",
		test: []string{"-run", "TestEnqueueFreshNeeds", "./lua"},
	},
	{
		name: "only the last message of a call needs its payload", file: "lua/enqueue_fresh.lua",
		old:  "written = written and redis.call('HEXISTS', payload,",
		new:  "written = redis.call('HEXISTS', payload,",
		test: []string{"-run", "TestEnqueueFreshNeeds", "./lua"},
	},
	{
		name: "only the last message with meta needs it", file: "lua/enqueue_fresh.lua",
		old:  "written = written and redis.call('HEXISTS', meta,",
		new:  "written = redis.call('HEXISTS', meta,",
		test: []string{"-run", "TestEnqueueFreshNeeds", "./lua"},
	},
	{
		name: "what was written of a call that is refused stays", file: "lua/enqueue_fresh.lua",
		old:  "if not written then\n  take_back()\n",
		new:  "if not written then\n",
		test: []string{"-run", "TestEnqueueFreshNeeds", "./lua"},
	},
	{
		name: "a repeated call leaves what its caller has written again", file: "lua/enqueue_fresh.lua",
		old:  "if mark then\n  take_back()\n",
		new:  "if mark then\n",
		test: []string{"-run", "TestRepeatedEnqueueFresh", "./lua"},
	},
	{
		name: "what a repeated call takes back is still scheduled", file: "lua/enqueue_fresh.lua",
		old:  "    if not redis.call('ZSCORE', due, args[i]) then ids",
		new:  "    if true then ids",
		test: []string{"-run", "TestRepeatedEnqueueFresh", "./lua"},
	},
	{
		name: "cancel asks the newest partition alone", file: "scheduler/producer/lookup.go",
		old:  "\t\tfor _, at := range counts.Candidates(id) {\n",
		new:  "\t\tfor _, at := range counts.Candidates(id)[:1] {\n",
		test: []string{"-run", "TestCancelAndRescheduleReachEveryPartition", "./scheduler/producer"},
	},
	{
		name: "cancel believes old partition counts when it found the message", file: "scheduler/producer/lookup.go",
		old:  "\tif !s.over(ctx) {\n",
		new:  "\tif !s.over(ctx) && slices.Contains(s.found, false) {\n",
		test: []string{"-run", "TestStaleCountsMakeNoDefiniteYes", "./scheduler/producer"},
	},
	{
		name: "looking for a message registers its queue", file: "scheduler/producer/route.go",
		old:  "counts.String() && (registers || text != \"\") {\n",
		new:  "counts.String() {\n",
		test: []string{"-run", "TestLookingForAMessageRegistersNoQueue", "./scheduler/producer"},
	},
	{
		name: "a window is forgotten behind a message that is compared with none", file: "lua/enqueue.lua",
		old:  "opened[id] or window or not added end",
		new:  "window or not added end",
		test: []string{"-run", "TestWindowHoldsBehindAMessageThatIsNotCompared", "./lua"},
	},
	{
		name: "what is for one group is added to the stream at once", file: "lua/lib/message.lua",
		old:  " or (meant['for'] or '') ~= ''",
		new:  "",
		test: []string{"-run", "TestWhatIsForAGroupIsNeverAddedAtOnce", "./lua"},
	},
	{
		name: "a message that is ready at once replaces nothing", file: "lua/enqueue.lua",
		old:  "if before or members[1] then unschedule(due, payload, meta, replaced) end\n",
		new:  "",
		test: []string{"-run", "TestAFreshMessageReplaces", "./lua"},
	},
	{
		name: "a message without dedup is written over a retry", file: "lua/lib/message.lua",
		old:  "    if dedup == '' and string.find(args[i], SEP, 1, true) then dedup, args[i + 4] = '0', '0' end",
		new:  "   ",
		test: []string{"-run", "TestEnqueueWritesOverNoRetry", "./lua"},
	},
	{
		name: "the call that gives up speaks for all that asked with it", file: "scheduler/producer/durability.go",
		old:  "		q.err = errAskerLeft",
		new:  "		q.err = ctx.Err()",
		test: []string{"-run", "TestDurabilityIsAskedForWithTheContextOfTheCall", "./scheduler/producer"},
	},
	{
		name: "a batch that is ready does not look at the bodies first", file: "lua/enqueue.lua",
		old:  "if direct and (before or #ids > 1) then redis.call('HLEN', payload) end",
		new:  "",
		test: []string{"-run", "TestReadyMessagesAreRefusedWhole", "./lua"},
	},
	{
		name: "a message without a body does not look at the bodies", file: "lua/enqueue.lua",
		old:  "if not bodies[1] and members[1] then redis.call('HLEN', payload) end\n",
		new:  "",
		test: []string{"-run", "TestRefusedCallIsNotRememberedAsDone", "./lua"},
	},
	{
		name: "what the call before refused is not forgotten", file: "lua/enqueue.lua",
		old:  "if marks[3] then forget(seen, done) elseif marks[2] then",
		new:  "if marks[2] then",
		test: []string{"-run", "TestRepeatedTokenChangesNothing", "./lua"},
	},
	{
		name: "a ready message that replaces does not look at the bodies", file: "lua/enqueue.lua",
		old:  "if direct and (before or #ids > 1) then",
		new:  "if direct and #ids > 1 then",
		test: []string{"-run", "TestReadyMessageThatReplaces", "./lua"},
	},
	{
		name: "a batch takes its first message for the earliest", file: "lua/enqueue.lua",
		old:  "if #ids > 1 then soonest = head(due) end -- one may have replaced another\n",
		new:  "",
		test: []string{"./integration/model", "-rapid.nofailfile", "-rapid.shrinktime=5s"},
	},
	{
		name: "a producer closes without its queue", file: "scheduler/producer/producer.go",
		old:  "if r.state.IsFailing() {",
		new:  "if false && r.state.IsFailing() {",
		test: []string{"-run", "TestCloseRegisters", "./scheduler/producer"},
	},
}
