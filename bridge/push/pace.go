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
	// moment is how long before the rate allows its request a message may be taken.
	moment = 100 * time.Millisecond
	// mostWait is how long a message that was taken waits for the rate at most, and how long after one look at what Redis holds
	// comes the next: it may have been lost.
	mostWait = 5 * time.Second
	// askAgain is how long a message that was taken waits after Redis could not be asked.
	askAgain = time.Second
)

var errOthers = errors.New("others had used up the rate")

// pace keeps a target's rate, with all other processes that post to it: a token bucket in Redis, by its clock. A message is taken
// when its request may be sent at once: one that was taken and waits would use up an attempt each time its process is killed.
// When another process is first it is given back.
type pace struct {
	client   rueidis.Client
	key      string
	interval time.Duration
	burst    int
	turns    chan struct{} // holds one while a message waits for the rate; others wait for the turn
}

// newPace returns nil for a target without a rate.
func newPace(t Target, cfg Config) *pace {
	if t.Rate == "" {
		return nil
	}
	of := sha256.Sum256([]byte("push\x00" + t.Queue + "\x00" + t.Group))
	globals := lua.NewGlobals(cmp.Or(cfg.Prefix, lua.DefaultPrefix))
	return &pace{
		client: cfg.Redis.Client, key: globals.Bucket(hex.EncodeToString(of[:])),
		interval: t.Rate.Interval(), burst: cmp.Or(t.Burst, t.Rate.DefaultBurst()), turns: make(chan struct{}, 1),
	}
}

// bind has a worker keep the rate until turn ends. delivered says how many messages it was given so far.
func (p *pace) bind(cfg *bridge.WorkerConfig, turn context.Context, delivered func() uint64) {
	var asked atomic.Uint64
	post := cfg.Handler
	cfg.Handler = func(ctx context.Context, m *bridge.Message) error {
		err := p.take(ctx, turn)
		asked.Add(1)
		if err != nil {
			return bridge.Release(err)
		}
		return post(ctx, m)
	}
	cfg.Admit = func(ctx context.Context, most int) (int, error) {
		return p.admit(ctx, most, func() int {
			before := asked.Load()
			return int(delivered() - before)
		})
	}
}

// admit waits until the rate allows requests within a moment, besides those of the messages that wait, and returns how many of
// most; zero when ctx ends.
func (p *pace) admit(ctx context.Context, most int, waiting func() int) (n int, err error) {
	for ctx.Err() == nil {
		others := waiting() // first: one that asks meanwhile counts twice, and not as none
		call, cancel := context.WithTimeout(ctx, mostWait)
		next, err := lua.UntilNext(call, p.client, p.key, p.interval, p.burst)
		cancel()
		if err != nil {
			return 0, fmt.Errorf("ask what the rate of the target allows: %w", err)
		}
		next += time.Duration(others)*p.interval - moment
		if next <= 0 {
			return min(most, 1+int(-next/p.interval)), nil
		}
		if others > 0 {
			next = min(next, moment)
		}
		select {
		case <-time.After(min(next, mostWait)):
		case <-ctx.Done():
		}
	}
	return 0, nil
}

// take takes a request out of the rate for a message that was taken. An error: it is to be given back.
func (p *pace) take(ctx, turn context.Context) error {
	patience := time.NewTimer(mostWait)
	defer patience.Stop()
	await := func(until <-chan time.Time, mine chan<- struct{}) error {
		select {
		case <-until:
		case mine <- struct{}{}:
		case <-patience.C:
			return errOthers
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-turn.Done():
			return turn.Err()
		}
		return nil
	}
	if err := await(nil, p.turns); err != nil {
		return err
	}
	defer func() { <-p.turns }()
	for {
		call, cancel := context.WithTimeout(ctx, mostWait)
		wait, err := lua.Take(call, p.client, p.key, p.interval, p.burst, 1)
		cancel()
		switch {
		case err != nil:
			wait = askAgain
		case wait <= 0:
			return nil
		case wait > mostWait:
			return errOthers
		}
		if err := await(time.After(wait), nil); err != nil {
			return err
		}
	}
}
