package policy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// RefreshInterval is the time between two reads of a policy that is in use.
const RefreshInterval = 5 * time.Second

const (
	// rereadTimeout is the time limit of a read of a cluster's defaults, if defaults of an earlier read are known.
	rereadTimeout = 500 * time.Millisecond
	// defaultsMaxAge is the time for which defaults of a cluster are used without another read.
	defaultsMaxAge = time.Second
)

// Reader reads policies repeatedly, and may be shared by all users of a prefix. On a cluster the defaults are on
// another server than most queues. While that server is away, the last known defaults stay in use, so that
// the policies of queues on other servers can still be read. It is safe for concurrent use.
type Reader struct {
	prefix string

	mu       sync.Mutex
	defaults map[string]string // nil = unknown
	readAt   time.Time         // when the defaults are to be read again
}

// NewReader returns a Reader that knows no defaults yet.
func NewReader(prefix string) *Reader { return &Reader{prefix: prefix} }

// Run keeps the defaults of a cluster up to date until ctx ends, so that they are known when their server goes away.
func (r *Reader) Run(ctx context.Context, c rueidis.Client) {
	if c.Mode() != rueidis.ClientModeCluster {
		return
	}
	for {
		_, _ = r.knownDefaults(ctx, c) // a caller that needs the defaults reports the error
		if !loop.Sleep(ctx, RefreshInterval) {
			return
		}
	}
}

// Read is ReadGroups. On a cluster it uses the last known defaults while they cannot be read. It fails only if it knows
// none.
func (r *Reader) Read(ctx context.Context, c rueidis.Client, queue string,
	groups []string) (policies map[string]Policy, warning, err error) {
	if c.Mode() != rueidis.ClientModeCluster {
		return ReadGroups(ctx, c, r.prefix, queue, groups)
	}
	defaults, err := r.knownDefaults(ctx, c)
	if err != nil {
		return nil, nil, fmt.Errorf("read policy of %s: %w", queue, err)
	}
	own, err := readHash(ctx, c, lua.NewKeys(r.prefix, queue).Policy, loop.CallTimeout)
	if err != nil {
		return nil, nil, fmt.Errorf("read policy of %s: %w", queue, err)
	}
	policies, warning = Resolve(groups, own, defaults)
	return policies, warning, nil
}

func (r *Reader) knownDefaults(ctx context.Context, c rueidis.Client) (map[string]string, error) {
	r.mu.Lock()
	known, isFresh := r.defaults, time.Now().Before(r.readAt)
	r.mu.Unlock()
	if known != nil && isFresh {
		return known, nil
	}
	timeout := loop.CallTimeout
	if known != nil {
		timeout = rereadTimeout
	}
	found, err := readHash(ctx, c, lua.NewGlobals(r.prefix).Defaults, timeout)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.defaults, r.readAt = found, time.Now().Add(defaultsMaxAge)
	case r.defaults == nil:
		return nil, err
	case ctx.Err() == nil:
		r.readAt = time.Now().Add(RefreshInterval)
	}
	return r.defaults, nil
}

func readHash(ctx context.Context, c rueidis.Client, key string, timeout time.Duration) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := c.Do(ctx, c.B().Hgetall().Key(key).Build()).AsStrMap()
	return found, lua.Classify("HGETALL", err)
}
