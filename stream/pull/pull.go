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

// DefaultConsumer is the consumer that all Pullers read as.
const DefaultConsumer = "pull"

// Config of a Puller. Client and Blocking are required.
type Config struct {
	Client   rueidis.Client
	Blocking rueidis.Client // for reads that block
	Prefix   string         // of all keys; default lua.DefaultPrefix
	Consumer string         // the same for all Pullers of a group; default DefaultConsumer
	Logger   *slog.Logger   // nil = nothing is logged
}

// Puller gives deliveries to callers. Any number of calls may be made at the same time, while Run runs.
type Puller struct {
	cfg    Config
	reader *tail.Reader

	mu      sync.Mutex
	sources map[sourceKey]*source
	streams map[string][]*line   // key of a stream → those who read it
	failing map[sourceKey]string // what the log was told of queues that cannot be read
	tickets uint64

	making queueLocks // of queues on which a group is made
}

// New returns a Puller. Redis is not touched.
func New(cfg Config) *Puller {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	cfg.Consumer = cmp.Or(cfg.Consumer, DefaultConsumer)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	p := &Puller{cfg: cfg, sources: map[sourceKey]*source{}, streams: map[string][]*line{},
		failing: map[sourceKey]string{}}
	p.reader = tail.New(tail.Config{Client: cfg.Blocking, Block: readBlock, Count: 1, Log: cfg.Logger,
		Activity: "wait for messages", Added: p.added, Broken: func(error) {}})
	return p
}

// Request says what a caller wants.
type Request struct {
	Queues  []string // 1 to 100: from the first that has messages first
	Weights []int    // of the queues, if there are any: each comes first in proportion to its weight. From 1 to 1,000
	Group   string   // created at the beginning of the queues' streams where it is not there; refused beside MaxGroups others
	Count   int      // deliveries at most; 1 to 100

	// Within is in what time a delivery is to be settled or extended, at least 1ms: then it has failed, as one whose worker
	// crashed. Zero is the visibility timeout of the queue's group, which is the longest, too.
	Within time.Duration
	// Wait is how long to wait for the first message: zero not at all, at most ten minutes.
	Wait time.Duration
}

// Delivery is one delivery of a message to a caller, who has to settle it by its Token.
type Delivery struct {
	stream.Message
	Token  Token
	Within time.Duration // in what time it is to be settled or extended
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
	for i := range queues { // the next one by lot, among those that are left
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

// Pull returns up to Count deliveries: at once if there are any, else as soon as there is one, and none after Wait. When ctx ends
// what it was given is given back, with the attempt it had, and the error is that of ctx.
//
// Of several queues, and of the partitions of a queue, those are asked that can be. What is wrong with others is told
// when there is nothing, and by the log; that they cannot be reached is told when none can.
//
// Errors: ErrInvalid, and what Redis being away, full of other types or closed to this user makes of a call.
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

// mostBytes of payloads is what a caller gets at a time; more only if one alone is larger, or came with another.
const mostBytes = 4 << 20

// try asks those streams that may have something, until there is enough, or a tenth of the time is over in which the first of
// what was found is to be settled: its caller is to have the rest. A stream that gave what it had is not asked again for what
// came meanwhile: under a steady flow that would keep what was found from its caller, and the next one who waits is woken for it.
//
// When a server cannot be reached, those streams are asked whose servers can, and it is an error when there are none.
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
			got, err := p.receive(ctx, r, l, r.Count-len(found))
			p.leave(l, latest, got, err)
			own := p.own(ctx, r, l, got.Entries)
			for i := range own {
				bytes += len(own[i].Payload)
			}
			found = append(found, own...)
			switch {
			case ctx.Err() != nil, lua.Temporary(err) && len(found) > 0:
				return found, err
			case lua.Temporary(err):
				left = p.probe(ctx, left)
			case errors.Is(err, lua.ErrInvalid): // of the queue: its other partitions would say it once more
				left = slices.DeleteFunc(left, func(other *line) bool { return other.source == l.source })
			}
			if err != nil { // that of this stream: others may have something
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

func (p *Puller) receive(ctx context.Context, r *Request, l *line, limit int) (lua.Received, error) {
	// A reply that nobody waits for would be lost with what it brings.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.CallTimeout)
	defer cancel()
	receive := func() (lua.Received, error) {
		return lua.Receive(ctx, p.cfg.Client, l.keys, r.Group, p.cfg.Consumer, l.source.within(r), l.source.visibility(), limit)
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

// own returns the deliveries that are for this group. The others are acknowledged.
func (p *Puller) own(ctx context.Context, r *Request, l *line, entries []lua.Entry) []Delivery {
	var found []Delivery
	var foreign []lua.Held
	for _, e := range entries {
		if e.For != "" && e.For != r.Group {
			foreign = append(foreign, lua.Held{Entry: e.EntryID, Key: e.Extra[lua.FieldKey]})
			continue
		}
		d := Delivery{Within: l.source.within(r), Message: stream.Delivered(e, l.source.queue, l.partition, r.Group)}
		d.Message.Consumer = p.cfg.Consumer
		d.Token = tokenOf(&d.Message)
		found = append(found, d)
	}
	if len(foreign) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.CallTimeout)
		defer cancel()
		if _, err := lua.Ack(ctx, p.cfg.Client, l.keys, r.Group, foreign); err != nil { // the reclaimer does it
			p.cfg.Logger.Debug("entries for other groups stay pending", slog.Any("error", err))
		}
	}
	return found
}

// GiveBack has deliveries delivered again, at once and with the same attempt: for those that nobody was told of.
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
