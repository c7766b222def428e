package push

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// mostWait is how long a request waits before Redis is asked again: what the bucket holds may have been lost.
const mostWait = 5 * time.Second

// pace keeps a target's rate, with all other processes that post to it: a token bucket in Redis, by its clock. Of the messages
// that wait one asks at a time.
type pace struct {
	client   rueidis.Client
	log      *slog.Logger
	key      string
	interval time.Duration
	burst    int
	asks     chan struct{} // holds one while somebody asks
	told     string        // guarded by asks: what the log has of the last failure
}

// newPace returns nil for a target without a rate.
func newPace(t Target, cfg Config, log *slog.Logger) *pace {
	if t.Rate == "" {
		return nil
	}
	of := sha256.Sum256([]byte("push\x00" + t.Queue + "\x00" + t.Group))
	globals := lua.NewGlobals(cmp.Or(cfg.Prefix, lua.DefaultPrefix))
	return &pace{
		client: cfg.Redis.Client, log: log, key: globals.Bucket(hex.EncodeToString(of[:])),
		interval: t.Rate.Interval(), burst: cmp.Or(t.Burst, t.Rate.DefaultBurst()), asks: make(chan struct{}, 1),
	}
}

// wait returns when a request may be sent, or with an error when one of the contexts ends. While Redis cannot be asked nothing
// may.
func (p *pace) wait(ctx, turn context.Context) error {
	if p == nil {
		return nil
	}
	select {
	case p.asks <- struct{}{}:
		defer func() { <-p.asks }()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-turn.Done():
		return turn.Err()
	}
	for {
		wait, err := p.take(ctx)
		switch {
		case err != nil:
			wait = time.Second
		case wait <= 0:
			return nil
		}
		select {
		case <-time.After(min(wait, mostWait)):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-turn.Done():
			return turn.Err()
		}
	}
}

// take asks Redis once.
func (p *pace) take(ctx context.Context) (wait time.Duration, err error) {
	call, cancel := context.WithTimeout(ctx, mostWait)
	defer cancel()
	wait, err = lua.Take(call, p.client, p.key, p.interval, p.burst, 1)
	said := ""
	if err != nil {
		said = err.Error()
	}
	switch {
	case ctx.Err() != nil || said == p.told:
		return wait, err
	case err != nil:
		p.log.Warn("nothing is posted: Redis cannot be asked what the rate allows", slog.Any("error", err))
	default:
		p.log.Info("Redis says again what the rate allows")
	}
	p.told = said
	return wait, err
}
