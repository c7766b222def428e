// Package campaign is the proof that duestream loses nothing, as far as a test can be one: it runs the whole system as processes,
// breaks everything that can break, and audits every message by ledgers that the processes keep themselves.
//
// # Running it
//
//	go test ./integration/campaign                    the short one, about a minute; part of make test
//	make campaign DURATION=10m                        the long one, about 2,000 messages a second
//	make campaign DURATION=1h SEED=42 OUT=proof       the same faults in the same order as another run with this seed; writes
//	                                                  campaign.md, timeline.txt and findings.txt into the directory proof
//	make campaign CLUSTER=1 DURATION=10m              on a cluster of three masters, each with a replica
//	make campaign RATE=150 DURATION=10m               so many messages a second, for a machine that has other work to do
//	make campaign RELEASES=1 DURATION=10m             processes of the release before beside those of this one
//	make campaign METRICS=1 DURATION=1m               with every process scraped each second; what they counted is held against
//	                                                  their ledgers (metrics_audit.go)
//
// It needs redis-server or valkey-server on the PATH (or a Docker engine with an image), starts a server of its own on a free
// port, with an append-only file that is synced before every reply, and removes everything when it ends. A seed fixes what is
// produced and which faults come in which order; when exactly they hit is up to the machine. DUESTREAM_TEST_LOG=1 shows the
// processes' own logs.
//
// # What runs
//
// A holder, two bridges, five Go workers and two plain workers in two groups, three producers, each a process of its own (the
// test binary, started again) behind a network path of its own (a proxy that can cut, stall, tear and slow it). Group a has Go
// workers only. Group b also has plain workers, which know XREADGROUP, XACK and the field "for" and nothing else, as programs in
// other languages may; what they should fail they do not acknowledge. The holder takes the first 1,500 messages of group a and
// keeps extending them to the end, so that reclaiming and freeing have to work behind old entries all the time.
//
// Two gateways answer HTTP requests. A producer, and a worker of group b, see nothing but them: each asks them in turn, and goes
// on with the other when one fails. The producer publishes one message at a time, arrays, or lines, and the same ID again after
// an answer that was lost; the worker waits for deliveries, of one queue or of both, some with a time of their own, extends,
// and settles in each of the ways there are. They take part while no metrics are looked at, and no release before takes
// part.
//
// Every process connects as the user that docs/OPERATIONS.md gives its role, with no more rights than that; faults are done as an
// administrator. What the server denies any of these users is a failure (users.go).
//
// What a message is to do is written in its ID (message.go): most are acknowledged at once; some after a while, some only after
// the visibility timeout; some fail once or twice; some fail until their attempts are used up, or are dead-lettered by their
// handler; some are cancelled or rescheduled by their producer; some have a dedup window and are sent twice.
//
// Others use what not every message does (features.go): some are snoozed; some have delays of their own, or are tried for a time
// only; some die of crashes, which use no attempt up; some are replaced by newer versions of themselves; some are due at some
// moment of a spread; some share one of many keys. An operator, a process of its own, cancels and moves many at once by what
// their headers say. Three recurrences happen each second, at different moments, and one of them in a time zone. Of the Go
// workers of a group one serves each queue by itself, one serves both by weights, and one (of group a) both in order.
//
// Some handlers do not end by themselves (handlers.go; not while metrics are looked at, or the release before takes
// part). Some messages have a limit for their handler, which a Go worker's outlasts; every second one outlasts its
// context as well, so that it is abandoned. They end as dead letters. Others are cancelled wherever they are, many of
// them while a handler runs.
//
// Every process appends to a ledger of its own, unbuffered, before and after each step: a producer what it tries and what it was
// told, a worker each start of a handler (with entry, attempt, the field "for" and due time), its end, and how the delivery was
// settled.
//
// # What breaks
//
// One attacker works on processes (kill -9, SIGSTOP beyond the visibility timeout, SIGTERM; of producers, bridges, workers,
// gateways; a gateway is cut off from the server, or its connections are cut, some in the middle of an answer),
// another one beside it on the network (connections cut, before a request reaches the server, after it was executed, in the
// middle of a reply; stalled; slow), on the server (kill -9, SIGSTOP, CLIENT KILL and PAUSE, SCRIPT FLUSH, maxmemory, streams
// that refuse entries, read-only spells), and as an operator who deletes what he should not (a group, a stream, all keys of a
// queue). The operator does so on a second, sacrificial queue that the same processes serve: what was sent before his command may
// be lost there, by his own hand, and is counted; everything that is sent after the workers have created their groups again must
// be delivered. Each round of faults has every kind once, in an order that the seed decides. After the last fault everything must
// come to rest: first, while the holder still holds, until nothing else is scheduled, pending or an entry; then, when it lets go,
// until nothing is left at all.
//
// The visibility timeout is two and a half seconds, so that hundreds of them pass in a run. It must exceed what a bridge needs to
// notice an outage, two seconds: what is down for longer than that, or for less than a third of the visibility timeout, may use
// up no attempt.
//
// # On a cluster
//
// The second form has three masters with a replica each, none of which writes to disk, and a main queue of three partitions.
// Masters are killed, or stopped until a replica has taken over and then let go on, replicas take over as planned, and slots of
// queues and of the keys that all queues share move to another master, while processes die as above. There are no proxies: nodes
// name their own addresses, so no worker and no gateway is cut off.
//
// Gateways wait for the replica as well, before they answer. While one master is away they go on with the partitions
// and queues of the others.
//
// Producers wait for the replica, so what they were told is as strict as above: accepted is not lost, cancelled is not delivered.
// Workers do not wait. A master that dies, or goes on for a moment although it has been replaced, takes with it what it had not
// replicated: deliveries, exits that were told as done, and messages of which no producer was told that they are taken. The end
// of such a message, two exits of one entry, an entry given to two processes, and an attempt that comes twice are therefore
// excused when such a failover lies between them; planned failovers and moved slots excuse nothing.
//
// A master that does not answer for a second is replaced. On a machine that has too much to do the cluster does so by
// itself: each replica that takes over is noted, and when no fault of ours explains it, it excuses what a failover
// does. It is listed as "seen, not ours".
//
// # Of two releases
//
// In the third form processes of the release before (integration/before names it) take part on the same server. They
// are the parts of the campaign of that release, whose tests are built from the history of the repository, so they keep
// the same ledgers. At first all bridges are of the release before. Of the other processes some always are (the holder,
// a producer, a worker of group a, one of group b, a plain worker), some never are (a producer, a gateway, a worker of
// group a, a plain worker, who talks to gateways), and the rest (a producer, a gateway, a worker of each group, the
// operator) changes with the bridges.
//
// A third attacker does what docs/OPERATIONS.md says under Upgrade and rollback, beside the other two and again and
// again: it upgrades one bridge after the other, then workers, then producers, and after a while with bridges of this
// release alone it takes producers and workers back, then stops all bridges, every other time rolls the queues back,
// and starts bridges of the release before. It ends with bridges of this release. Users have what the page gives them
// while both releases run.
//
// What the contract refuses while a bridge of the release before lives (ErrOldBridge) is counted, and not accepted:
// messages with a key of producers and gateways of this release. Each time a recurrence, and a rate with a ready limit,
// are tried as well: they must be refused beside the old bridges, and taken when those have gone. Three recurrences go
// on from beginning to end.
//
// The same laws hold in the same columns, for the messages of either release. One thing is excused: a rollback of a
// queue forgets who holds which key, so a message that was in flight then may be in flight beside the next one with its
// key.
//
// # How it is judged
//
// The auditor has the ledgers, the timeline of faults, and what Redis holds in the end. For each message and group it follows the
// chain of entries, each of which must have left the pending list exactly once: acknowledged, for a next entry, or for a dead
// letter.
//
// Columns that must be zero:
//
//   - lost: accepted, not cancelled, and neither delivered nor a dead letter; or its chain ends in nothing: the last entry was
//     retried,
//     released or dead-lettered and nothing follows, or it is gone although no handler succeeded with it.
//   - early: started, or added to the stream, before the due time of the receipt, of the entry, or of a confirmed reschedule. The
//     server
//     runs on the same machine, so its clock and the worker's are one.
//   - stuck: did not come to rest in time.
//   - two owners: one entry left the pending list twice (see owners in chain.go, which needs no timing: two sides were told that
//     they
//     won, or an entry that was acknowledged has a successor, or a chain is forked).
//   - wrong terminal state: dead with a wrong reason or count of attempts, dead though it must not be, acknowledged though every
//     handler
//     fails it, delivered though refused, or gone unseen without a fault that explains why nobody saw it.
//   - duplicates unexplained, attempts burnt unexplained: see below.
//   - delivered after cancel, wrong group (a Go worker's handler got a retry that is for another group), taken twice (inside a
//     dedup
//     window).
//   - keys left: keys, members, entries, pending entries, consumers, bridges, or dedup windows past their end. Tokens of calls
//     whose reply
//     was lost may stay for their window of a minute or two.
//
// What only some messages promise has laws of its own (laws.go), which count in the same columns. A version of a message is
// booked as a message, and its replacement as a cancel: one that was replaced and comes is "delivered after cancel", and the
// newest one that does not come is lost. Occurrences are counted by hand, and booked as if somebody had scheduled them: one that
// is missing is lost, one that came twice had two owners, one that nobody expects is a wrong state.
//
// # To add a feature
//
// A setting of the main queue goes into mainPolicy, one of a message into a kind: featureKinds (how often), featureNames,
// plan.features (what the message carries) and plan.featured (what handlers do with it), all in features.go. What it promises
// beyond what all messages do goes into auditor.laws, with violations planted in TestLawsFindWhatIsPlanted. A run that never used
// it fails, because it proves nothing of it.
//
// # How duplicates are explained
//
// A start of a handler is a first delivery, or a retry when the handler before it failed, or else a duplicate: the delivery
// before it was interrupted, or its success could not be told to the server. A duplicate is explained by a fault that hit the
// very process that had the message before, or the server, between the two deliveries (reach, in explain.go: with a second and a
// half for what a fault leaves behind). Without such a fault it is unexplained.
//
// Of two gateways one is enough: what hits one alone explains an answer that was lost, and a delivery that it could not pass on,
// but neither a duplicate nor an attempt of what the worker behind them had begun (alone, in explain.go).
//
// An attempt that was used up though no handler failed is explained by less: only by a fault that kept its worker away while
// others went on (killed, stopped, its own path stalled). An outage is no attempt: a server that is down, paused, full, read-only
// or unreachable for all explains none, except to a plain worker, which does not come back for what it was given.
//
// A machine that has too much to do stops processes as well as SIGSTOP does. Each process watches its own pulse and writes down
// when it did not run for a quarter of a second; such stalls explain as faults do (those that use up attempts must have lasted
// for half a visibility timeout), and so does a server that was slow to answer a PING though nothing had been done to it. They
// are listed apart, as "seen, not ours": a result with many of them proves less.
//
// # Reading a failure
//
// The first messages of each column are named with all that the ledgers say about them, by time, and the timeline of faults
// follows. Look for the last entry whose exit is not what it should be, and for the fault before it that hit the process in the
// second column.
package campaign
