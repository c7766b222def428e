package messages

// Names for the tests outside of this package.

type ActAnswer = actAnswer
type BulkAnswer = bulkAnswer
type Cancelled = cancelled
type CancelledRunning = cancelledRunning
type FileTally = fileTally
type RetryAnswer = retryAnswer
type ResultAnswer = resultAnswer
