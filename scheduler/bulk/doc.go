// Package bulk changes many scheduled messages at once: it cancels, moves or expires those of a list of IDs, with IDs that begin
// alike, with certain headers, or due within a time, by the scripts that change one of them. It keeps nothing: a run that ended
// early is gone on with by the same call, which finds what is left.
//
// Invariants:
//   - a message that became ready before its turn is counted as gone, never as changed, and is not lost
//     (TestWhatBecomesReadyMeanwhileIsReported);
//   - a second run changes nothing that the first one changed (TestRunThatWasInterruptedGoesOn);
//   - a dry run changes nothing (TestDryRunChangesNothing);
//   - prefixes and IDs are texts, whatever they mean to Redis in a pattern (TestHostileNamesAreTexts).
package bulk
