package messages

// Names for the tests outside of this package.

type BulkAnswer = bulkAnswer
type Cancelled = cancelled
type CancelledRunning = cancelledRunning
type FileTally = fileTally
type TakenRetry = takenRetry
