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
	Consumer string         // the same for all Pullers of a group; default DefaultConsumer
	Logger   *slog.Logger   // nil = nothing is logged
}

// Puller gives deliveries to callers. Calls may be made concurrently, while Run runs.
type Puller struct {
	cfg    Config
	reader *tail.Reader

	mu      sync.Mutex
	sources map[sourceKey]*source
	streams map[string][]*line   // key of a stream → its lines, of several groups
	failing map[sourceKey]string // logged errors of queues that cannot be read
	tickets uint64

	making loop.Locks // of queues on which a group is being created
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
		failing: map[sourceKey]string{}}
	p.reader = tail.New(tail.Config{Client: cfg.Blocking, Block: readBlock, Count: 1, Log: cfg.Logger,
		Activity: "wait for messages", Added: p.added, Broken: func(error) {}})
	return p, nil
}

// Request describes what a caller wants.
type Request struct {
	Queues  []string // 1 to 100; the first one with messages is served first
	Weights []int    // weights of the queues, or none: how often each one comes first, as a proportion. From 1 to 1,000
	Group   string   // created where it is missing, at the beginning of the stream; refused beside MaxGroups others
	Count   int      // greatest number of deliveries; 1 to 100

	// Within is the time in which a delivery must be settled or extended, at least 1ms. After it the delivery has
	// failed, like one whose worker crashed. Zero is the visibility timeout of the queue's group, which is also the
	// maximum.
	Within time.Duration
	// Wait is how long to wait for the first message: zero not at all, at most ten minutes.
	Wait time.Duration
}

// Delivery is one delivery of a message to a caller. The caller must settle it by its Token.
type Delivery struct {
	stream.Message
	Token  Token
	Within time.Duration // time in which it must be settled or extended
}

func (r *Request) validate() error {
	var errs []error
	if n := len(r.Queues); n < 1 || n > MaxQueues {
		return lua.Invalid("queues", strconv.Itoa(n), "must be 1 to %d", MaxQueues) // there may be thousands
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

// order returns the queues in the order in which this request asks them.
func (r *Request) order() []string {
	if len(r.Weights) == 0 {
		return r.Queues
	}
	left, weights, queues := 0, slices.Clone(r.Weights), slices.Clone(r.Queues)
	for _, weight := range weights {
		left += weight
	}
	for i := range queues { // draw the next one among the remaining queues
		lot, at := rand.N(left), i
		for lot >= weights[at] {
			lot -= weights[at]
			at++
		}
		left -= weights[at]
		queues[i], queues[at], weights[i], weights[at] = queues[at], queues[i], weights[at], weights[i]
	}
	return queues
}

// Pull returns up to Count deliveries: at once if there are any, else as soon as there is one, and none after Wait. If
// ctx ends, deliveries already fetched are given back with the same attempt, and the error is that of ctx.
//
// It serves the queues, and the partitions of a queue, that it can reach. Errors of the others are returned only if
// there is no delivery, and are logged. An unreachable server is an error only if none can be reached.
//
// Errors: ErrInvalid; and the usual errors of package lua for a server that is away, a key of the wrong type, and a
// denied command.
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
	deadline, again := time.Now().Add(r.Wait), time.Now().Add(stream.PolicyInterval)
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
		case err != nil && !(w.waited && lua.Temporary(err)) && !(len(r.Queues) > 1 && !lua.Temporary(err)):
			return nil, err
		}
		until := deadline
		if lua.Temporary(missing) && again.Before(deadline) {
			until = again
		}
		switch woken := p.wait(ctx, w, until); {
		case woken:
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case until == deadline:
			return nil, err
		default: // queues that could not be reached when the wait began
			if lines, missing, err = p.linesOf(ctx, &r); err != nil {
				return nil, err
			}
			again = time.Now().Add(stream.PolicyInterval)
			p.readsAlso(w, lines)
		}
	}
}

// mostBytes is the size of the payloads beyond which a caller gets no further delivery. It gets more only if one
// payload is larger, or came in the same reply.
const mostBytes = 4 << 20

// try asks the streams that may have messages. It stops when there are enough, or when a tenth of the time has passed
// in which the first delivery must be settled: its caller needs the rest. It does not ask a stream again that gave all
// it had, for entries added since. Under a steady flow that would withhold the deliveries from the caller; the next
// waiting caller is woken for those entries.
//
// If a server cannot be reached, try asks the streams of reachable servers. Only if there are none, that is an error.
func (p *Puller) try(ctx context.Context, r *Request, lines []*line) (found []Delivery, failed error) {
	var since time.Time
	var errs []error
	bytes := 0
	enough := func() bool {
		return len(found) >= r.Count || bytes >= mostBytes || len(found) > 0 && time.Since(since) > found[0].Within/10
	}
	for left := p.reachable(lines); len(left) > 0; {
		l := left[0]
		left = left[1:]
		for asked := false; !enough(); asked = true {
			latest, ok := p.enter(l, r.Wait == 0 && !asked)
			if !ok {
				break
			}
			if len(found) == 0 {
				since = time.Now()
			}
			given := l.source.lease(r)
			got, err := p.receive(ctx, r, l, given, r.Count-len(found))
			p.leave(l, latest, got, err)
			own := p.own(ctx, r, l, given, got.Entries)
			for i := range own {
				bytes += len(own[i].Payload)
			}
			found = append(found, own...)
			switch {
			case ctx.Err() != nil, lua.Temporary(err) && len(found) > 0:
				return found, err
			case lua.Temporary(err):
				left = p.probe(ctx, left)
			case errors.Is(err, lua.ErrInvalid): // its other partitions would return the same error
				left = slices.DeleteFunc(left, func(other *line) bool { return other.source == l.source })
			}
			if err != nil { // that of this stream: others may have messages
				errs = append(errs, err)
				break
			}
			if len(found) > 0 && got.Last != "" {
				break
			}
		}
	}
	if p.anyReachable(lines) {
		errs = slices.DeleteFunc(errs, lua.Temporary)
	}
	return found, joined(errs)
}

func (p *Puller) receive(ctx context.Context, r *Request, l *line, given lease, limit int) (lua.Received, error) {
	// If nobody waited for the reply, its deliveries would be lost until they are reclaimed.
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
	if err != nil {
		return got, fmt.Errorf("receive of %s/%s: %w", l.source.queue, r.Group, err)
	}
	return got, nil
}

// own returns the deliveries for this group, and acknowledges the others.
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

// GiveBack returns deliveries that no caller received: they are delivered again at once, with the same attempt.
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
			slog.String("queue", all[0].Queue), slog.String("id", all[0].ID), slog.Int("count", len(all)), slog.Any("error", err))
	}
}
