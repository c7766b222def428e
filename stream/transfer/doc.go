// Package transfer moves the contents of a queue to another server, or into a file and back.
//
// Export yields records: ready entries for each group, scheduled members, dead letters, recurrences. Import writes
// records into a queue. A Record is one line of JSON, which people may edit.
//
// Invariants:
//   - contents of the schedule and dead letters survive a file unchanged (TestScheduledRecordsAreLossless,
//     TestDeadRecordsAreLossless);
//   - no record is longer than that of the largest payload (TestPayloadsOfRecordsAreShort);
//   - export, then import, then export gives the same records (TestExportAfterImportIsTheSame), and a retry keeps its
//     key (TestAnImportedRetryHoldsItsKey);
//   - an ID that any partition holds or remembers is not taken again (TestImportTakesNoIDASecondTime);
//   - a record that could not be imported is refused before Redis is touched (TestRecordsAreCheckedBeforeTheyAreSent).
package transfer
