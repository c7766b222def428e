// Package deadletter lists, counts, edits, redrives and purges messages that failed for good.
//
// DeadLetters is a handle for all queues of a prefix. It merges the letters of a queue's partitions by age. The name of
// a letter is its ID in the stream of dead letters, prefixed with its partition unless that is 0. All work is done in
// bounded steps, by scripts that schedule before they delete, so a letter survives a crash of any caller.
//
// Invariants:
//   - a letter is redriven or purged once, also by several processes (TestRedriveRacingPurgeIsWonByOneSide);
//   - a redriven message goes to its group alone, from attempt 1
//     (TestRedriveSchedulesALetterForItsGroupFromAttemptOne), and without its old expiry
//     (TestRedriveOfAnExpiredMessageIsDelivered);
//   - a listing ends although letters are added (TestListDoesNotSeeLettersAddedMeanwhile), and reads large ones a few
//     at a time (TestLargeLettersAreReadInSmallPages);
//   - pages and steps of a survey give each letter once, also across partitions
//     (TestPagesGiveEachLetterOnce, TestSurveyCountsLikeSummarize);
//   - a redrive by filter touches only letters that existed when it began
//     (TestRedriveByFilterTouchesOnlyWhatMatchesAndWasThereAtTheStart);
//   - an interrupted redrive counts its work (TestRedriveThatIsInterruptedCountsWhatItDid).
package deadletter
