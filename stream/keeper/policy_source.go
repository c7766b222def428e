package keeper

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// knownPatience is the time limit of a read of a cluster's defaults when older ones are known.
const knownPatience = 500 * time.Millisecond

// policySource reads the policies of many queues repeatedly. On a cluster the defaults are on another server than most
// queues: they are read every 5 s there. While their server is away the last known defaults stay in force, so that
// other queues need not wait.
type policySource struct {
	client rueidis.Client
	prefix string

	mu       sync.Mutex
	defaults map[string]string // nil: unknown
	askAt    time.Time
}

// run keeps the defaults of a cluster up to date until ctx ends, so that they are known when their server goes away.
func (s *policySource) run(ctx context.Context) {
	if s.client.Mode() != rueidis.ClientModeCluster {
		return
	}
	for {
		_, _ = s.knownDefaults(ctx) // a caller that needs the defaults reports the error
		if !loop.Sleep(ctx, stream.PolicyInterval) {
			return
		}
	}
}

// read is ReadPolicies.
func (s *policySource) read(ctx context.Context, queue string,
	groups []string) (policies map[string]stream.Policy, warning, err error) {
	if s.client.Mode() != rueidis.ClientModeCluster {
		return stream.ReadPolicies(ctx, s.client, s.prefix, queue, groups)
	}
	defaults, err := s.knownDefaults(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read policy of %s: %w", queue, err)
	}
	own, err := s.hash(ctx, lua.NewKeys(s.prefix, queue).Policy, loop.CallTimeout)
	if err != nil {
		return nil, nil, fmt.Errorf("read policy of %s: %w", queue, err)
	}
	policies, warning = stream.ResolveAll(groups, own, defaults)
	return policies, warning, nil
}

func (s *policySource) knownDefaults(ctx context.Context) (map[string]string, error) {
	s.mu.Lock()
	known, asked := s.defaults, time.Now().Before(s.askAt)
	s.mu.Unlock()
	if known != nil && asked {
		return known, nil
	}
	patience := loop.CallTimeout
	if known != nil {
		patience = knownPatience
	}
	found, err := s.hash(ctx, lua.NewGlobals(s.prefix).Defaults, patience)
	if err != nil && known == nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askAt = time.Now().Add(stream.PolicyInterval)
	if err == nil {
		s.defaults = found
	}
	return s.defaults, nil
}

func (s *policySource) hash(ctx context.Context, key string, patience time.Duration) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := s.client.Do(ctx, s.client.B().Hgetall().Key(key).Build()).AsStrMap()
	return found, lua.Classify("HGETALL", err)
}
