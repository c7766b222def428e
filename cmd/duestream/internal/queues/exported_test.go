package queues

// Names for the tests outside of this package.

type HeldQueue = heldQueue
type ImportTally = importTally
type PartitionCounts = partitionCounts
type QueuePolicy = queuePolicy
