// Package bench measures duestream on a server. Beside each figure it measures a floor in the same run: the same
// server with the bare commands that one would write by hand, or with our scripts alone.
//
// An absolute figure depends on the machine as much as on the program. The ratio to a floor shows the cost of the
// program. Floor and product take turns (floor, product, floor, product, …). Each round gives one ratio. The report
// has the median of the rounds, and the lowest and the highest ratio. Both sides see the same keys in the same state,
// with the same backlog.
//
// Every scenario is a function of a context and a Config. It works on one queue that nobody else may use. It removes
// everything that it made there, however it ends. The package does not import package testing: the command `duestream
// bench` and the benchmarks of integration/ both use it.
//
// Invariants:
//   - no key is left behind after success, error or interrupt (TestBenchLeavesNothing);
//   - every request of an idle bridge is counted (TestIdleCountsWhatTheServerSees).
package bench
