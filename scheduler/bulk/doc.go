// Package bulk cancels, moves or expires many scheduled messages at once. It selects them by a list of IDs, a prefix of
// the ID, headers, due times, or texts of the payload and the error; or they are given one by one. It uses the scripts
// that change single messages. It keeps no state: after an interrupted run the same call continues with the messages
// that are left.
//
// Invariants:
//   - a message that became ready before its turn is counted as gone, never as changed, and is not lost
//     (TestWhatBecomesReadyMeanwhileIsReported);
//   - a second run changes nothing that the first one changed (TestRunThatWasInterruptedGoesOn);
//   - a dry run changes nothing (TestDryRunChangesNothing);
//   - prefixes, IDs and texts are literal, whatever they mean to Redis in a pattern (TestHostileNamesAreTexts,
//     TestTextsSelectMessages);
//   - a given message is changed only if it still matches (TestChosenMessagesMustStillMatch).
package bulk
