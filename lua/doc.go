// Package lua is part of the engine of duestream, not its API; programs import [github.com/duestream/duestream/bridge].
// It is the protocol as code: one Lua script for each transition of a message, a typed Go call for each script, the
// names of all keys and fields, and the limits of arguments.
//
// A script is edited in its own file, and its shared functions in lib. The text that runs is generated from them by
// `go generate ./lua`, and checked in: generated/NAME.lua. Package assemble describes how the two differ.
//
// Every script gets its keys as arguments. Before it writes, it checks that they have the right types, and that its
// user may write them. It uses the server's clock, and a limit among its arguments bounds its work. A key that it reads
// before it writes needs no type check: an error of that read ends the script. The scripts that clients call are also
// published as a library of Redis Functions, with the same text.
//
// No other package writes to Redis, except by XREADGROUP (ready to pending); workers in other languages also send XACK.
// plain.go has the few plain write commands, each with the reason why it is safe (layout.TestOnlyLuaWrites).
//
// Invariants:
//   - each header states exactly what the Go call sends (TestHeaders);
//   - the checked-in texts are those of the current sources (assemble.TestGeneratedFilesAreUpToDate);
//   - a key of another type, or a right that is missing, ends a call with nothing done
//     (TestWrongTypesAreRefusedBeforeTheFirstWrite, TestScriptIsRefusedBeforeItBegins);
//   - the number of commands of a call with one message is written down (TestCommandsOfACallWithOneMessage);
//   - a member that cannot be used is dead-lettered by itself and stops nothing (TestDrainBuriesMalformedMembersAlone);
//   - every exit from a pending list is won by one side (TestOneOfManyRacingExitsWins, and the model);
//   - a full server refuses only the scripts that take in new data, each as a whole: enqueue, enqueue_fresh,
//     enqueue_one, restore, recur, plan and run_recurrence (TestFullServerRefusesOnlyEnqueue);
//   - a function has the same effect as its script (on the shared server each test of the contract runs through both;
//     assemble.TestFunctionsAreTheirScripts);
//   - a page of an export begins where the last one ended, even if members left the schedule meanwhile
//     (TestExportMissesNothingWhenMembersLeave);
//   - the scripts keep to what the in-process server of dev supports (TestScriptsRunOnTheInProcessServer).
package lua
