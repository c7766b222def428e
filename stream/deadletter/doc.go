// Package deadletter lists, counts, edits, redrives and purges what failed for good.
//
// DeadLetters is a handle for all queues of a prefix. The letters of a queue's partitions come in one order, by age. A letter has
// a name: its ID in the stream of dead letters, and its partition in front of it. Everything is done in bounded steps, by scripts
// that schedule before they delete, so a letter survives whoever handles it.
//
// Invariants:
//   - a letter is redriven or purged once, also by several processes (TestRedriveRacingPurgeIsWonByOneSide);
//   - a redriven message goes to its group alone, from attempt 1 (TestRedriveSchedulesALetterForItsGroupFromAttemptOne), and
//     without its old expiry (TestRedriveOfAnExpiredMessageIsDelivered);
//   - a listing ends although letters are added (TestListDoesNotSeeLettersAddedMeanwhile), and reads large ones a few at a time
//     (TestLargeLettersAreReadInSmallPages);
//   - a redrive by filter touches only letters that were there when it began
//     (TestRedriveByFilterTouchesOnlyWhatMatchesAndWasThereAtTheStart);
//   - a redrive that is interrupted counts what it did (TestRedriveThatIsInterruptedCountsWhatItDid).
package deadletter
