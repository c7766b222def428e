package main

// gatewayMutants are those of what a gateway counts against a rate, and of what is moved from lmstfy.
var gatewayMutants = []mutant{
	{
		name: "a delivery token has several spellings", file: "stream/pull/token.go",
		old:  " || named.Token() != t {",
		new:  " {",
		test: []string{"-run", "FuzzToken", "./stream/pull"},
	},
	{
		name: "a queue that fails keeps others from being read", file: "stream/pull/pull.go",
		old:  "errs = append(errs, err)\n\t\t\t\tbreak",
		new:  "return found, err",
		test: []string{"-run", "TestOneQueueThatFails", "./stream/pull"},
	},
	{
		name: "a master that is away keeps others from being read", file: "stream/pull/pull.go",
		old:  "left = p.probe(ctx, left)",
		new:  "return found, err",
		test: []string{"-run", "TestAMasterThatIsAwayKeepsNothingOfOtherQueues", "./stream/pull"},
	},
	{
		name: "a poll never comes back to a master that was away", file: "stream/pull/pull.go",
		old:  "if lua.Temporary(missing) && again.Before(deadline) {",
		new:  "if false {",
		test: []string{"-run", "TestAPollSeesTheMasterThatComesBack", "./stream/pull"},
	},
	{
		name: "a token holds an ID that is not UTF-8", file: "stream/pull/token.go",
		old:  "len(s) > lua.MaxIDBytes || !utf8.ValidString(s)",
		new:  "len(s) > lua.MaxIDBytes || s == \"\\x00\" && !utf8.ValidString(s)",
		test: []string{"-run", "TestEntriesOfOtherPrograms", "./stream/pull"},
	},
	{
		name: "a refused batch costs nothing", file: "bridge/gateway/batch.go",
		old:  "\t\treturn 0, nil, err // it was work, and counts\n",
		new:  "\t\tc.cfg.Access.GiveBack(c.ctx, c.grant, access.Publish, 1)\n\t\treturn 0, nil, err\n",
		test: []string{"-run", "TestARefusedBatchCounts", "./bridge/gateway"},
	},
	{
		name: "a published job counts as nothing", file: "bridge/gateway/lmstfy/publish.go",
		old:  "\tif err := c.take(access.Publish, 1); err != nil {\n\t\treturn \"\", err\n\t}\n",
		new:  "",
		test: []string{"-run", "TestEveryJobThatIsPublishedCounts", "./bridge/gateway/lmstfy"},
	},
	{
		name: "what finds no job uses up the limit", file: "bridge/gateway/lmstfy/server.go",
		old:  "if err != nil && c.unused != nil {",
		new:  "if err != nil && c.unused != nil && c.name != \"\" {",
		test: []string{"-run", "TestWhatIsRefusedOrFindsNothingIsFree", "./bridge/gateway/lmstfy"},
	},
	{
		name: "a dead letter of another program keeps those behind it", file: "bridge/gateway/lmstfy/dead.go",
		old:  "if errors.Is(err, bridge.ErrInvalid) {",
		new:  "if errors.Is(err, bridge.ErrInvalid) && limit < 0 {",
		test: []string{"-run", "TestALetterThatCannotBeRespawned", "./bridge/gateway/lmstfy"},
	},
	{
		name: "a job that is respawned loses its key", file: "bridge/gateway/lmstfy/dead.go",
		old:  "l.Extra[lua.FieldKey]}",
		new:  "\"\"}",
		test: []string{"-run", "TestARespawnedJobKeepsItsKey", "./bridge/gateway/lmstfy"},
	},
	{
		name: "a queue of another type keeps the others from everybody", file: "bridge/gateway/lmstfy/consume.go",
		old:  "len(r.Queues) > 1 && errors.Is(err, bridge.ErrWrongType):",
		new:  "false:",
		test: []string{"-run", "TestAQueueOfAnotherTypeIsPassedOver", "./bridge/gateway/lmstfy"},
	},
	{
		name: "a raised rate is held back by what was taken before", file: "lua/take.lua",
		old:  "if changed then full = ",
		new:  "if false then full = ",
		test: []string{"-run", "TestABucketHolds", "./lua"},
	},
	{
		name: "a refused bulk gives back twice what it took", file: "bridge/gateway/lmstfy/server.go",
		old:  "\tc.unused = nil\n",
		new:  "",
		test: []string{"-run", "TestEveryJobThatIsPublishedCounts", "./bridge/gateway/lmstfy"},
	},
	{
		name: "who settles for a group that is gone settles nothing", file: "stream/pull/settle.go",
		old:  "if err := settle(b); !errors.Is(err, lua.ErrNoGroup) {",
		new:  "if err := settle(b); true {",
		test: []string{"-run", "TestAQueueThatFailsKeepsNoOther", "./stream/pull"},
	},
	{
		name: "a queue that fails ends a poll of several", file: "stream/pull/pull.go",
		old:  " && !(len(r.Queues) > 1 && !lua.Temporary(err)):",
		new:  ":",
		test: []string{"-run", "TestAPollOutlastsAQueueThatFails", "./stream/pull"},
	},
	{
		name: "a bulk counts as one job", file: "bridge/gateway/lmstfy/publish.go",
		old:  "c.take(access.Publish, len(raw))",
		new:  "c.take(access.Publish, 1)",
		test: []string{"-run", "TestEveryJobThatIsPublishedCounts", "./bridge/gateway/lmstfy"},
	},
	{
		name: "a batch is asked for twice", file: "bridge/gateway/serve.go",
		old:  "if one.counts {",
		new:  "if one.counts && c.queue == \"\" {",
		test: []string{"-run", "TestABatchOfMoreThanTheBurst", "./bridge/gateway"},
	},
	{
		name: "a batch counts as one message", file: "bridge/gateway/batch.go",
		old:  "c.take(access.Publish, max(len(lines), 1))",
		new:  "c.take(access.Publish, 1)",
		test: []string{"-run", "TestABatchOfMoreThanTheBurst", "./bridge/gateway"},
	},
	{
		name: "a job of another type ends a migration", file: "bridge/gateway/lmstfy/migrate/source.go",
		old:  "&& !rueidis.IsRedisNil(err) && !isForeign(err) {",
		new:  "&& !rueidis.IsRedisNil(err) {",
		test: []string{"-run", "TestAKeyOfAnotherType", "./bridge/gateway/lmstfy/migrate"},
	},
	{
		name: "a job of another type is passed over in silence", file: "bridge/gateway/lmstfy/migrate/move.go",
		old:  "if bodies[i].foreign {",
		new:  "if bodies[i].foreign && bodies[i].there {",
		test: []string{"-run", "TestAKeyOfAnotherType", "./bridge/gateway/lmstfy/migrate"},
	},
	{
		name: "a list of another type ends a migration", file: "bridge/gateway/lmstfy/migrate/source.go",
		old:  "\t\tif isForeign(err) {\n\t\t\treturn found, nil\n\t\t}\n",
		new:  "",
		test: []string{"-run", "TestAKeyOfAnotherType", "./bridge/gateway/lmstfy/migrate"},
	},
	{
		name: "what is not UTF-8 in a spec is not looked for", file: "scheduler/recurrence/json.go",
		old:  "if utf8.Valid(value) && !bytes.Contains(value, []byte(`\\u`)) { // almost all",
		new:  "if !bytes.Contains(value, []byte(`\\u`)) { // almost all",
		test: []string{"-run", "TestBytesThatJSONWouldChange", "./scheduler/recurrence"},
	},
	{
		name: "half a pair of UTF-16 in a spec is not looked for", file: "scheduler/recurrence/json.go",
		old:  "if utf8.Valid(value) && !bytes.Contains(value, []byte(`\\u`)) { // almost all",
		new:  "if utf8.Valid(value) { // almost all",
		test: []string{"-run", "TestBytesThatJSONWouldChange", "./scheduler/recurrence"},
	},
}
