// Package admin is the API for operators. One handle reads and diagnoses the queues of a prefix, pauses them, changes
// settings and partitions, redrives and purges dead letters, deletes, exports and imports. The duestream command is
// built on it.
//
//	a, err := admin.New(redis, "")
//	stats, err := a.Stats(ctx, "emails")
//	letters := a.DeadLetters()
//	filter := admin.LetterFilter{Group: "sender"}
//	result, err := letters.RedriveMatching(ctx, "emails", filter, admin.RedriveOptions{Rate: 100})
//
// An invalid name of a queue or group, or an invalid ID, gives bridge.ErrInvalid before Redis is touched. Every method
// that calls the server may return bridge.ErrUnavailable, bridge.ErrDenied (it needs the rights of the user "operator"
// of docs/operations/users.md), bridge.ErrWrongType, or the error of its context. Each method names its further errors.
// An unused queue is empty, not an error, unless the method names ErrNoQueue.
//
// Sizes are in bytes. In JSON, durations are whole milliseconds (Millis) and times are RFC 3339, by the server's clock.
// Methods that walk through a queue do so in bounded steps, and other commands run in between. So a message that moves
// meanwhile may be seen twice or not at all.
//
// Invariants:
//   - bridge does not import this package, so no program that only schedules or works has it in its binary
//     (layout.TestPackagesImportOnlyWhatIsBelowThem).
//   - The comment of an alias links to the definition of its type (layout.TestEveryNameHasASentence).
package admin

import (
	"cmp"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/await"
)

// Admin is an operator's handle on the queues of a prefix. Every operation of the duestream command is one of its
// methods. It is safe for concurrent use. It does not close the Redis that it was given.
type Admin struct {
	redis           *bridge.Redis
	prefix          string
	waiter          *await.Waiter           // for Result and WaitFor
	operator        string                  // of As; "" = this process
	observer        bridge.Observer         // nil = none
	suggests        func(queue string) bool // whether an error may suggest the queue's name; nil = always
	allowOldBridges bool                    // write also what a live bridge of an earlier release may not serve
}

// New returns a handle on the queues of a prefix; "" is the default prefix. The error names all faults of the
// arguments, each a *bridge.InvalidError. Redis is not touched.
func New(r *bridge.Redis, prefix string) (*Admin, error) {
	prefix = cmp.Or(prefix, lua.DefaultPrefix)
	err := lua.Faults("admin", lua.Required("redis", r != nil && r.Client != nil), lua.CheckPrefix(prefix))
	if err != nil {
		return nil, err
	}
	return &Admin{redis: r, prefix: prefix, waiter: await.NewWaiter(r.Client, prefix)}, nil
}

// Name returns the name of the operator in the histories of queues and in the records of changes: this process, unless
// As gave another one.
func (a *Admin) Name() string { return cmp.Or(a.operator, lua.Actor(lua.ActorOperator)) }

// As returns a handle for another operator: Name returns the name, which is at most 256 bytes of UTF-8 without control
// characters. A program that acts for several people gives each their own handle. "" is this process.
func (a *Admin) As(name string) *Admin {
	named := *a
	named.operator = name
	return &named
}

// Observed returns a handle that reports redriven and purged dead letters, and cancelled and moved messages, to an
// observer. Package bridge/metrics counts them.
func (a *Admin) Observed(o bridge.Observer) *Admin {
	observed := *a
	observed.observer = o
	return &observed
}

// Suggesting returns a handle whose errors suggest only the names of queues that the caller may know. By default they
// may suggest any queue.
func (a *Admin) Suggesting(may func(queue string) bool) *Admin {
	limited := *a
	limited.suggests = may
	return &limited
}

// AllowOldBridges returns a handle that writes recurrences, rates and ready limits, imports messages with an ordering
// key, and cancels deliveries that run, even while a bridge is alive that may not serve them. By default these calls
// are then refused with bridge.ErrOldBridge.
func (a *Admin) AllowOldBridges() *Admin {
	all := *a
	all.allowOldBridges = true
	return &all
}
