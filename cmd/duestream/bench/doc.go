// Package bench measures duestream on a server, and beside each figure the floor below it: what the same server does in the same
// run when it is asked for the bare commands that one would write by hand, or for our scripts alone.
//
// An absolute figure says as much about the machine as about the program; the ratio to a floor says what the program adds.
// Floor and product take turns (floor, product, floor, product, …), each round gives one ratio, and the median over the rounds
// is reported with the lowest and highest. Both see the same keys in the same state, with the same backlog.
//
// Every scenario is a function of a context and a Config that works on one queue, of which it must be the only user, and
// removes what it made there when it ends, however it ends. Nothing here knows package testing: the command `duestream bench`
// and the benchmarks of integration/ are both built on it.
//
// Invariants:
//   - nothing is left behind on success, error and interrupt (TestBenchLeavesNothing);
//   - what a bridge sends when idle is counted to the request (TestIdleCountsWhatTheServerSees).
package bench
