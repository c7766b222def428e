package stream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const (
	// knownPatience is the time limit of a read of a cluster's defaults when older ones are known.
	knownPatience = 500 * time.Millisecond
	// knownFor is the time for which defaults of a cluster are used without another read.
	knownFor = time.Second
)

// PolicyReader reads policies repeatedly, and may be shared by all users of a prefix. On a cluster the defaults are on
// another server than most queues. While that server is away, the last known defaults stay in use, so that
// the policies of queues on other servers can still be read. It is safe for concurrent use.
type PolicyReader struct {
	prefix string

	mu       sync.Mutex
	defaults map[string]string // nil: unknown
	askAt    time.Time
}

// NewPolicyReader returns a PolicyReader that knows no defaults yet.
func NewPolicyReader(prefix string) *PolicyReader { return &PolicyReader{prefix: prefix} }

// Run keeps the defaults of a cluster up to date until ctx ends, so that they are known when their server goes away.
func (r *PolicyReader) Run(ctx context.Context, c rueidis.Client) {
	if c.Mode() != rueidis.ClientModeCluster {
		return
	}
	for {
		_, _ = r.knownDefaults(ctx, c) // a caller that needs the defaults reports the error
		if !loop.Sleep(ctx, PolicyInterval) {
			return
		}
	}
}

// Read is ReadPolicies. On a cluster, defaults that cannot be read make it fail only if none were ever read.
func (r *PolicyReader) Read(ctx context.Context, c rueidis.Client, queue string,
	groups []string) (policies map[string]Policy, warning, err error) {
	if c.Mode() != rueidis.ClientModeCluster {
		return ReadPolicies(ctx, c, r.prefix, queue, groups)
	}
	defaults, err := r.knownDefaults(ctx, c)
	if err != nil {
		return nil, nil, fmt.Errorf("read policy of %s: %w", queue, err)
	}
	own, err := readHash(ctx, c, lua.NewKeys(r.prefix, queue).Policy, loop.CallTimeout)
	if err != nil {
		return nil, nil, fmt.Errorf("read policy of %s: %w", queue, err)
	}
	policies, warning = ResolveAll(groups, own, defaults)
	return policies, warning, nil
}

func (r *PolicyReader) knownDefaults(ctx context.Context, c rueidis.Client) (map[string]string, error) {
	r.mu.Lock()
	known, asked := r.defaults, time.Now().Before(r.askAt)
	r.mu.Unlock()
	if known != nil && asked {
		return known, nil
	}
	patience := loop.CallTimeout
	if known != nil {
		patience = knownPatience
	}
	found, err := readHash(ctx, c, lua.NewGlobals(r.prefix).Defaults, patience)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.defaults, r.askAt = found, time.Now().Add(knownFor)
	case r.defaults == nil:
		return nil, err
	case ctx.Err() == nil:
		r.askAt = time.Now().Add(PolicyInterval)
	}
	return r.defaults, nil
}

func readHash(ctx context.Context, c rueidis.Client, key string, patience time.Duration) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := c.Do(ctx, c.B().Hgetall().Key(key).Build()).AsStrMap()
	return found, lua.Classify("HGETALL", err)
}
