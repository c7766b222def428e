package push

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

const (
	// readAhead is how long before the rate allows a request its message may be read.
	readAhead = 100 * time.Millisecond
	// maxWait is the longest time that a message waits for the rate after it was read. It is also the longest time
	// between two reads of the bucket in Redis, because the bucket may have been lost.
	maxWait = 5 * time.Second
	// askAgain is how long a message that was read waits for the rate after a call to Redis failed.
	askAgain = time.Second
)

var errOthers = errors.New("others had used up the rate")

// rateLimit enforces a target's rate for all processes that post to it, with a token bucket in Redis that runs by the
// server's clock. A message is read only when its request may be sent at once: a message that waits after it was read
// would use up an attempt each time its process is killed. If another process takes the token first, the message is
// released.
type rateLimit struct {
	client   rueidis.Client
	key      string
	interval time.Duration
	burst    int
	lock     chan struct{} // mutex of this process: full while a message waits for the rate
}

// newRateLimit returns nil for a target without a rate.
func newRateLimit(t Target, cfg Config) *rateLimit {
	if t.Rate == "" {
		return nil
	}
	of := sha256.Sum256([]byte("push\x00" + t.Queue + "\x00" + t.Group))
	globals := lua.NewGlobals(cmp.Or(cfg.Prefix, lua.DefaultPrefix))
	return &rateLimit{
		client: cfg.Redis.Client, key: globals.Bucket(hex.EncodeToString(of[:])),
		interval: t.Rate.Interval(), burst: cmp.Or(t.Burst, t.Rate.DefaultBurst()), lock: make(chan struct{}, 1),
	}
}

// bind makes a worker keep the rate until turn ends. delivered returns how many messages the worker has got so far.
func (l *rateLimit) bind(cfg *bridge.WorkerConfig, turn context.Context, delivered func() uint64) {
	var asked atomic.Uint64
	post := cfg.Handler
	cfg.Handler = func(ctx context.Context, m *bridge.Message) error {
		err := l.take(ctx, turn)
		asked.Add(1)
		if err != nil {
			return bridge.Release(err)
		}
		return post(ctx, m)
	}
	cfg.Admit = func(ctx context.Context, limit int) (int, error) {
		return l.admit(ctx, limit, func() int {
			before := asked.Load()
			return int(delivered() - before)
		})
	}
}

// admit waits until the rate allows further requests within readAhead, after those of the messages that already wait.
// It returns how many, at most limit; zero when ctx ends.
func (l *rateLimit) admit(ctx context.Context, limit int, waiting func() int) (n int, err error) {
	for ctx.Err() == nil {
		others := waiting() // before the call: a message that takes its token meanwhile must count twice, not never
		call, cancel := context.WithTimeout(ctx, maxWait)
		next, err := lua.UntilNext(call, l.client, l.key, l.interval, l.burst)
		cancel()
		if err != nil {
			return 0, fmt.Errorf("ask what the rate of the target allows: %w", err)
		}
		next += time.Duration(others)*l.interval - readAhead
		if next <= 0 {
			return min(limit, 1+int(-next/l.interval)), nil
		}
		if others > 0 {
			next = min(next, readAhead)
		}
		select {
		case <-time.After(min(next, maxWait)):
		case <-ctx.Done():
		}
	}
	return 0, nil
}

// take waits for a token for one message. After an error the message is to be released.
func (l *rateLimit) take(ctx, turn context.Context) error {
	timeout := time.NewTimer(maxWait)
	defer timeout.Stop()
	await := func(until <-chan time.Time, mine chan<- struct{}) error {
		select {
		case <-until:
		case mine <- struct{}{}:
		case <-timeout.C:
			return errOthers
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-turn.Done():
			return turn.Err()
		}
		return nil
	}
	if err := await(nil, l.lock); err != nil {
		return err
	}
	defer func() { <-l.lock }()
	for {
		call, cancel := context.WithTimeout(ctx, maxWait)
		wait, err := lua.Take(call, l.client, l.key, l.interval, l.burst, 1)
		cancel()
		switch {
		case err != nil:
			wait = askAgain
		case wait <= 0:
			return nil
		case wait > maxWait:
			return errOthers
		}
		if err := await(time.After(wait), nil); err != nil {
			return err
		}
	}
}
