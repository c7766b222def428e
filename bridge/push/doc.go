// Package push delivers the messages of a queue's group by callback: a signed POST to a URL for each, for partners that read
// nothing from Redis. A Store holds which group has which Target; a Runner reads them and posts. Each target is served by a
// bridge.Worker of its group, so any number of processes share the work, retries and dead letters are those of the policy, and
// what is posted is posted at least once.
//
//	store := push.NewStore(redis.Client, "")
//	change, err := store.Set(ctx, push.Target{Queue: "orders", Group: "partner", URL: "https://example.com/hook"})
//	// change.Key is to be given to the partner, and told only now
//	runner, err := push.NewRunner(push.Config{Redis: redis})
//	err = runner.Run(ctx) // until ctx is cancelled
//
// The form of the request, of its signature, and what each answer leads to are in docs/CALLBACKS.md.
//
// Invariants:
//   - No request leaves for an address that is not public, unless the target's own list allows it: the address that is dialled
//     is the one that is checked (TestPrivateAddressesAreRefused, TestANameThatChangesItsAddressIsRefused).
//   - While a circuit is open no attempt is used up, and messages are taken as probes only
//     (TestCircuitOpensUsesNoAttemptsAndCloses).
//   - A message that a target refuses delays no other one (TestRefusedMessagesDelayNoOthers).
//   - No key, header value or path of a URL is in a log line or an error (TestSecretsAreNotTold).
package push
