package bridge

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/clock"
	"github.com/duestream/duestream/lua"
)

const (
	// KindHeader is the header that names the kind of a message. A producer in any language sets it to send a message
	// to a typed handler.
	KindHeader = "kind"

	// MaxUnknownSnoozes is the number of snoozes after which a worker makes a message of an unknown kind a dead letter,
	// but not before UnknownKindTime. 60 snoozes last 55 minutes. If the workers of a new release are a tenth of all
	// workers, one message in about 600 meets none of them in this time.
	MaxUnknownSnoozes = 60
	// UnknownKindTime is the time after a worker's first message of an unknown kind in which it makes no dead letter of
	// this kind. It protects messages that the new release had snoozed often before.
	UnknownKindTime = 55 * time.Minute
)

// Messages whose kind the mux does not know. During a deployment the new release sends messages that workers of the old
// release do not know. They are snoozed, so that a worker of the new release gets them.
const (
	firstUnknownDelay   = time.Second
	longestUnknownDelay = time.Minute

	// maxUnknownKinds limits the unknown kinds whose first message a worker remembers. Messages of further kinds are
	// snoozed without limit.
	maxUnknownKinds = 1000
)

const maxKindBytes = 128

// Mux calls the handler of a message's kind. The zero value has no handlers. Add handlers with Kind.Handle, and give
// the mux to a worker:
//
//	mux := &bridge.Mux{}
//	CloseOrder.Handle(mux, closeOrder)
//	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Group: "shop", Mux: mux})
//
// A message of a kind without a handler is snoozed for some time, and then becomes a dead letter: see
// MaxUnknownSnoozes. A message whose header cannot be the name of a kind becomes one at once. Otherwise sets another
// handler for both.
//
// Add handlers and middleware before NewWorker; afterwards Use, Otherwise and Kind.Handle panic.
type Mux struct {
	mu         sync.Mutex
	handlers   map[kindKey]kindHandler
	otherwise  Handler // of messages of other kinds; nil = unknownKinds
	middleware []Middleware
	faults     []error
	isUsed     bool // Handler returned a handler
}

// kindHandler is the handler of a kind.
type kindHandler struct {
	make  func(*workerBatches) Handler // makes the handler of one worker; nil = there is no handler
	batch *batchKind                   // nil = messages are handled one by one
}

// kindKey is the name of a kind in a queue. Two queues may have kinds of one name.
type kindKey struct{ queue, name string }

// Middleware wraps a handler, for example to log each delivery. It may change the message and the error. The handler of
// the message's kind is chosen before, so a changed header has no effect on the choice. It must not return nil.
type Middleware func(Handler) Handler

// mustBeUnused panics after Handler has returned a handler, because that handler would lack an addition. The caller
// holds mu.
func (x *Mux) mustBeUnused() {
	if x.isUsed {
		panic("bridge: add handlers and middleware to a Mux before NewWorker")
	}
}

// Use wraps every handler in middleware: handlers of kinds that are added before or after this call, and the handler of
// unknown kinds. The first middleware is the outermost.
func (x *Mux) Use(middleware ...Middleware) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mustBeUnused()
	for _, one := range middleware {
		if one == nil {
			x.faults = append(x.faults, lua.Required("middleware", false))
			continue
		}
		x.middleware = append(x.middleware, one)
	}
}

// With returns a copy of the mux with further middleware, which wraps the middleware of the mux. A later change of one
// mux does not change the other. Package bridge/tracing uses it.
func (x *Mux) With(middleware ...Middleware) *Mux {
	x.mu.Lock()
	defer x.mu.Unlock()
	wrapped := &Mux{handlers: maps.Clone(x.handlers), otherwise: x.otherwise, faults: slices.Clone(x.faults)}
	wrapped.Use(middleware...)
	wrapped.middleware = append(wrapped.middleware, x.middleware...)
	return wrapped
}

// Otherwise sets the handler of messages whose kind has no handler in their queue. A group that needs only some kinds
// passes a function that returns nil, which acknowledges the other messages.
func (x *Mux) Otherwise(handler Handler) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mustBeUnused()
	switch {
	case handler == nil:
		x.faults = append(x.faults, lua.Required("handler of other kinds", false))
	case x.otherwise != nil:
		x.faults = append(x.faults, lua.Invalid("handler of other kinds", "", "is set twice"))
	}
	x.otherwise = handler
}

// add adds the handler of a kind, or notes the fault of the kind.
func (x *Mux) add(queue, name string, fault error, handler kindHandler) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mustBeUnused()
	key := kindKey{queue, name}
	switch {
	case fault != nil:
		x.faults = append(x.faults, fault)
	case handler.make == nil:
		x.faults = append(x.faults, lua.Required("handler of "+kindInWords(name), false))
	case x.handlers[key].make != nil:
		x.faults = append(x.faults, lua.Invalid("kind", name, "has two handlers for queue %q", queue))
	case x.handlers == nil:
		x.handlers = map[kindKey]kindHandler{key: handler}
	default:
		x.handlers[key] = handler
	}
}

// Queues returns the queues of the kinds, in alphabetical order.
func (x *Mux) Queues() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var queues []string
	for key := range x.handlers {
		queues = append(queues, key.queue)
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

// Handler returns a handler that calls the handler of a message's kind, with the middleware. WorkerConfig.Mux uses it.
// The error names all faults of the mux, each an *InvalidError. Without a worker, batches start by their size and age
// alone.
func (x *Mux) Handler() (Handler, error) {
	handler, _, err := x.handlerFor(0)
	return handler, err
}

// checkWorker returns an error if a worker with a number of slots and a time limit of handlers cannot collect batches.
func (x *Mux) checkWorker(slots int, handlerTimeout time.Duration) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	var faults []error
	for _, handler := range x.handlers {
		if handler.batch != nil {
			faults = append(faults, handler.batch.checkWorker(slots, handlerTimeout))
		}
	}
	return errors.Join(faults...)
}

// handlerFor is Handler for a worker with a number of slots; 0 = not known.
func (x *Mux) handlerFor(slots int) (Handler, *workerBatches, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.handlers) == 0 && len(x.faults) == 0 {
		return nil, nil, lua.Invalid("mux", "", "has no handler")
	}
	if err := errors.Join(x.faults...); err != nil {
		return nil, nil, err
	}
	batches := &workerBatches{slots: slots, open: map[*batchKind]*batch{}}
	wrapped := make(map[kindKey]Handler, len(x.handlers))
	otherwise := x.otherwise
	if otherwise == nil {
		otherwise = (&unknownKinds{since: map[kindKey]time.Time{}}).handle
	}
	otherwise, err := x.wrap(otherwise)
	for key, handler := range x.handlers {
		var failed error
		wrapped[key], failed = x.wrap(handler.make(batches))
		err = cmp.Or(err, failed)
	}
	if err != nil {
		return nil, nil, err
	}
	x.isUsed = true
	handle := func(ctx context.Context, m *Message) error {
		if handler := wrapped[kindOf(m)]; handler != nil {
			return handler(ctx, m)
		}
		return otherwise(ctx, m)
	}
	return handle, batches, nil
}

// base64Kind is the field of a kind that is not UTF-8, in a retry of an entry that another program added.
const base64Kind = "b64:" + lua.HeaderPrefix + KindHeader

// kindOf returns the kind of a message. A retry stores a name that is not UTF-8 in another field. kindOf reads this
// field too, so that the retry does not pass for a message without a kind.
func kindOf(m *Message) kindKey {
	name, ok := m.Headers[KindHeader]
	if text, encoded := m.Extra[base64Kind]; !ok && encoded {
		if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
			name = string(decoded)
		} else {
			name = text
		}
	}
	return kindKey{m.Queue, name}
}

// wrap wraps a handler in all middleware. The caller holds mu.
func (x *Mux) wrap(handler Handler) (Handler, error) {
	for _, one := range slices.Backward(x.middleware) {
		if handler = one(handler); handler == nil {
			return nil, lua.Invalid("middleware", "nil", "must return a handler")
		}
	}
	return handler, nil
}

// unknownKinds handles messages of kinds without a handler.
type unknownKinds struct {
	mu    sync.Mutex
	since map[kindKey]time.Time // when the worker got its first message of each kind
}

// handle snoozes the message, or makes it a dead letter.
func (u *unknownKinds) handle(ctx context.Context, m *Message) error {
	kind := kindOf(m)
	if err := checkKindName(kind.name); err != nil { // no release has a handler for it
		return DeadLetter(err)
	}
	snoozes, _ := strconv.Atoi(m.Extra[lua.FieldSnoozes]) // not there: 0
	snoozes = max(0, snoozes)                             // another program may have added the entry
	age := u.age(kind, clock.Of(ctx).Now())
	if snoozes >= MaxUnknownSnoozes && age >= UnknownKindTime {
		return DeadLetter(fmt.Errorf("no worker of group %q knows %s: it was snoozed %d times",
			m.Group, kindInWords(kind.name), snoozes))
	}
	delay := longestUnknownDelay
	if snoozes < 6 { // 1 s, 2 s, 4 s, … 32 s
		delay = firstUnknownDelay << snoozes
	}
	return Snooze(delay)
}

// age returns how long before now the worker got the first message of a kind.
func (u *unknownKinds) age(kind kindKey, now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	since, ok := u.since[kind]
	if !ok && len(u.since) < maxUnknownKinds {
		u.since[kind] = now
	}
	if !ok {
		return 0
	}
	return now.Sub(since)
}

// kindInWords names a kind in an error: `kind "close-order"`, or "messages without a kind".
func kindInWords(name string) string {
	if name == "" {
		return "messages without a kind"
	}
	return fmt.Sprintf("kind %q", name)
}

func checkKindName(name string) error {
	hasControl := slices.ContainsFunc([]rune(name), unicode.IsControl)
	if len(name) > maxKindBytes || !utf8.ValidString(name) || hasControl {
		return lua.Invalid("kind", name, "must be at most %d bytes of UTF-8 without control characters", maxKindBytes)
	}
	return nil
}
