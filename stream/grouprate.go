package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/clock"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const (
	// readAhead is how long a message may be read before the rate of its group allows its handler.
	readAhead = 100 * time.Millisecond
	// maxRateWait is the longest time that a message waits for the rate after it was read. It is also the longest time
	// between two reads of the bucket, because the bucket may have been lost.
	maxRateWait = 5 * time.Second
	// askAgain is the pause after a call to Redis failed, while a message that was read waits for the rate.
	askAgain = time.Second
)

var (
	errRateUsed  = errors.New("other workers had used up the rate of the group")
	errStopsSoon = errors.New("the worker stops before the rate allows the handler")
)

// groupRate limits how many handlers of one queue all workers of a group start, with a token bucket in Redis that runs
// by the server's clock. A message is read only shortly before its handler may start: a message that waits after it was
// read keeps its slot, and uses up an attempt if its process is killed. If another worker takes the token first, the
// message is released. Nobody holds tokens, because a bucket stores only the time at which it is full.
type groupRate struct {
	client   rueidis.Client
	group    string
	bucket   string // key
	interval time.Duration
	burst    int
	lock     chan struct{} // mutex: holds a value while a delivery of this worker asks for its token
	waiting  atomic.Int64  // deliveries that were read, and whose wait for a token has not ended
}

// newGroupRate returns the rate of a queue; nil if the worker has none.
func newGroupRate(cfg WorkerConfig) *groupRate {
	if cfg.GroupRate == "" {
		return nil
	}
	burst := cfg.GroupBurst
	if burst == 0 {
		burst = cfg.GroupRate.DefaultBurst()
	}
	return &groupRate{
		client: cfg.Client, group: cfg.Group, bucket: lua.NewKeys(cfg.Prefix, cfg.Queue).GroupRate(cfg.Group),
		interval: cfg.GroupRate.Interval(), burst: burst, lock: make(chan struct{}, 1),
	}
}

// checkGroupRate returns the faults of the rate and the burst.
func (c WorkerConfig) checkGroupRate() error {
	var faults []error
	if lua.CheckRate(c.GroupRate) != nil {
		faults = append(faults, lua.Invalid("group rate", string(c.GroupRate),
			"must be a whole number between 1 and %d, and /s, /m or /h: 500/s", lua.MaxRate))
	}
	if c.GroupRate == "" && c.GroupBurst != 0 {
		faults = append(faults, lua.Invalid("group burst", fmt.Sprint(c.GroupBurst), "needs a group rate"))
	}
	return errors.Join(append(faults, lua.Between("group burst", c.GroupBurst, 0, lua.MaxBurst))...)
}

// admit returns the number of further messages that may be read, at most limit. It is the number of handlers that the
// rate allows within readAhead, after the handlers of deliveries that wait already. It blocks until it can return at
// least one, and returns zero if ctx ends first. It calls blocked before it waits.
//
// In a test kit a worker reads nothing ahead, and waits exactly until a handler may start. So the clock of the kit
// stops only at such times.
func (r *groupRate) admit(ctx context.Context, stream string, limit int, blocked func()) (int, error) {
	c := clock.Of(ctx)
	isKit := !clock.IsMachine(c)
	for ctx.Err() == nil {
		asked := c.Now()
		// Count the waiting deliveries before the call. A delivery that takes its token meanwhile then counts twice,
		// which only delays the next message. If they were counted after the call, this delivery would not count at
		// all.
		others := r.waiting.Load()
		if isKit && others > 0 { // they get their tokens, or give their messages back, at this moment
			loop.Sleep(ctx, time.Millisecond)
			continue
		}
		call, cancel := context.WithTimeout(ctx, maxRateWait)
		next, err := lua.UntilNext(call, r.client, r.bucket, r.interval, r.burst)
		cancel()
		if err != nil {
			return 0, fmt.Errorf("read the rate of the group: %w", err)
		}
		wait := next
		if !isKit {
			wait += time.Duration(others)*r.interval - readAhead
		}
		if wait <= 0 {
			return min(limit, 1+int(-wait/r.interval)), nil
		}
		blocked()
		if !isKit {
			asked, wait = c.Now(), min(wait, maxRateWait)
			if others > 0 { // look again soon, because the number of waiting deliveries changes
				wait = min(wait, readAhead)
			}
		}
		c.WaitToRead(ctx, stream, r.group, asked.Add(wait))
	}
	return 0, nil
}

// take waits for a token for one delivery. After an error the delivery must be released. stopping is closed when the
// worker stops.
func (r *groupRate) take(ctx context.Context, stopping <-chan struct{}) error {
	defer r.waiting.Add(-1)
	timeout := time.NewTimer(maxRateWait)
	defer timeout.Stop()
	// await waits for a timer or for a lock. The other argument is nil.
	await := func(timer <-chan time.Time, lock chan<- struct{}) error {
		select {
		case <-timer:
		case lock <- struct{}{}:
		case <-timeout.C:
			return errRateUsed
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-stopping:
			return errStopsSoon
		}
		return nil
	}
	if err := await(nil, r.lock); err != nil {
		return err
	}
	defer func() { <-r.lock }()
	for {
		call, cancel := context.WithTimeout(ctx, maxRateWait)
		wait, err := lua.Take(call, r.client, r.bucket, r.interval, r.burst, 1)
		cancel()
		switch {
		case err != nil:
			wait = askAgain
		case wait <= 0:
			return nil
		case wait > maxRateWait, !clock.IsMachine(clock.Of(ctx)): // a kit does not move its clock for messages that are held
			return errRateUsed
		}
		if err := await(time.After(wait), nil); err != nil {
			return err
		}
	}
}
