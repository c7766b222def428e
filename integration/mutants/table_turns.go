package main

// turnsMutants are of messages with keys.
var turnsMutants = []mutant{
	{
		name: "a second message of a key goes on", file: "lua/lib/key.lua",
		old:  "if not kind or kind == 'wait' and first >= at then return false end",
		new:  "if true then return false end",
		test: []string{"-run", "TestOneMessageOfAKeyAtATimeInDueOrder", "./lua"},
	},
	{
		name: "a message overtakes an older one of its key that waits", file: "lua/lib/key.lua",
		old:  "if not kind or kind == 'wait' and first >= at then return false end",
		new:  "if kind ~= 'busy' then return false end",
		test: []string{"-run", "TestOlderOneOfAKeyGoesFirst", "./lua"},
	},
	{
		name: "a key goes on while another group holds its message", file: "lua/lib/key.lua",
		old:  "for _, entry in ipairs(delete_unneeded(k.stream, groups, some, span(some))) do add_pair",
		new:  "for _, entry in ipairs(some) do add_pair",
		test: []string{"-run", "TestKeyIsKeptUntilEveryGroupIsDone", "./lua"},
	},
	{
		name: "a retry gives its key away", file: "lua/lib/key.lua",
		old:  "if key and (always or not k.passes) then",
		new:  "if false then",
		test: []string{"-run", "TestKeyIsKeptUntilEveryGroupIsDone", "./lua"},
	},
	{
		name: "a release gives its key away", file: "lua/lib/key.lua",
		old:  "if key and (always or not k.passes) then",
		new:  "if key and not k.passes then",
		test: []string{"-run", "TestReleaseKeepsItsKey", "./lua"},
	},
	{
		name: "who was cancelled stays first in line", file: "lua/lib/key.lua",
		old:  "if score and parked_due(score) == at then",
		new:  "if not score or parked_due(score) == at then",
		test: []string{"-run", "TestWhoWaitsForAKeyCanBeChanged", "./lua"},
	},
	{
		name: "a worker does not tell the key", file: "stream/extend.go",
		old:  "return lua.Held{Entry: d.msg.EntryID, Key: d.msg.Extra[lua.FieldKey]}",
		new:  "return lua.Held{Entry: d.msg.EntryID}",
		test: []string{"-run", "TestAcknowledgementsPassTheKeyOn", "./stream"},
	},
	{
		name: "nobody comes by for workers that only acknowledge", file: "stream/keeper/upkeep.go",
		old:  "\tif trimmed.Turns {\n\t\t_, turnsErr",
		new:  "\tif false {\n\t\t_, turnsErr",
		test: []string{"-run", "TestKeyIsPassedOnAfterAPlainXACK", "./stream/keeper"},
	},
	{
		name: "who waits and is in no line waits for ever", file: "lua/pass_turns.lua",
		old:  "if at and (key and not redis.call('ZSCORE', turns, in_line(key, at, one[1])) or not key and at < 1e15) then",
		new:  "if false then",
		test: []string{"-run", "TestLineIsMadeAnew", "./lua"},
	},
	{
		name: "a message with a key goes where its ID belongs", file: "scheduler/producer/route.go",
		old:  "cmp.Or(w.key, w.item.ID)",
		new:  "cmp.Or(w.item.ID, w.key)",
		test: []string{"-run", "TestKeyChoosesThePartition", "./integration"},
	},
	{
		name: "a message with a key is not found by its ID alone", file: "lua/partition.go",
		old:  "\tfor i := range c.Latest() {\n\t\tif !slices.Contains(found[:likely], i) {\n",
		new:  "\tfor i := range c.Latest() {\n\t\tif i == 0 && !slices.Contains(found[:likely], i) {\n",
		test: []string{"-run", "TestKeyChoosesThePartition", "./integration"},
	},
	{
		name: "keys wait for the turn of their queue", file: "stream/keeper/upkeep.go",
		old:  "!u.hasTurns() && ",
		new:  "",
		test: []string{"-run", "TestKeysAreNotTidiedInTurn", "./stream/keeper"},
	},
	{
		name: "an import goes by IDs alone", file: "stream/transfer/import.go",
		old:  "cmp.Or(r.Extra[lua.FieldKey], r.messageID())",
		new:  "cmp.Or(r.messageID())",
		test: []string{"-run", "TestImportGoesByTheKey", "./integration"},
	},
	{
		name: "strays go by IDs alone", file: "scheduler/move.go",
		old:  "cmp.Or(e.Extra[lua.FieldKey], id)",
		new:  "cmp.Or(id, e.ID)",
		test: []string{"-run", "TestStrayMessagesGoByTheirKey", "./scheduler"},
	},
	{
		name: "a stray that waited waits for ever", file: "scheduler/move.go",
		old:  "\tdue, _ := lua.DueScore(h.score)\n\treturn due\n",
		new:  "\treturn h.score\n",
		test: []string{"-run", "TestStrayMessagesGoByTheirKey", "./scheduler"},
	},
	{
		name: "an ID like that of the entry in flight has its turn", file: "lua/lib/key.lua",
		old:  "if string.find(member, SEP, 1, true) and redis.call('ZSCORE', q.turns",
		new:  "if redis.call('ZSCORE', q.turns",
		test: []string{"-run", "TestOddTurns", "./lua"},
	},
	{
		name: "an imported retry does not hold its key", file: "lua/enqueue.lua",
		old:  "if k.retries[1] then pcall(hold_keys, k) end",
		new:  "",
		test: []string{"-run", "TestAnImportedRetryHoldsItsKey", "./stream/transfer"},
	},
	{
		name: "an import looks for what is there in one partition", file: "stream/transfer/elsewhere.go",
		old:  "if none == nil && (behind == 0 || score > behind) {",
		new:  "if false {",
		test: []string{"-run", "TestImportTakesNoIDASecondTime", "./stream/transfer"},
	},
	{
		name: "who leaves the line leaves its place", file: "lua/lib/key.lua",
		old:  "in_chunks('ZREM', k.turns, k.places)",
		new:  "return k.places",
		test: []string{"-run", "TestWhoLeavesTheLine", "./lua"},
	},
	{
		name: "a retry that is cancelled by its name keeps its key", file: "lua/cancel.lua",
		old:  "add_pair(k.held, key, id)",
		new:  "",
		test: []string{"-run", "TestCancelOfARetryThatHoldsItsKey", "./lua"},
	},
	{
		name: "nobody clears away the places of who was cancelled by plain commands", file: "lua/pass_turns.lua",
		old:  "if member and not (score and parked_due(score) == tonumber(at)) then",
		new:  "if false then",
		test: []string{"-run", "TestSweepClearsPlaces", "./lua"},
	},
	{
		name: "more keys than one look is for are left to the sweep", file: "lua/lib/key.lua",
		old:  "for first = 1, #groups > 0 and #left or 0, most do",
		new:  "for first = 1, #left <= most and #left or 0, most do",
		test: []string{"-run", "TestManyKeysAtOnce", "./lua"},
	},
	{
		name: "a history tells the score of who waits", file: "lua/reschedule.lua",
		old:  "due_of(was)",
		new:  "was",
		test: []string{"-run", "TestHistoryTellsTheDueTimeOfWhoWaits", "./lua"},
	},
	{
		name: "a retry that is called by its ID is written over another", file: "lua/lib/exit.lua",
		old:  " or k.named[named] or redis.call('ZSCORE', k.due, named) then",
		new:  " then",
		test: []string{"-run", "TestRetriesThatAreNamedByTheirIDs", "./lua"},
	},
}
