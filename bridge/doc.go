// Package bridge is the API of duestream for programs. A Client schedules messages. A Worker handles them. A Bridge
// moves due messages into streams and reclaims abandoned deliveries. A process may run any number of each. They need
// only Redis. Operators use [github.com/duestream/duestream/bridge/admin].
//
//	r, err := bridge.Dial(ctx, "redis://127.0.0.1:6379")
//	defer r.Close()
//	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r})
//	receipt, err := client.Schedule(ctx, "emails", []byte("hello"), bridge.In(15*time.Minute))
//
// Most types of this package are aliases. Their fields and methods are documented at the type to which the comment
// links. Packages lua, scheduler and stream, with their subpackages, are the engine. Programs need not import them.
//
// Each constructor refuses a bad configuration with one error, which has an *InvalidError for each wrong field.
//
// Invariants, each held by a test in integration/ that carries its name:
//   - G1 once Schedule returned nil, the message is delivered at least once to every group, or cancelled, or a dead letter;
//   - G2 never early by the server's clock;
//   - G3 one owner of a delivery at a time;
//   - G4 groups are independent;
//   - G5 nothing is dropped silently;
//   - G6 memory returns;
//   - G7 bounded work;
//   - G8 idle costs nothing;
//   - G9 a full Redis still drains.
package bridge
