// Package conformance finds out whether a producer or a worker of another make keeps to docs/PROTOCOL.md: it runs the program
// against a bridge of its own, asks it for one thing after the other, looks at what the server then holds, and says which rule
// was broken.
//
// A case shows one rule. Each has a queue of its own, so several run at a time; a case that disturbs others (by a restart of the
// server, killed connections, a full memory) has a server of its own. A case waits for what must happen until its deadline. To
// show that something does not happen it waits for what comes after that: a marker that passed, the end of the process, the end
// of the work.
//
// Nothing here knows package testing. The contract between the kit and the programs is in docs/CONFORMANCE.md.
//
// Invariants:
//   - a program that breaks one rule fails by that rule, and by no other (TestABrokenWorkerFailsByTheRuleThatItBreaks,
//     TestABrokenProducerFailsByTheRuleThatItBreaks);
//   - the kit knows which program sent a command, also when a process sent it that the program started, and judges each rule
//     about commands in every case
//     (TestATapTellsWhatAProgramSendsAndIsTold, TestAWatcherNamesTheRuleThatACommandBreaks);
//   - a program that keeps to all rules passes, on every server (TestGoodProgramsPassOnEveryServer);
//   - what was not tried is never called passed (TestWhatIsNotTriedIsNotPassed);
//   - no key and no process is left, also after an interrupt (TestAnInterruptLeavesNothing).
package conformance
