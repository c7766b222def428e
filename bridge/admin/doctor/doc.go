// Package doctor examines a server and the keys of duestream on it, and reports what is wrong. admin.Doctor and
// `duestream doctor` run it.
//
// Every check has a code whose meaning never changes (Checks). A system in use always has keys in transition between
// two states. So the doctor checks every suspected defect again, some seconds later, and reports only those that
// remain. An examination writes nothing, and reads in bounded steps. A repair only does what bridges also do by
// themselves, or what can neither lose a message nor deliver one twice.
//
// Invariants:
//   - each defect is found by its own check, and by no other: TestDoctorNamesEachDefect
//   - a system that works has no findings: TestDoctorFindsNothingInASystemThatWorks
//   - a repair loses no message and delivers none early: TestDoctorRepairsUnderLoad
//   - the documentation of the codes agrees with the code: TestDocumentedChecks
package doctor
