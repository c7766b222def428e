package keeper

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

const (
	defaultsInterval = 20 * time.Second // between two checks of whether the defaults exist
	defaultsRetry    = time.Second      // after an error, at most
)

// defaultsKeeper writes the default policy: once at the start, and again when it was lost (by a flush or a failover).
type defaultsKeeper struct {
	client  rueidis.Client
	prefix  string
	policy  stream.Policy
	written bool // the defaults were written at least once
	state   loop.Reporter
}

func newDefaultsKeeper(cfg Config) *defaultsKeeper {
	return &defaultsKeeper{
		client: cfg.Client, prefix: cfg.Prefix, policy: cfg.Defaults,
		state: loop.Reporter{Log: cfg.Logger, Activity: "writing the default policy"},
	}
}

// run keeps the defaults until ctx ends. With the zero policy it leaves existing defaults alone.
func (d *defaultsKeeper) run(ctx context.Context) {
	if d.policy == (stream.Policy{}) {
		return
	}
	interval := func() time.Duration { return defaultsInterval }
	loop.Every(ctx, interval, loop.NewBackoff(defaultsRetry), nil, func(ctx context.Context) error {
		_, err := d.pass(ctx)
		if ctx.Err() == nil {
			d.state.Report(err)
		}
		return err
	})
}

// pass writes the defaults unless they were written and still exist, and reports whether it wrote. One round trip, or
// two.
func (d *defaultsKeeper) pass(ctx context.Context) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	if d.written {
		there, err := d.client.Do(ctx, d.client.B().Exists().Key(lua.NewGlobals(d.prefix).Defaults).Build()).AsInt64()
		if err != nil || there > 0 {
			return false, lua.Classify("EXISTS", err)
		}
	}
	if err := stream.WriteDefaults(ctx, d.client, d.prefix, d.policy); err != nil {
		return false, err
	}
	d.written = true
	return true, nil
}
