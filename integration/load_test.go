package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// load is a set of callers that each schedule one message after another, with their results.
type load struct {
	t        testing.TB
	stop     chan struct{}
	callers  sync.WaitGroup
	accepted atomic.Int64
	mu       sync.Mutex
	// failures counts the calls that failed, by the kind of their error. Their messages may or may not have been
	// stored.
	failures map[string]int
}

const pace = 2 * time.Millisecond // interval between two messages of a caller

// load starts callers that schedule messages until end is called. The i-th message of a caller has the delay in(i). The
// ledger records accepted messages as owed to every group, and all others as maybe sent.
func (s *stack) load(client *bridge.Client, name string, callers int, in func(i int) time.Duration) *load {
	s.t.Helper()
	l := &load{t: s.t, stop: make(chan struct{}), failures: map[string]int{}}
	for caller := range callers {
		l.callers.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				case <-tick.C:
				}
				id := fmt.Sprintf("%s-%d-%d", name, caller, i)
				receipt, err := client.Schedule(context.Background(), s.queue, []byte(id), bridge.WithID(id), bridge.In(in(i)))
				l.enter(s.ledger, id, receipt, err)
			}
		})
	}
	s.t.Cleanup(l.end)
	return l
}

// enter records the result of one call in the ledger, and counts it.
func (l *load) enter(ledger *redistest.Ledger, id string, receipt bridge.Receipt, err error) {
	if err == nil {
		ledger.Sent(id, receipt.Due.UnixMilli())
		l.accepted.Add(1)
		return
	}
	ledger.MaybeSent(id, 0)
	kind := err.Error()
	for _, known := range []error{bridge.ErrNotDurable, bridge.ErrDuplicate, bridge.ErrUnavailable, bridge.ErrUncertain} {
		if errors.Is(err, known) {
			kind = known.Error()
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures[kind]++
}

// awaitMore waits until n further messages were accepted.
func (l *load) awaitMore(n int64) {
	l.t.Helper()
	from := l.accepted.Load()
	redistest.Eventually(l.t, 30*time.Second, func() (bool, string) {
		return l.accepted.Load() >= from+n, "the producers do not get on: " + l.String()
	})
}

// end stops the callers, and returns when they have ended.
func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.callers.Wait()
}

func (l *load) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("accepted %d, failures %v", l.accepted.Load(), l.failures)
}

// durably returns a client with the given durability.
func (s *stack) durably(durability bridge.Durability) *bridge.Client {
	s.t.Helper()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix, Durability: durability, Logger: s.log})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { client.Close() })
	return client
}
