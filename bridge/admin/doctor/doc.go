// Package doctor looks at a server and at what duestream keeps there, and says what is wrong. It is what admin.Doctor and
// `duestream doctor` run.
//
// Every check has a code that never changes its meaning (Checks). A system at work is always in between two states somewhere, so
// the doctor looks again, some seconds later, at what looks wrong, and reports only what is wrong still. Looking writes nothing,
// and reads in bounded steps. A repair does only what bridges do by themselves as well, or what can neither lose a message nor
// deliver a message a second time.
//
// Invariants:
//   - each defect is found by its code, and by no other: TestDoctorNamesEachDefect
//   - a system that works has no findings: TestDoctorFindsNothingInASystemThatWorks
//   - a repair loses nothing and delivers nothing early: TestDoctorRepairsUnderLoad
//   - what the documentation says of the codes is what the code says: TestDocumentedChecks
package doctor
