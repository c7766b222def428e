package integration

var reclaiming = []class{
	{
		"running work is taken away as abandoned",
		"stream workers of Mastra, watermill, chasquimq: idle time counts from delivery, and the reclaimer does not know what runs",
		"workers extend all held entries from delivery on, every third of the visibility timeout",
		slowHandlersKeepTheirWork, "stream.TestSlowHandlerIsNotReclaimed",
	},
	{
		"a slow handler makes the messages behind it expire",
		"Dapr's Redis pub/sub: fetched entries wait in a local buffer and age there",
		"a worker never holds more entries than it has slots, and extends all of them",
		nil, "integration.TestCatalogue stream.TestWorkerNeverHoldsMoreThanItsSlots",
	},
	{
		"only the first batch of abandoned messages ever comes back",
		"glide-mq: the cursor of XAUTOCLAIM was thrown away",
		"the cursor is kept from pass to pass",
		abandonedBehindHeld, "lua.TestReclaimIsBoundedAndGoesOnFromItsCursor lua.TestReclaimReachesBehindEntriesInWork " +
			"keeper.TestReclaimFindsWhatLiesBehindALongHeadOfFreshEntries",
	},
	{
		"a message is reclaimed and then forgotten",
		"glide-mq: claimed into the reclaimer's own pending list and never dispatched",
		"one script claims and puts back; the reclaimer's consumer holds nothing afterwards",
		nil, "lua.TestReclaimLeavesNoConsumerBehind keeper.TestAbandonedEntryIsRetriedForItsGroupAlone",
	},
	{
		"an outage burns the attempts of everything that was running",
		"asynq, River, any lease by wall clock: after a pause all leases are over",
		"only time during which a bridge watched the queue counts as idle",
		nil, "integration.TestOutageLongerThanTheVisibilityTimeoutBurnsNoAttempt lua.TestOnlyWatchedTimeCountsAsIdle " +
			"scheduler.TestOutageKeepsTheAssignment",
	},
	{
		"a step of the server's clock gives everything away at once",
		"idle times are differences of wall clocks in every system on Redis Streams",
		"a reclaim compares the server's clock with its own last look; a gap is no idle time",
		nil, "integration.TestServerClockJumpsAheadTakesNoRunningWork " +
			"integration.TestAbandonedWorkIsTakenBackAfterAStepOfTheClock " +
			"scheduler.TestGapOrJump",
	},
	{
		"a worker that was frozen acts on messages that are no longer its own",
		"every lease without fencing; watermill did not look at what XACK answered",
		"every exit is guarded by XACK = 1, and the loser is told",
		nil, "integration.TestWorkerStoppedPastItsVisibilityTimeoutIsTold integration.TestG3OneOwnerOfADelivery " +
			"stream.TestHandlerOfALostDeliveryIsCancelledAndHasNoEffect",
	},
	{
		"a partitioned worker goes on as if it owned its messages",
		"asynq: lease lost while the server is out of reach",
		"a handler is cancelled when the last good extend is older than the visibility timeout",
		nil, "stream.TestUnreachableServerCancelsHandlersAfterAVisibilityTimeout",
	},
	{
		"another program's XCLAIM hides how often a message was tried",
		"any system that claims by itself: the server's counter grows, the message's does not",
		"reclaim adds the deliveries that Redis counted to the attempts",
		nil, "lua.TestReclaimCountsForeignClaims keeper.TestForeignClaimsCountAsDeliveries",
	},
	{
		"the reclaimer appears as a consumer that never goes away",
		"consumer names pile up: moleculer-channels, Redis's own tracker",
		"it has one fixed name, removed when it holds nothing; one script removes idle consumers",
		nil, "lua.TestReclaimLeavesNoConsumerBehind keeper.TestIdleConsumersAreDropped",
	},
	{
		"groups that nobody registered are never looked after",
		"registries of subscribers that a plain client does not know of",
		"reclaim asks the stream for its groups",
		nil, "keeper.TestReclaimServesGroupsNobodyRegistered",
	},
}

var losing = []class{
	{
		"a message vanishes because its entry was trimmed while pending",
		"symfony, FastStream: a claim of a trimmed entry returns nothing, or loops",
		"no MAXLEN on work; a lost body becomes a dead letter with its ID",
		nil, "lua.TestReclaimReportsLostBodies lua.TestExtendBuriesALostBody lua.TestRetryReportsALostBody " +
			"keeper.TestBodyDeletedBySomeoneBecomesADeadLetter",
	},
	{
		"messages vanish with a consumer that is cleaned up",
		"watermill, taskq: consumers deleted with pending entries",
		"a consumer is deleted only when it holds nothing, in the same script",
		nil, "lua.TestDropConsumersNeverDropsWhatTheyHold keeper.TestIdleConsumersAreDropped",
	},
	{
		"a body is gone before its message is due",
		"delayqueue, seqdelay: the body's time to live is derived from the due time; eviction of keys",
		"no key of a queue has a time to live; a server that evicts is refused",
		bodyOutlivesItsDelay, "duestream.TestServeRefusesAServerThatEvicts",
	},
	{
		"thousands of messages due at once are lost",
		"faktory: 25,000 at once, removed from the schedule before they were queued",
		"drain adds before it removes, and removes exactly what it added",
		sameMillisecond, "lua.TestStreamThatRefusesStopsTheBatch",
	},
	{
		"a damaged message is lost on its way out",
		"scripts that acknowledge first and fail afterwards: there is no rollback",
		"scripts check everything before the first write; an unusable message becomes a dead letter with its bytes",
		nil, "lua.TestRetryKeepsDamagedEntries lua.TestReclaimKeepsDamagedEntries lua.TestWrongTypesAreRefusedBeforeTheFirstWrite " +
			"keeper.TestDamagedEntriesLoseNothingAndStopNothing",
	},
	{
		"a message was delivered, and nobody ever saw it",
		"any client: the reply of the read is lost with its connection",
		"after a broken connection a worker reads its own history",
		nil, "stream.TestDeliveredButNeverSeenIsTakenUpWithoutBurningAnAttempt",
	},
	{
		"scheduling is repeated after a lost reply and makes two messages",
		"delayqueue: a send is three commands, and a retry cannot be recognised",
		"a call has a token that the server remembers",
		nil, "lua.TestRepeatedTokenChangesNothing producer.TestLostReplyIsRepeatedWithoutDuplicates",
	},
	{
		"a file that is scheduled again sends everything again",
		"guards that know only what is still scheduled",
		"the command asks for a dedup window of a day",
		nil, "duestream.TestFileAgainSchedulesNothing lua.TestDedupWindowOutlivesTheMessage",
	},
	{
		"a process dies between two commands and takes messages along",
		"sidekiq, ouqiang: removed, then pushed",
		"one script per transition",
		nil, "integration.TestG1KilledProcessesLoseNothing integration.TestServerKilledAndStartedAgainLosesNothing",
	},
	{
		"a late acknowledgement hits another message",
		"entry IDs are reused after DEL, a failover or a clock set back",
		"after a broken connection exits compare the message's ID",
		nil, "lua.TestExitsCompareTheMessageID lua.TestAckComparesTheMessageID",
	},
	{
		"a worker creates its group again and skips the messages that were there",
		"FastStream, EggAI: created again at $",
		"a lost group is created again at 0, every time",
		nil, "stream.TestLostGroupIsCreatedAgainAtZeroEveryTime integration.TestEverythingFlowsAgainAfterAFlush",
	},
	{
		"the archive drops dead letters silently",
		"asynq: 10,000 entries or 90 days, hard-coded",
		"no cap on dead letters; listing and redriving walk in bounded steps",
		nil, "deadletter.TestDeadLettersAreListedByFilter deadletter.TestLargeLettersAreReadInSmallPages",
	},
}

var stuck = []class{
	{
		"one bad message blocks everything behind it",
		"infrahub: a due entry that cannot be moved stays at the head",
		"a member that cannot be used is dead-lettered by itself",
		nil, "integration.TestG5NothingIsDroppedSilently lua.TestDrainBuriesMalformedMembersAlone",
	},
	{
		"a message that kills its worker comes back for ever",
		"sidekiq's poison pills; Dapr had no dead letters",
		"a reclaim is an attempt; after the last one the message is a dead letter with the reason",
		poisonKillsItsWorker, "keeper.TestUsedUpAttemptsMakeOneDeadLetter",
	},
	{
		"a failed message waits until a new one arrives",
		"delayqueue, Redisson: the timer is armed by the next send only",
		"every script that makes the head earlier adds the wake token",
		failedComesBackAlone, "lua.TestRetryWakesOnlyForAnEarlierHead",
	},
	{
		"delayed messages stop until a restart",
		"BullMQ, Redisson: the one timer or its subscription died",
		"each loop's sleep has a ceiling, and each ceiling looks again",
		nil, "scheduler.TestSurveyPokesLoopsThatSleepPastTheirHead integration.TestEverythingFlowsAgainAfterAFlush",
	},
	{
		"the owner of a queue lives, and does nothing",
		"leaders that hold their lock and are stuck",
		"any bridge drains a queue that is overdue for more than 5 s; heartbeats from the future do not count",
		ownerAliveButUnable, "scheduler.TestOverdueQueueIsDrainedByAnyone scheduler.TestMembershipIgnoresHeartbeatsOfTheFuture",
	},
	{
		"a bridge dies or freezes, and its queues wait",
		"one leader, or one process with the timers: asynq's periodic scheduler, Redisson",
		"bridges keep no state; other bridges take over within 3 s",
		nil, "integration.TestBridgeStoppedPastItsHeartbeatIsReplaced scheduler.TestAnotherTakesOver",
	},
	{
		"a full server can no longer deliver",
		"every system whose heartbeats and acknowledgements are writes that maxmemory refuses",
		"every script but enqueue begins with a write that is never refused",
		nil, "integration.TestG9FullRedisStillDrains lua.TestFullServerRefusesOnlyEnqueue " +
			"keeper.TestFullServerStillReclaimsFreesAndRedrives",
	},
	{
		"a queue that nobody registered is never drained",
		"registries written once at start, and lost by a flush or failover",
		"clients and workers register again; a background scan finds strays",
		nil, "scheduler.TestUnregisteredQueueIsFound scheduler.TestFlushedServerIsServed",
	},
	{
		"a key of the wrong type stops every queue",
		"one blocked read or one script over all queues",
		"queues are looked at one by one; the broken one is reported once",
		nil, "integration.TestKeyOfWrongTypeStopsItsOwnQueueOnly keeper.TestKeeperReportsAWrongTypeOnceAndGoesOn",
	},
	{
		"a server set to read-only, or a failover, needs a restart of the workers",
		"any pool that keeps its connections to a demoted master",
		"clients wait, with backoff, until the server has the role that they need",
		nil, "integration.TestReadOnlyServerIsWaitedFor",
	},
	{
		"an expired message is redriven and dies at once, again and again",
		"redrives that keep the old expiry",
		"redrive drops the expiry unless it is given anew",
		nil, "lua.TestRedriveOfAnExpiredMessageIsForAll deadletter.TestRedriveOfAnExpiredMessageIsDelivered",
	},
}
