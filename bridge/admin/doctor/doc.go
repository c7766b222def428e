// Package doctor looks at a server and at what duestream keeps there, and says what is wrong. It is what admin.Doctor and
// `duestream doctor` run.
//
// Every check has a code that never changes its meaning (Checks). A system at work is always in between two states somewhere, so
// what looks wrong is looked at again, some seconds later, and only what is still so is found. Looking writes nothing, and asks
// in bounded steps; a repair does only what bridges do by themselves as well, or what can neither lose a message nor deliver one
// that was handled.
//
// Invariants:
//   - each defect is found by its code, and by no other: TestDoctorNamesEachDefect
//   - a system that works has no findings: TestDoctorFindsNothingInASystemThatWorks
//   - a repair loses nothing and is early with nothing: TestDoctorRepairsUnderLoad
//   - what the documentation says of the codes is what the code says: TestDocumentedChecks
package doctor
