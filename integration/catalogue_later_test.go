package integration

var groups = []class{
	{
		"a retry reaches the groups that had no trouble",
		"fries, chasquimq, omniqueue, symfony: added to the shared stream again",
		"a retry names the group it is for; the others acknowledge and skip it",
		nil, "integration.TestG4GroupsAreIndependent stream.TestRetryOfAnotherGroupIsSkippedWithoutASlot",
	},
	{
		"the retries of several failing groups multiply",
		"the same systems, with three groups: 3 to the power of the attempts",
		"on an entry for another group every exit is a bare XACK",
		nil, "integration.TestG4GroupsAreIndependent lua.TestRetriesOfThreeFailingGroupsGrowLinearly " +
			"lua.TestExitsOfAForeignRetryOnlyAcknowledge",
	},
	{
		"the same ID is scheduled again and overwrites the retry that waits",
		"systems that keep a retry under its message's ID",
		"a retry's member is unique for the failed delivery",
		sameIDWhileFailing, "lua.TestRetriesAreUniquePerGroupAndEntry lua.TestCancelOfAMessageLeavesItsRetriesAlone",
	},
	{
		"a group that nobody reads pins the memory unseen",
		"XINFO shows it, and nothing warns",
		"stats shows lag, age and bytes per group, and warns",
		nil, "inspect.TestStatsWarn keeper.TestKeeperGoesQuietWhileNobodyReads",
	},
	{
		"a group with an odd name breaks the keys",
		"the server accepts empty names, braces, newlines and NUL",
		"group names are checked at the door and percent-encoded in key names",
		nil, "lua.TestLimits lua.TestKeyNames",
	},
}

var memory = []class{
	{
		"the stream grows although everything is acknowledged",
		"safe-global's decoder: 761,008 entries; XACK without XDEL everywhere",
		"ack frees what no group needs; trim serves those who only XACK",
		nil, "integration.TestG6MemoryReturns lua.TestTrimFreesToTheLastEntry keeper.TestTrimFreesWhatPlainXACKLeft",
	},
	{
		"one old entry keeps all memory behind it",
		"XTRIM MINID alone, with one slow consumer",
		"a bounded sweep deletes behind a pending entry, and rests while it frees nothing",
		nil, "keeper.TestTrimFreesBehindAnEntryThatStaysPending keeper.TestFruitlessSweepRestsAndWakes",
	},
	{
		"undelivered entries are trimmed",
		"redisqueue, chasquimq: MAXLEN drops what nobody has read",
		"only entries that every group was given, and none holds, are freed; without groups nothing is",
		nil, "keeper.TestTrimSparesWhatAnyGroupStillNeeds lua.TestTrimWithoutGroupsFreesNothing",
	},
	{
		"a burst blocks the server",
		"Redisson at 20,000, Bull, glide-mq: one script moves everything that is due",
		"a script works on at most 1,000 messages, half a MiB and about 2 ms",
		nil, "integration.TestCatalogue integration.TestG7BoundedWork lua.TestDrainOfBigPayloadsIsBounded " +
			"scheduler.TestDrainIsBoundedAndNoticed",
	},
	{
		"a million scheduled messages slow everything down",
		"faktory at a million: timeouts; linear scans to cancel",
		"nothing walks the schedule; a cancellation knows its member",
		hugeSchedule, "",
	},
	{
		"many groups make an acknowledgement expensive",
		"checks of each entry against each group",
		"one range per group and batch, within a limit of entries times groups",
		nil, "lua.TestAckWithManyGroupsIsBounded lua.TestAckBeyondItsBoundLeavesEntriesToTrim",
	},
	{
		"an idle system hammers the server",
		"Bull: 17,300 scripts a minute; hosted Redis bills",
		"loops sleep until the next due time, one blocked read serves all queues",
		nil, "integration.TestG8IdleCostsNothing scheduler.TestIdleBudget",
	},
	{
		"a lost group makes a worker spin and fill its log",
		"opik: 600 lines a second of NOGROUP",
		"one line per loss, backoff between tries",
		nil, "stream.TestLostGroupIsCreatedAgainAtZeroEveryTime keeper.TestDestroyedGroupIsNoError",
	},
	{
		"bodies without a member stay for ever",
		"producers that do not use MULTI",
		"a sweep deletes a body that it found without a member twice, a minute apart",
		nil, "keeper.TestOrphansGoOnlyAfterTheyWereConfirmed lua.TestSweepOrphansNeedsTwoLooks",
	},
	{
		"a new message inherits a dead one's body",
		"raw producers that reuse an ID",
		"enqueue clears what an ID left behind",
		nil, "lua.TestEnqueueDoesNotInheritAnOrphanedBody",
	},
}

var timing = []class{
	{
		"messages are early or late by the skew of a client's clock",
		"Pulsar, Redisson, Sidekiq: the client's clock decides",
		"scripts read the server's TIME; processes measure durations by the monotonic clock",
		nil, "integration.TestClientClockHasNoEffect integration.TestG2NeverEarly",
	},
	{
		"the server's clock is set back, and the scheduler spins, stalls or delivers early",
		"timers and blocking reads by wall clock",
		"sleeps are monotonic, waits come from the server, tokens are read again at each ceiling",
		nil, "integration.TestServerClockJumpsBackAndForthAgain integration.TestBlockedReadsOutliveAStepBack",
	},
	{
		"a fraction of a millisecond makes a message early",
		"scores are doubles, and anyone may write 0.5",
		"a fractional due time is rounded up",
		nil, "integration.TestG2NeverEarly lua.TestDrainIsNeverEarlyByAFraction lua.TestWhenIsRoundedUp",
	},
	{
		"seconds are taken for milliseconds, and 2026 for 1970",
		"time units in taskq; scores are only numbers",
		"the client refuses such times, and stats warns of those that other programs wrote",
		nil, "lua.TestLimits inspect.TestStatsWarn",
	},
	{
		"a message for now overtakes those that wait",
		"short cuts past the schedule",
		"a message goes straight to ready only when nothing is overdue",
		nil, "lua.TestEnqueueGoesStraightToReadyOnlyInOrder",
	},
	{
		"an earlier message waits for the timer of a later one",
		"polling at one to five seconds, or one timer armed for another time",
		"a wake token, read by every bridge and never consumed",
		nil, "scheduler.TestEarlierMessageWakesTheLoop integration.TestWakeTokenOfPlainCommandsIsHeard " +
			"scheduler.TestWakerReadsTokensOnceAndInAnyNumberOfStreams",
	},
}

var stopping = []class{
	{
		"a deploy burns an attempt of everything in flight",
		"Sidekiq's free fetch loses what is in flight; elsewhere a stop counts as a failure",
		"entries whose handler never started, or has returned, are released with their attempt unchanged",
		nil, "stream.TestCleanStopLeavesNothingPendingAndBurnsNoAttempt stream.TestStoppedWorkerReleasesWhatItNeverSaw",
	},
	{
		"a stop hands a message to another while its handler still runs",
		"a release of everything held",
		"a handler that ignores its context keeps its entry, and the log says so",
		nil, "stream.TestHandlerThatIgnoresItsContextKeepsItsEntry",
	},
	{
		"header bytes arrive changed",
		"JSON encoders that replace what is not UTF-8, and round large numbers",
		"headers are UTF-8 or refused, meta values are strings, payloads are raw bytes",
		nil, "lua.TestMetaRoundTrip lua.TestEnqueueKeepsPayloadAndHeadersAsTheyAre",
	},
	{
		"redrive and purge both take the same dead letter",
		"two operators, two terminals",
		"both are guarded by XDEL = 1",
		nil, "lua.TestRedriveAndPurgeAreExclusive deadletter.TestRedriveRacingPurgeIsWonByOneSide",
	},
	{
		"a cancelled message is delivered",
		"most brokers cannot cancel; in others a cancel races with the delivery",
		"cancel is one script and answers definitely",
		nil, "integration.TestG1CancelAnswersDefinitely lua.TestCancelTakesEverythingBack",
	},
	{
		"two processes have different ideas of the visibility timeout",
		"a setting of the worker and another of the reclaimer",
		"the policy lives in Redis and nowhere else",
		nil, "stream.TestPolicyComesFromTheMostSpecificLevelThatCounts duestream.TestServeWritesItsPolicyAsDefaults",
	},
	{
		"keys of one queue land in different slots",
		"asynq: 16 of 43 scripts build key names",
		"one hash tag per queue; scripts are told every key",
		nil, "lua.TestKeyNames lua.TestLibrariesAreUsedAndBuildNoKeys keeper.TestEverythingRunsOnACluster",
	},
	{
		"a script that the server forgot fails every call",
		"hard-coded hashes without a fallback, after SCRIPT FLUSH or a failover",
		"EVALSHA falls back to EVAL",
		nil, "lua.TestScriptsAreLoadedOnDemand",
	},
}

var servers = []class{
	{
		"a failover loses what was accepted",
		"every system on Redis: replication is not waited for",
		"a producer may wait for replicas; the wait uses the connection of the write, and follows its redirections",
		nil, "integration.TestReplicatedSurvivesTheLossOfTheMaster integration.TestG1SentinelFailoverLosesNothingReplicated " +
			"integration.TestG1ClusterFailoverLosesNothingReplicated",
	},
	{
		"a server says that it is on disk, and it is not",
		"WAITAOF of Redis 7.4 and of Valkey with everysec; a wait on another connection than the write's",
		"such a server is refused for Fsynced; a test cuts the power of a server and keeps only the synced bytes",
		nil, "integration.TestFsyncedSurvivesAPowerFailure integration.TestDurabilityThatTheServerCannotGiveIsRefused",
	},
	{
		"a slot that moves stops or loses a queue",
		"clients that split a transaction, or take TRYAGAIN for a failure",
		"clients wait for the slot with backoff, and other queues go on",
		nil, "integration.TestG1SlotMigrationLosesNothing",
	},
	{
		"one server of a cluster is away, and everything stops",
		"loops that serve all queues one after the other, or a leader's key on one node",
		"each queue has its own loops; shared data is remembered while its server is away",
		nil, "integration.TestQueuesOfOtherMastersGoOnWhileOneIsAway integration.TestAbandonedIsReclaimedWhileAnotherMasterIsAway",
	},
}
