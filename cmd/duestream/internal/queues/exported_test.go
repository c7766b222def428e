package queues

// Names for the tests outside of this package.

type HeldQueue = heldQueue
type ImportTally = importTally
type PartitionCounts = partitionCounts

// QueuePolicy is the JSON of queue show and queue set.
type QueuePolicy struct {
	Queue             string
	VisibilityTimeout int64 `json:"visibility_timeout_ms"`
	MaxAttempts       int   `json:"max_attempts"`
	Held              bool
	RetryDelays       []int64 `json:"retry_delays_ms"`
	RetryFor          int64   `json:"retry_for_ms"`
	MaxSnoozes        int     `json:"max_snoozes"`
	MaxCrashes        int     `json:"max_crashes"`
	HandlerTimeout    int64   `json:"handler_timeout_ms"`
	Rate              string
	Burst             int
	FreeRetries       bool `json:"free_retries"`
	ReadyLimit        int  `json:"ready_limit"`
	Partitions        int
}
