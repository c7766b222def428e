// Package campaign tests that duestream loses no message. It runs the whole system as processes, breaks everything
// that can break, and audits every message by ledgers that the processes write.
//
// # Running it
//
//	go test ./integration/campaign                    the short campaign, about a minute; part of make proof
//	make campaign DURATION=10m                        the long campaign, about 2,000 messages a second
//	make campaign DURATION=1h SEED=42 OUT=proof       repeats the faults of an earlier run with seed 42, in the same
//	                                                   order; writes campaign.md, timeline.txt and findings.txt
//	                                                   into the directory proof
//	make campaign CLUSTER=1 DURATION=10m              on a cluster of three masters with one replica each
//	make campaign RATE=150 DURATION=10m               with 150 messages a second, for a machine with other work
//	make campaign RELEASES=1 DURATION=10m             with processes of the previous release beside those of this one
//	make campaign LANGUAGES=1 DURATION=10m            with the packages in Python and Node.js beside the Go SDK
//
// A campaign needs redis-server or valkey-server on the PATH (or a Docker engine with an image). It starts a server
// of its own on a free port, with an append-only file that is synced before every reply, and removes everything at
// the end. A seed fixes the messages and the order of faults; the exact times depend on the machine.
// DUESTREAM_TEST_LOG=1 shows the logs of the processes.
//
// # What runs
//
// The processes are a holder, two bridges, five Go workers and two plain workers in two groups, and three producers.
// Each is the test binary, started again, behind a network path of its own: a proxy that can cut, stall, tear and
// slow connections. Group a has Go workers only. Group b also has plain workers. They know only XREADGROUP, XACK and
// the field "for" of an entry (the group that a retry is for), as programs in other languages may. A plain worker does
// not acknowledge messages that it should fail. The holder takes the first 1,500 messages of group a, and extends them
// until the run ends. So the stream always begins with old pending entries, and bridges must reclaim and free newer
// entries behind them.
//
// Two gateways answer HTTP requests. One producer, and one worker of group b, use only gateways: they alternate, and
// use the other gateway when one fails. The producer publishes single messages, arrays, or lines. After a lost answer
// it repeats the same ID. The worker waits for deliveries of one queue or of both. Some deliveries have a lease of
// their own instead of the visibility timeout. The worker extends deliveries, and settles them in every possible way.
//
// Every process connects as the user that docs/operations/users.md documents for its role, with no further rights.
// Faults are made as an administrator. Any command that the server denies one of these users is a failure (users.go).
//
// The ID of a message tells its plan (message.go). Most messages are acknowledged at once, some after a while, some
// only after the visibility timeout. Some fail once or twice, some until their attempts are used up, and some are
// dead-lettered by their handler. Some are cancelled or rescheduled by their producer. Some have a dedup window and
// are sent twice.
//
// Other messages use special features (features.go). Some are snoozed. Some have retry delays of their own, or a time
// limit for retries. Some die of crashes, which use up no attempt. Some are replaced by newer versions. Some have a
// spread. Some share one of many keys. An operator, a process of its own, cancels and moves messages in bulk,
// selected by headers. Three recurrences occur each second, at different times, one of them in a time zone. Each
// group has Go workers that serve each queue separately and that serve both by weights; group a also has one that
// serves both in order.
//
// Some handlers do not end by themselves (handlers.go; not while the previous release takes part). Some messages
// have a handler timeout that the handler of a Go worker exceeds. One in two of these handlers also ignores its
// context, and is abandoned. The messages with such handlers become dead letters. Other messages are cancelled in any
// state, often while a handler runs.
//
// Every process appends to a ledger of its own, unbuffered, before and after each step. A producer records each call
// and its result. A worker records each start of a handler (with entry, attempt, the field "for" and due time), its
// end, and the settlement of the delivery.
//
// # What breaks
//
// One attacker hits producers, bridges, workers and gateways: kill -9, SIGSTOP beyond the visibility timeout,
// SIGTERM. It also cuts off a gateway from the server, or cuts the connections of its clients, some in the middle of
// an answer.
//
// A second attacker works concurrently. It hits the network: connections are cut before a request reaches the server,
// after it was executed, or in the middle of a reply; or they are stalled or slow. It hits the server: kill -9,
// SIGSTOP, CLIENT KILL and PAUSE, SCRIPT FLUSH, maxmemory, streams that refuse entries, and read-only times. And it
// acts as an operator who deletes a group, a stream, or all keys of a queue by mistake. That happens on a second,
// sacrificial queue that the same processes serve. There, messages sent before such a command may be lost, and are
// counted. Messages sent after the workers have created their groups again must be delivered.
//
// Each round has every kind of fault once, in an order that the seed decides. After the last fault everything must
// come to rest. First, while the holder still holds its messages, nothing else may be scheduled, pending or an entry.
// Then the holder releases them, and nothing at all may be left.
//
// The visibility timeout is two and a half seconds, so that a run sees hundreds of them. It must be longer than the
// two seconds that a bridge needs to notice an outage. An outage that bridges notice (over two seconds), or one under a
// third of the visibility timeout, must use up no attempt.
//
// # On a cluster
//
// The second form has three masters with one replica each, without any disk, and a main queue of three partitions.
// Masters are killed. Masters are stopped until a replica has taken over, and then continued. Replicas take over as
// planned. Slots of queues, and of the keys that all queues share, move to another master. Processes die as above.
// Nodes announce their own addresses, so there are no proxies, and no worker or gateway is cut off.
//
// Gateways also wait for the replica before they answer. While one master is down, they go on with the partitions and
// queues of the others.
//
// Producers wait for the replica, so the same strict rules apply to their results: an accepted message is not lost, a
// cancelled one not delivered. Workers do not wait. When a master dies, or goes on for a moment after it was
// replaced, its writes that were not replicated are lost: deliveries, confirmed exits (entries that left the pending
// list), and messages whose acceptance no producer has seen. Therefore such a failover excuses the loss of such a
// message, two exits of one entry, an entry given to two processes, and a repeated attempt. Planned failovers and moved
// slots excuse nothing.
//
// A cluster replaces a master that does not answer for a second. An overloaded machine causes such failovers, too.
// Each replica that takes over is recorded. If no fault of ours explains it, it excuses the effects of a failover,
// and is listed as "seen, not ours".
//
// # Of two releases
//
// In the third form, processes of the previous release (integration/before names it) take part on the same server.
// They are parts of the campaign of that release, whose tests are built from the history of the repository, so they
// write the same ledgers. At first, all bridges are of the previous release. Some other processes always are: the
// holder, a producer, a worker of group a, one of group b, and a plain worker. Some never are: a producer, a gateway,
// a worker of group a, a plain worker, and the clients of gateways. The rest change with the bridges: a producer, a
// gateway, a worker of each group, and the operator.
//
// A third attacker repeats the procedures that docs/operations/upgrade.md gives, concurrently with the other two. It
// upgrades the bridges one by one, then workers, then producers. After a while with bridges of this release only, it
// rolls back producers and workers, stops all bridges, rolls back the queues in every second round, and starts bridges
// of the previous release. The attacker ends with bridges of this release. Users have the rights that the page gives
// them while both releases run.
//
// Producers and gateways of this release also send messages with a key. While a bridge of the previous release is
// alive, these messages must be refused (ErrOldBridge), and are counted as refused. Each upgrade also tries a
// recurrence, and a rate with a ready limit. Both must be refused while old bridges run, and accepted when the old
// bridges have gone. Three recurrences go on from begin to end.
//
// Messages of both releases are judged by the same laws (below). One violation is excused: a rollback of a queue
// deletes the holds of its keys. So a message in flight at that time may be in flight together with the next one of
// its key.
//
// # Of several languages
//
// In the fourth form (TestCampaignOfLanguages in integration/languages), producers and workers of the packages in
// Python and Node.js take part, one of each in each place that otherwise only the Go SDK has: three producers, and
// three workers in each group. The Python workers of group a have threads, and those of group b coroutines. Their
// programs, in integration/languages/testdata, follow the same plans, write the same ledgers, and get the same faults.
// See Language for what another language needs. A run in which a language did no work fails.
//
// # How it is judged
//
// The auditor reads the ledgers, the timeline of faults, and the final content of Redis. For each message and group
// it follows the chain of entries. Each entry must have left the pending list exactly once: acknowledged, or replaced
// by the next entry or by a dead letter.
//
// Columns that must be zero:
//
//   - lost: accepted, not cancelled, and neither delivered nor a dead letter. Or the chain has no end: the last entry
//     was retried, released or dead-lettered and nothing follows, or it is gone although no handler succeeded.
//   - early: started, or added to the stream, before the due time of the receipt, of the entry, or of a confirmed
//     reschedule. The server runs on the same machine, so its clock is the worker's.
//   - stuck: did not come to rest in time.
//   - two owners: one entry left the pending list twice: two processes were told that they won, or an entry that was
//     acknowledged has a successor, or a chain forks. The rules need no times; see (*chain).owners in chain.go.
//   - wrong terminal state: dead with a wrong reason or number of attempts, dead although it must not be, acknowledged
//     although every handler fails it, delivered although refused. Or its entry is gone, no process knows that it
//     acknowledged the entry, and no fault explains that.
//   - duplicates unexplained, attempts burnt unexplained: see below.
//   - delivered after cancel.
//   - wrong group: a handler of a Go worker got a retry for another group.
//   - taken twice inside a dedup window.
//   - keys left: keys, members, entries, pending entries, consumers, bridges, or dedup windows past their end. Tokens
//     of calls whose reply was lost may stay for their window of a minute or two.
//
// The auditor does not judge a single step, such as the delay of a snooze or the number of crashes that a message
// survives: integration/model proves the steps. Messages with one key have a law of their own (keylaw.go): all entries
// of one come before all entries of the next. A version of a message is recorded as a message, and its replacement as
// a cancel. So a replaced version that is delivered is "delivered after cancel", and a newest version that is not
// delivered is lost. Expected occurrences are computed, and recorded as if they had been scheduled. A missing one is
// lost, one that came twice had two owners, and an unexpected one is a wrong state.
//
// # To add a feature
//
// Put a setting of the main queue into mainPolicy, and a setting of a message into a kind: featureKinds (how often),
// featureNames, plan.features (fields of the message) and plan.featured (work of handlers), all in features.go. Put
// the steps of the feature into integration/model, and into the campaign only a law about several messages or
// processes, with a planted violation in TestAuditorJudgesMessagesWithFeatures. A run that never used the feature
// proves nothing about the feature, so it fails.
//
// # How duplicates are explained
//
// Each start of a handler is a first delivery, a retry if the previous handler failed, or else a duplicate: the
// previous delivery was interrupted, or the server did not learn of its success. A duplicate is explained by a fault
// between the two deliveries that hit the process with the previous delivery, or the server. Effects of a fault may
// last for another second and a half (reachAfter in explain.go). Without such a fault the duplicate is unexplained.
//
// Clients need only one of the two gateways. A fault of a single gateway explains a lost answer, and a delivery that
// the gateway could not pass on. It explains a duplicate or a used attempt of a delivery that the worker behind it had
// begun only if it stopped the gateway for long, because the worker then got the message late (see
// (*explainer).throughGateways in explain.go).
//
// Fewer faults explain an attempt that was used up although no handler failed: only faults that kept its worker away
// while others went on (the worker was killed or stopped, or its own path stalled). An outage for all (a server that is
// down, paused, full, read-only or unreachable) explains such an attempt only for a plain worker, which does not come
// back for its messages.
//
// An overloaded machine stops processes as SIGSTOP does. Each process records when it did not run for a quarter of a
// second. Such stalls explain like faults; to explain a used attempt, they must last for half a visibility timeout. A
// server that answered a PING slowly without a fault explains as well. All of these are listed separately, as "seen,
// not ours". A result with many of them proves less.
//
// # Reading a failure
//
// The report shows the first messages of each column with all their records, sorted by time, and then the timeline of
// faults. Look for the last entry with a wrong settlement, and for the last fault before it that hit the process in the
// second column.
package campaign
