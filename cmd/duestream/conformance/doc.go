// Package conformance tests whether a producer or a worker in another language keeps to docs/reference/protocol.md. It
// runs the program against a bridge of its own, gives it one task after another, inspects the server after each, and
// names the rule that was broken.
//
// A case tests one rule. Each case has a queue of its own, so several cases run concurrently. A case that disturbs
// others (by a restart of the server, killed connections, a full memory) has a server of its own. A case waits for an
// event until a deadline. To prove that an event does not happen, it waits for a later event: a marker message that
// was processed, the end of the process, or the end of the work.
//
// The package does not import package testing. The contract between the kit and the programs is in
// docs/reference/conformance.md.
//
//   - a program that breaks one rule fails by that rule (TestBrokenWorkersAreRefused, TestBrokenProducersAreRefused);
//   - the kit knows the program that sent a command, also if a child process of the program sent it
//     (TestATapReportsEachCommandAndReply);
//   - the kit judges the watched rules by the commands (TestAWatcherNamesTheRuleThatACommandBreaks);
//   - a program that keeps to all rules passes, on every server (TestGoodProgramsPassOnEveryServer);
//   - a rule that was not tried is never reported as passed (TestWhatIsNotTriedIsNotPassed);
//   - no key and no process is left, also after an interrupt (TestAnInterruptLeavesNothing).
package conformance
