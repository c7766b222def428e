// Package lua is duestream's protocol as code: one Lua script per transition of a message, a typed Go call for each, the names of
// all keys and fields, and the limits that hold at the door.
//
// Every script is told its keys, knows before it writes that they are of the right types and that its user may write them, uses
// the server's clock, and is bounded by a limit among its arguments. It need not ask for the type of a key that it reads: see
// whole. Nothing outside this package changes the state of a message, except XREADGROUP (ready to pending) and a plain XACK or
// XDEL. The scripts that clients call are published as a library of Redis Functions, too, of the same text.
//
// Invariants:
//   - each header states exactly what the Go call sends (TestHeaders);
//   - a key of another type, or a right that is missing, ends a call with nothing done
//     (TestWrongTypesAreRefusedBeforeTheFirstWrite, TestScriptIsRefusedBeforeItBegins);
//   - what a call with one message costs is written down (TestCommandsOfACallWithOneMessage);
//   - a member that cannot be used is dead-lettered by itself and stops nothing (TestDrainBuriesMalformedMembersAlone);
//   - every exit from a pending list is won by one side (TestExitsAreGuarded);
//   - with memory full only enqueue is refused, and then whole, and restore (TestFullServerRefusesOnlyEnqueue);
//   - a function does what its script does (everywhere runs each test of the contract through both;
//     TestFunctionsAreTheirScripts);
//   - a page of an export begins where the last one ended, whatever has left meanwhile (TestExportMissesNothingWhenMembersLeave);
//   - the scripts keep to what the in-process server of dev supports (TestScriptsRunOnTheInProcessServer).
package lua
