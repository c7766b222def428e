package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/tail"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Limits of a Request.
const (
	MaxCount  = 100
	MaxQueues = 100
	MaxWait   = 10 * time.Minute
)

// DefaultConsumer is the consumer name of all Pullers.
const DefaultConsumer = "pull"

// Config configures a Puller. Client and Blocking are required.
type Config struct {
	Client   rueidis.Client
	Blocking rueidis.Client // for reads that block
	Prefix   string         // of all keys; default lua.DefaultPrefix
	Consumer string         // must be the same for all Pullers of a group; default DefaultConsumer
	Logger   *slog.Logger   // nil: nothing is logged
}

// Puller gives deliveries to callers. Calls may be made concurrently, while Run runs.
type Puller struct {
	cfg    Config
	reader *tail.Reader

	mu      sync.Mutex
	sources map[sourceKey]*source
	streams map[string][]*line   // by key of the stream: the lines of all groups
	failing map[sourceKey]string // logged errors of queues that cannot be read
	tickets uint64               // number of waiters so far

	making loop.Locks // by queue; held while a group is created
	room   room
}

// New checks the configuration; the error names all its faults. It does not touch Redis.
func New(cfg Config) (*Puller, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	cfg.Consumer = cmp.Or(cfg.Consumer, DefaultConsumer)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if err := lua.Faults("pull", lua.Required("redis", cfg.Client != nil && cfg.Blocking != nil),
		lua.CheckPrefix(cfg.Prefix), lua.CheckConsumer(cfg.Consumer)); err != nil {
		return nil, err
	}
	p := &Puller{cfg: cfg, sources: map[sourceKey]*source{}, streams: map[string][]*line{},
		failing: map[sourceKey]string{}, room: newRoom(maxReceived)}
	p.reader = tail.New(tail.Config{Client: cfg.Blocking, Block: readBlock, Count: 1, Log: cfg.Logger,
		Activity: "wait for messages", Added: p.added, Broken: func(error) {}})
	return p, nil
}

// Request describes what a caller wants.
type Request struct {
	Queues []string // 1 to 100; the first one with messages is served first
	// Weights has a weight from 1 to 1,000 for each queue: in proportion, how often the queue comes first. Empty: the
	// queues are asked in the order of Queues.
	Weights []int
	// Group is created where it is missing, at the beginning of the stream, unless the queue has MaxGroups groups.
	Group string
	Count int // greatest number of deliveries; 1 to 100

	// Within is the time in which a delivery must be settled or extended, at least 1ms. After this time the delivery
	// has failed, as if its worker had crashed. Zero stands for the visibility timeout of the queue's group, which is
	// also the maximum.
	Within time.Duration
	// Wait is how long to wait for the first message. Zero: do not wait. At most ten minutes.
	Wait time.Duration
}

// Delivery is one delivery of a message to a caller. The caller must settle it by its Token.
type Delivery struct {
	stream.Message
	Token  Token
	Within time.Duration // time in which it must be settled or extended
}

// PayloadBytes returns the size of all payloads in bytes.
func PayloadBytes(all []Delivery) (n int) {
	for i := range all {
		n += len(all[i].Payload)
	}
	return n
}

func (r *Request) validate() error {
	var errs []error
	if n := len(r.Queues); n < 1 || n > MaxQueues {
		return lua.Invalid("queues", strconv.Itoa(n), "must be 1 to %d", MaxQueues) // do not check thousands of names
	}
	for i, queue := range r.Queues {
		errs = append(errs, lua.CheckQueue(queue))
		if slices.Contains(r.Queues[:i], queue) {
			errs = append(errs, lua.Invalid("queues", queue, "must be named once"))
		}
	}
	if n := len(r.Weights); n > 0 && n != len(r.Queues) {
		return errors.Join(append(errs, lua.Invalid("weights", strconv.Itoa(n), "must be one for each queue"))...)
	}
	for _, weight := range r.Weights {
		if weight < 1 || weight > 1000 {
			errs = append(errs, lua.Invalid("weight", strconv.Itoa(weight), "must be between 1 and 1000"))
		}
	}
	errs = append(errs, lua.CheckGroup(r.Group))
	if r.Count < 1 || r.Count > MaxCount {
		errs = append(errs, lua.Invalid("count", strconv.Itoa(r.Count), "must be between 1 and %d", MaxCount))
	}
	if r.Wait < 0 || r.Wait > MaxWait {
		errs = append(errs, lua.Invalid("wait", r.Wait.String(), "must be between 0 and %s", MaxWait))
	}
	if r.Within < 0 || r.Within > 0 && r.Within < time.Millisecond {
		errs = append(errs, lua.Invalid("within", r.Within.String(), "must be at least 1ms"))
	}
	return errors.Join(errs...)
}

// order returns the queues in the order in which this request asks them: by weighted lots, or as given.
func (r *Request) order() []string {
	if len(r.Weights) == 0 {
		return r.Queues
	}
	weights, queues := slices.Clone(r.Weights), slices.Clone(r.Queues)
	total := 0 // weight of the queues that are not drawn yet
	for _, weight := range weights {
		total += weight
	}
	for i := range queues {
		lot, drawn := rand.N(total), i
		for lot >= weights[drawn] {
			lot -= weights[drawn]
			drawn++
		}
		total -= weights[drawn]
		queues[i], queues[drawn] = queues[drawn], queues[i]
		weights[i], weights[drawn] = weights[drawn], weights[i]
	}
	return queues
}

// Pull returns up to Count deliveries: at once if there are any, or else as soon as there is one. After Wait it returns
// none. If ctx ends, it gives back deliveries that it has fetched, with the same attempt, and returns the error of ctx.
//
// It serves the queues, and the partitions of a queue, that it can reach. Errors of other queues and partitions are
// logged, and are returned only if there is no delivery. An unreachable server is an error only if no server can be
// reached.
//
// Errors: ErrInvalid; and the usual errors of package lua for a server that is unreachable, a key of the wrong type,
// and a denied command.
func (p *Puller) Pull(ctx context.Context, r Request) ([]Delivery, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	lines, missing, err := p.linesOf(ctx, &r)
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case len(lines) == 0:
		return nil, missing
	}
	deadline := time.Now().Add(r.Wait)
	retryMissing := time.Now().Add(policy.RefreshInterval) // when to look again for queues that could not be reached
	w := p.newWaiter(lines)
	defer p.release(w)
	for {
		found, err := p.try(ctx, &r, w.lines)
		switch {
		case ctx.Err() != nil:
			p.GiveBack(ctx, found)
			return nil, context.Cause(ctx)
		case len(found) > 0:
			return found, nil
		case err != nil && !mayWaitDespite(err, &r, w):
			return nil, err
		}
		until := deadline
		if lua.Temporary(missing) && retryMissing.Before(deadline) {
			until = retryMissing
		}
		switch woken := p.wait(ctx, w, until); {
		case woken:
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case until == deadline:
			return nil, err
		default:
			if lines, missing, err = p.linesOf(ctx, &r); err != nil {
				return nil, err
			}
			retryMissing = time.Now().Add(policy.RefreshInterval)
			p.setLines(w, lines)
		}
	}
}

// mayWaitDespite reports whether a request without a delivery waits although a queue failed with err. It waits through
// an outage that begins during its wait. It waits despite a lasting error of one of several queues, because the other
// queues may get messages.
func mayWaitDespite(err error, r *Request, w *waiter) bool {
	if lua.Temporary(err) {
		return w.hasWaited
	}
	return len(r.Queues) > 1
}

// maxBytes is the size of the payloads beyond which a caller gets no further delivery. It gets more bytes only if one
// payload is larger, or if they came in the same reply.
const maxBytes = 4 << 20

// try asks the streams that may have messages. It stops when there are enough deliveries. It also stops when a tenth of
// the time has passed in which the first delivery must be settled, because the caller needs the other nine tenths. When
// a stream has given all its entries, try does not ask it again for entries added since: under a steady flow, that
// would withhold the deliveries from the caller. The next waiting caller is woken for those entries.
//
// If a server cannot be reached, try asks the streams of other servers. It is an error only if no server can be
// reached.
func (p *Puller) try(ctx context.Context, r *Request, lines []*line) (found []Delivery, failed error) {
	var firstAsked time.Time // when the first delivery was asked for
	var errs []error
	bytes := 0
	enough := func() bool {
		if len(found) >= r.Count || bytes >= maxBytes {
			return true
		}
		return len(found) > 0 && time.Since(firstAsked) > found[0].Within/10
	}
	for remaining := p.reachable(lines); len(remaining) > 0; {
		l := remaining[0]
		remaining = remaining[1:]
		for asked := false; !enough(); asked = true {
			latest, ok := p.enter(l, r.Wait == 0 && !asked)
			if !ok {
				break
			}
			if len(found) == 0 {
				firstAsked = time.Now()
			}
			lease := l.source.lease(r)
			got, err := p.receive(ctx, r, l, lease, r.Count-len(found))
			p.leave(l, latest, got, err)
			own := p.own(ctx, r, l, lease, got.Entries)
			bytes += PayloadBytes(own)
			found = append(found, own...)
			switch {
			case ctx.Err() != nil, lua.Temporary(err) && len(found) > 0:
				return found, err
			case lua.Temporary(err):
				remaining = p.probe(ctx, remaining)
			case errors.Is(err, lua.ErrInvalid): // the other partitions of the queue would return the same error
				remaining = slices.DeleteFunc(remaining, func(other *line) bool { return other.source == l.source })
			}
			if err != nil { // continue with the other streams: they may have messages
				errs = append(errs, err)
				break
			}
			gaveAll := got.Last != ""
			if len(found) > 0 && gaveAll {
				break
			}
		}
	}
	if p.anyReachable(lines) {
		errs = slices.DeleteFunc(errs, lua.Temporary)
	}
	return found, joined(errs)
}

// receive fetches entries of one stream. It creates the group if the group does not exist.
func (p *Puller) receive(ctx context.Context, r *Request, l *line, given lease, limit int) (lua.Received, error) {
	leave, err := p.room.enter(ctx, l.source)
	if err != nil {
		return lua.Received{}, err
	}
	received := 0
	defer func() { leave(received) }()
	// Wait for the reply even if ctx ends: otherwise its deliveries would be pending until they are reclaimed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.CallTimeout)
	defer cancel()
	receive := func() (lua.Received, error) {
		return lua.Receive(ctx, p.cfg.Client, l.keys, r.Group, p.cfg.Consumer, given.within, given.visibility, limit)
	}
	got, err := receive()
	if errors.Is(err, lua.ErrNoGroup) {
		if err = p.makeGroup(ctx, r, l); err == nil {
			got, err = receive()
		}
	}
	for i := range got.Entries {
		received += len(got.Entries[i].Payload)
	}
	if err != nil {
		return got, fmt.Errorf("receive of %s/%s: %w", l.source.queue, r.Group, err)
	}
	return got, nil
}

// own returns the deliveries for this group, and acknowledges retries for other groups.
func (p *Puller) own(ctx context.Context, r *Request, l *line, given lease, entries []lua.Entry) []Delivery {
	var found []Delivery
	var foreign []lua.Held
	for _, e := range entries {
		if e.For != "" && e.For != r.Group {
			foreign = append(foreign, lua.Held{Entry: e.EntryID, Key: e.Extra[lua.FieldKey]})
			continue
		}
		d := Delivery{Within: given.within, Message: stream.Delivered(e, l.source.queue, l.partition, r.Group)}
		d.Message.Consumer = p.cfg.Consumer
		d.Token = tokenOf(&d.Message)
		found = append(found, d)
	}
	if len(foreign) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.CallTimeout)
		defer cancel()
		if _, err := lua.Ack(ctx, p.cfg.Client, l.keys, r.Group, foreign); err != nil { // the reclaimer does it later
			p.cfg.Logger.Debug("entries for other groups stay pending", slog.Any("error", err))
		}
	}
	return found
}

// GiveBack releases deliveries that no caller received: they are delivered again at once, with the same attempt.
func (p *Puller) GiveBack(ctx context.Context, all []Delivery) {
	if len(all) == 0 {
		return
	}
	tokens, released := make([]Token, len(all)), make([]error, len(all))
	for i, d := range all {
		tokens[i], released[i] = d.Token, stream.Release(nil)
	}
	if _, err := p.Fail(context.WithoutCancel(ctx), tokens, released); err != nil {
		p.cfg.Logger.Warn("deliveries that nobody waits for any more could not be given back: they are reclaimed",
			slog.String("queue", all[0].Queue), slog.String("id", all[0].ID), slog.Int("count", len(all)),
			slog.Any("error", err))
	}
}
