package lookup

import "github.com/duestream/duestream/stream/await"

// Waiter waits for messages: see [await.Waiter].
type Waiter = await.Waiter

// NewWaiter returns a Waiter: see [await.NewWaiter].
var NewWaiter = await.NewWaiter
