package main

// handlerMutants are about the time limit of handlers.
var handlerMutants = []mutant{
	{
		name: "a handler that ignores its context is never abandoned", file: "stream/handlertimeout.go",
		old:  "	h.timer = time.AfterFunc(p.cfg.AbandonAfter, func() { p.abandon(d) })\n",
		new:  "",
		test: []string{"-run", "TestTimesOfTheTimeout", "-timeout", "60s", "./stream"},
	},
	{
		name: "what an abandoned handler returns counts, too", file: "stream/handlertimeout.go",
		old:  "	h.ended, h.abandoned = true, true\n",
		new:  "	h.abandoned = true\n",
		test: []string{"-run", "TestHungHandlerIsAbandoned|TestTimesOfTheTimeout", "-timeout", "60s", "./stream"},
	},
	{
		name: "any number of abandoned handlers may run", file: "stream/handlertimeout.go",
		old:  "return int(n), n > a.limit",
		new:  "return int(n), false",
		test: []string{"-run", "TestAbandonedHandlersAreBounded", "-timeout", "60s", "./stream"},
	},
	{
		name: "a new group is in partition 0 alone while the registry is away", file: "stream/reader.go",
		old:  "if p.created && p.partition == 0 {",
		new:  "if p.created && p.partition < 0 {",
		test: []string{"-run", "TestANewGroupIsInAllPartitions", "./integration"},
	},
	{
		name: "workers forget the defaults that they cannot read again", file: "stream/policyreader.go",
		old:  "	case r.defaults == nil:\n",
		new:  "	case r.defaults == nil || err != nil:\n",
		test: []string{"-run", "TestWorkersHearOfNewSettings", "./integration"},
	},
	{
		name: "a new time limit is not for handlers that run", file: "stream/extend.go",
		old:  "			p.limitAll()\n",
		new:  "",
		test: []string{"-run", "TestTimeoutThatIsSetLater", "-timeout", "60s", "./stream"},
	},
	{
		name: "a handler that snoozes after its time uses no attempt up", file: "stream/handlertimeout.go",
		old:  "	f.Action, f.Reason, f.Error = lua.ActionRetry, lua.ReasonHandlerTimeout, text\n",
		new:  "	f.Reason, f.Error = lua.ReasonHandlerTimeout, text\n",
		test: []string{"-run", "TestOutcomesAfterTheTimeout", "-timeout", "60s", "./stream"},
	},
	{
		name: "a stop abandons handlers, and others get what they work on", file: "stream/handlertimeout.go",
		old:  "	if errors.Is(context.Cause(d.ctx), ErrStopping) {\n",
		new:  "	if errors.Is(context.Cause(d.ctx), context.Canceled) {\n",
		test: []string{"-run", "TestTimeoutDuringTheStop", "-timeout", "60s", "./stream"},
	},
}
