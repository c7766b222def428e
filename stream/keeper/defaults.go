package keeper

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

const (
	defaultsInterval = 20 * time.Second // time between two checks of whether the defaults exist
	defaultsRetry    = time.Second      // longest wait after an error
)

// defaultsKeeper writes the default policy once at the start, and again when a flush or a failover has lost it.
type defaultsKeeper struct {
	client  rueidis.Client
	prefix  string
	policy  policy.Policy
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
	if d.policy == (policy.Policy{}) {
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

// pass writes the defaults unless they were written and still exist. It reports whether it wrote them. It takes one or
// two round trips.
func (d *defaultsKeeper) pass(ctx context.Context) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	if d.written {
		exists := d.client.B().Exists().Key(lua.NewGlobals(d.prefix).Defaults).Build()
		existing, err := d.client.Do(ctx, exists).AsInt64()
		if err != nil || existing > 0 {
			return false, lua.Classify("EXISTS", err)
		}
	}
	if err := policy.WriteDefaults(ctx, d.client, d.prefix, d.policy); err != nil {
		return false, err
	}
	d.written = true
	return true, nil
}
