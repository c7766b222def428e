// Package bridgetest tests programs that schedule and handle messages, without waiting. A Kit has a server, a bridge, a
// client and the program's workers, and all of them share one clock, which only Advance moves:
//
//	k := bridgetest.New(t)
//	k.Work(mux, "shop")
//	_, err := CloseOrder.Schedule(ctx, k.Client(), Order{ID: 42}, bridge.In(30*time.Minute))
//	k.Advance(30 * time.Minute) // the handler of CloseOrder runs, within milliseconds
//
// The messages pass through the same scripts, and the same code of bridge and worker, as in production. Only the time
// is different: the kit gives its time to the scripts with each call, and decides when the bridge makes its passes. So
// a message is delivered exactly when it is due, and its lateness is zero.
//
// The server is a real one if one is available (see Config.URL). Otherwise it is a server inside this process, which
// differs from a real Redis in a few points. docs/operations/deploy.md lists them.
//
// The kit cannot move times that the program under test measures by the clock of its machine: time.Now in a handler
// (pass Kit.Now to the program instead), HandlerTimeout and other timers of Go, a rate that WorkerConfig.Admit
// enforces, the GroupRate of a worker that Kit.Run or Kit.Work has not started, and the seconds after which a worker
// notices a changed policy or a grown queue. Functions of the library for other languages (FCALL) use the clock of the
// server. Commands of another process, and those that do not pass through Kit.Redis, are noticed only by the next call
// of Advance.
//
// Only tests import this package, so its in-process server is in no program.
//
// Invariants:
//
//   - Advance delivers what a real run delivers, at the same times (TestAdvanceDoesWhatARealRunDoes).
//   - A handler that does not return fails the test by name (TestAHandlerThatHangsIsNamed).
//   - A program whose tests alone import this package does not contain it
//     (layout.TestAProgramTestedWithBridgetestDoesNotContainIt).
//   - A kit leaves no key on a server of others (TestAKitLeavesNothingBehind).
package bridgetest
