// Package push delivers messages by callback: it sends each message of a queue's group in a signed POST to a URL, for
// partners that do not read from Redis. A Store holds the Target of each group. A Runner reads the targets and posts. A
// bridge.Worker of the group serves each target. So any number of processes share the work, the policy of the queue
// decides about retries and dead letters, and each message is posted at least once.
//
//	store := push.NewStore(redis.Client, "")
//	change, err := store.Set(ctx, push.Target{Queue: "orders", Group: "partner", URL: "https://example.com/hook"})
//	// give change.Key to the partner: it cannot be read again
//	runner, err := push.NewRunner(push.Config{Redis: redis})
//	err = runner.Run(ctx) // until ctx is cancelled
//
// docs/guides/callbacks.md describes the request, its signature, and the effect of each answer.
//
// Invariants:
//   - No request goes to an address outside the public internet unless the target's own list allows it. The dialled
//     address is checked (TestPrivateAddressesAreRefused, TestANameThatChangesItsAddressIsRefused).
//   - While a circuit is open no attempt is counted, and messages are taken only as probes
//     (TestCircuitOpensUsesNoAttemptsAndCloses).
//   - A message that a target refuses delays no other message (TestRefusedMessagesDelayNoOthers).
//   - No key, header value, path or query of a URL is in a log line or an error (TestSecretsAreNotTold).
package push
