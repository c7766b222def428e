// Package model is the state machine of a queue as a specification that runs: what each operation does to what is stored and what
// it answers, over plain Go maps and lists. It is written from the protocol (docs/PROTOCOL.md), not from the scripts, and short
// enough to be read instead of them. Where the protocol leaves something to the server (how far one reclaim or trim gets, which
// IDs entries are given, which millisecond it is) the model is told, and checks that it is within the bounds.
//
// Its test runs random sequences of all operations, those of other people included, against a real server and against the model,
// and compares after every step all that can be observed: the schedule, payloads and meta, entries, pending lists with their
// counters, dead letters, dedup windows and remembered calls, wake tokens, and the answer itself. A ledger that knows nothing of
// the model follows each accepted message through what is stored. A sequence ends with everything delivered and acknowledged, and
// then nothing may be left.
//
// A second test does so with a whole queue that has partitions and grows (whole.go): clients and operators act on it by
// IDs and keys, through the packages of this module, while bridges and workers act on one partition at a time; what a
// queue holds is exported, and imported again, or into a new queue with another number of partitions
// (whole_transfer.go). Callers over HTTP receive from all partitions, and settle by tokens, late, twice and forged ones
// too. Some steps are done by the scripts of the release before, from the history of this repository; what they do
// otherwise is said by Queue.Former. The ledger follows messages through all partitions; and by what is stored alone no
// ID is scheduled twice, and no key is in flight in two partitions, unless the queue grew despite its keys.
//
// Time is not waited for. Due times are past or hours away; "time passes" moves them nearer, on both sides; an abandoned entry is
// one whose idle time was set. Each step has a millisecond of the server's to itself, so that a sequence can be replayed.
//
// A failure is shrunk to a short sequence and printed with its seed. To replay it (or with DUESTREAM_TEST_SEED=1234), to search
// longer, and to take more time for a shorter sequence and keep that in a file of testdata:
//
//	go test ./integration/model -rapid.seed=1234
//	go test ./integration/model -v -rapid.checks=10000 -rapid.steps=100 -timeout 2h
//	go test ./integration/model -rapid.seed=1234 -rapid.shrinktime=5m -rapid.nofailfile=false
//
// With -v the test says how often each outcome occurred.
//
// Beside the comparison, two laws of messages with keys are held by what is stored alone (turns_test.go): of one key there is at
// most one that is not done with, and none becomes ready before one that was due earlier and waits.
//
// Invariants:
//   - whatever is done in whatever order, the server does what the model says, nothing accepted is lost, and a queue that has
//     come to
//     rest holds nothing (TestServerDoesWhatTheModelSays);
//   - so it is with a queue that has partitions: an ID belongs to the queue, whatever its key, also when the queue grows
//     (TestQueueWithPartitionsDoesWhatTheModelSays).
package model
