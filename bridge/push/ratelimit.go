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
	// readAhead is how long a message may be read before the rate allows its request.
	readAhead = 100 * time.Millisecond
	// maxWait is the longest time that a message waits for the rate after it was read. It is also the longest time
	// between two reads of the bucket in Redis, because the bucket may have been lost.
	maxWait = 5 * time.Second
	// askAgain is the pause after a call to Redis failed, while a message that was read waits for the rate.
	askAgain = time.Second
)

var errRateUsed = errors.New("other processes had used up the rate")

// rateLimit enforces a target's rate for all processes that post to it, with a token bucket in Redis that runs by the
// server's clock. A message is read only when its request may be sent at once: a message that waits after it was read
// would use up an attempt each time its process is killed. If another process takes the token first, the message is
// released.
type rateLimit struct {
	client   rueidis.Client
	key      string
	interval time.Duration
	burst    int
	lock     chan struct{} // mutex: holds a value while a message of this process waits for the rate
}

// newRateLimit returns nil for a target without a rate.
func newRateLimit(t Target, cfg Config) *rateLimit {
	if t.Rate == "" {
		return nil
	}
	id := sha256.Sum256([]byte("push\x00" + t.Queue + "\x00" + t.Group))
	globals := lua.NewGlobals(cmp.Or(cfg.Prefix, lua.DefaultPrefix))
	return &rateLimit{
		client: cfg.Redis.Client, key: globals.Bucket(hex.EncodeToString(id[:])),
		interval: t.Rate.Interval(), burst: cmp.Or(t.Burst, t.Rate.DefaultBurst()), lock: make(chan struct{}, 1),
	}
}

// bind makes a worker keep the rate until turn ends. delivered returns how many messages the worker has received so
// far.
func (l *rateLimit) bind(cfg *bridge.WorkerConfig, turn context.Context, delivered func() uint64) {
	var finished atomic.Uint64 // messages whose wait for the rate has ended
	post := cfg.Handler
	cfg.Handler = func(ctx context.Context, m *bridge.Message) error {
		err := l.take(ctx, turn)
		finished.Add(1)
		if err != nil {
			return bridge.Release(err)
		}
		return post(ctx, m)
	}
	cfg.Admit = func(ctx context.Context, limit int) (int, error) {
		return l.admit(ctx, limit, func() int {
			finishedBefore := finished.Load() // read it first, so that the difference is never negative
			return int(delivered() - finishedBefore)
		})
	}
}

// admit returns how many further messages may be read, at most limit: as many as the rate allows requests within
// readAhead, after the requests of the messages that wait already. admit blocks until it can return at least one. If
// ctx ends first, it returns zero.
func (l *rateLimit) admit(ctx context.Context, limit int, waiting func() int) (n int, err error) {
	for ctx.Err() == nil {
		// Count the waiting messages before the call. A message that takes its token meanwhile then counts twice, which
		// only delays the next message. After the call it would not count at all.
		others := waiting()
		call, cancel := context.WithTimeout(ctx, maxWait)
		next, err := lua.UntilNext(call, l.client, l.key, l.interval, l.burst)
		cancel()
		if err != nil {
			return 0, fmt.Errorf("read the rate limit of the target: %w", err)
		}
		wait := next + time.Duration(others)*l.interval - readAhead
		if wait <= 0 {
			return min(limit, 1+int(-wait/l.interval)), nil
		}
		if others > 0 { // look again soon, because the number of waiting messages changes
			wait = min(wait, readAhead)
		}
		select {
		case <-time.After(min(wait, maxWait)):
		case <-ctx.Done():
		}
	}
	return 0, nil
}

// take waits for a token for one message. After an error the caller must release the message.
func (l *rateLimit) take(ctx, turn context.Context) error {
	timeout := time.NewTimer(maxWait)
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
			return errRateUsed
		}
		if err := await(time.After(wait), nil); err != nil {
			return err
		}
	}
}
