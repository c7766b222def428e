// Package model is an executable specification of a queue's state machine: the effect of each operation on the stored
// data, and its answer, over plain Go maps and lists. It is written from the protocol (docs/reference/protocol.md), not
// from the scripts, and is short enough to be read instead of them. The protocol leaves some decisions to the server
// (how far one reclaim or trim gets, the IDs of entries, the current millisecond). The model is given these decisions,
// and checks their bounds.
//
// Its test runs random sequences of all operations, including commands of other programs, on a real server and on the
// model. After every step it compares all observable data: the schedule, payloads and metas, entries, pending lists
// with their counters, dead letters, dedup windows and remembered calls, wake tokens, and the answer itself. A ledger
// that does not use the model follows each accepted message through the stored data. A sequence ends with all
// messages delivered and acknowledged, and then nothing may be left.
//
// A second test does the same with a queue that has partitions and grows. Clients and operators act on it by IDs and
// keys, through the packages of this module, while bridges and workers act on one partition at a time. The content of a
// queue is exported and imported again, also into a new queue with another number of partitions. Callers over HTTP
// receive from all partitions, and settle by tokens, including late, repeated and forged ones. Some steps use the
// scripts of the previous release, from the history of this repository; Queue.Former describes their differences. The
// ledger follows messages through all partitions. The stored data alone must show that no ID is scheduled twice, and
// that no key is in flight in two partitions, unless the queue grew despite its keys.
//
// The files:
//
//	laws.go                    the table of transitions, and the law of each
//	laws_partitions.go         the same for a queue with partitions
//	wire.go                    the texts of messages: metas, fields, IDs, times
//	draw_test.go               draws commands and their arguments
//	draw_partitions_test.go    the same for a queue with partitions
//	compare_test.go            runs a command on both sides, reads the server, and compares
//	ledger_test.go             follows each message without the laws
//	model_test.go              the tests
//
// A change of the protocol begins here: change the law, see the test fail, then change the script. A step that a law
// describes needs no test of its own in package lua.
//
// The tests do not wait. Due times are past or hours away. The step "time" moves due times nearer, on the server and in
// the model. The step "abandon" sets the idle time of an entry. Each step has a millisecond of the server to itself, so
// that a sequence can be replayed.
//
// A failure is shrunk to a short sequence and printed with its seed. These commands replay it (as does
// DUESTREAM_TEST_SEED=1234), search longer, and take more time for a shorter sequence that is kept in a file of
// testdata:
//
//	go test ./integration/model -rapid.seed=1234
//	go test ./integration/model -v -rapid.checks=10000 -rapid.steps=100 -timeout 2h
//	go test ./integration/model -rapid.seed=1234 -rapid.shrinktime=5m -rapid.nofailfile=false
//
// With -v, the test logs how often each outcome occurred.
//
// Besides the comparison, two laws of messages with keys are checked by the stored data alone (ledger_test.go): at
// most one message of a key is in flight, and none becomes ready before a waiting one that was due earlier.
//
// Invariants:
//   - for any operations in any order, the server stores and answers the same as the model, no accepted message is
//     lost, and a queue at rest holds nothing (TestServerDoesWhatTheModelSays);
//   - the same holds for a queue with partitions: an ID belongs to the queue, whatever its key is, even when the queue
//     grows (TestQueueWithPartitionsDoesWhatTheModelSays).
package model
