// Package admin is all that an operator can do with the queues of a prefix, as methods of one handle: look, diagnose, pause,
// change settings and partitions, redrive and purge dead letters, delete, export and import. The duestream command is made of
// it.
//
//	a := admin.New(redis, "")
//	stats, err := a.Stats(ctx, "emails")
//	letters := a.DeadLetters()
//	result, err := letters.RedriveMatching(ctx, "emails", admin.LetterFilter{Group: "sender"}, admin.RedriveOptions{Rate: 100})
//
// A name of a queue, group or ID that is not allowed is ErrInvalid of package bridge, before Redis is touched. Every method that
// asks the server may return bridge.ErrUnavailable, bridge.ErrDenied (it needs the rights of the user "operator" of
// docs/OPERATIONS.md), bridge.ErrWrongType, or the error of its context; what it returns besides is named at the method. A queue
// that nobody has used is not an error but empty, unless the method says ErrNoQueue.
//
// Sizes are bytes. Durations that stand in JSON are whole milliseconds (Millis), times are RFC 3339, by the server's clock. What
// looks through a queue does so in bounded steps that let others in between, so what moves meanwhile may be seen twice or not at
// all.
//
// Invariants:
//   - bridge does not import this package, so no program that only schedules or works has it in its binary
//     (layout.TestPackagesImportOnlyWhatIsBelowThem).
//   - What an alias stands for is in its comment (layout.TestAliasesShowWhatTheyStandFor).
package admin

import (
	"cmp"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Admin is what an operator can do with the queues of a prefix: every ability of the command is a method of it. It is safe for
// concurrent use, and holds nothing but the connection, which whoever made it closes.
type Admin struct {
	redis    *bridge.Redis
	prefix   string
	observer bridge.Observer // nil = nobody is told
	old      bool            // what a living bridge may not serve is written all the same
}

// New returns a handle on the queues of a prefix; "" is the default one. Redis is not touched.
func New(r *bridge.Redis, prefix string) *Admin {
	return &Admin{redis: r, prefix: cmp.Or(prefix, lua.DefaultPrefix)}
}

// Name is how the histories of queues name this process as an operator.
func (a *Admin) Name() string { return lua.Actor(lua.ActorOperator) }

// Observed returns a handle that tells an observer which dead letters it redrives and purges: package bridge/metrics counts them.
func (a *Admin) Observed(o bridge.Observer) *Admin {
	observed := *a
	observed.observer = o
	return &observed
}

// AllowOldBridges returns a handle that writes recurrences, rates, ready limits, and imports messages with a key,
// although a bridge is alive that may not serve them: without it they are refused with bridge.ErrOldBridge.
func (a *Admin) AllowOldBridges() *Admin {
	all := *a
	all.old = true
	return &all
}
