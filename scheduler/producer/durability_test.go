package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The first call asks whether the server supports the durability, with its own context. If this context ends, only that
// call must end, and the others go on. Regression: the constructor asked, for five seconds that nobody could interrupt.
func TestDurabilityIsAskedForWithTheContextOfTheCall(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Own(t)
	p := newProducer(t, s.Client(t), s.Prefix(t), func(c *Config) {
		c.Durability = lua.Durability{Replicas: 1, Timeout: 10 * time.Millisecond} // there is no replica
	})
	s.Pause()
	asking, giveUp := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := p.Schedule(asking, "q", Message{ID: "first"})
		first <- err
	}()
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		p.durable.mu.Lock()
		defer p.durable.mu.Unlock()
		return p.durable.inFlight != nil, "no call asks the server"
	})
	var others sync.WaitGroup
	for i := range 20 {
		others.Go(func() {
			_, err := p.Schedule(t.Context(), "q", Message{ID: fmt.Sprint("m", i), Delay: time.Hour})
			if !errors.Is(err, lua.ErrNotDurable) {
				t.Errorf("m%d: %v", i, err)
			}
		})
	}
	giveUp()
	if err := <-first; !errors.Is(err, context.Canceled) || errors.Is(err, ErrUncertain) {
		t.Errorf("the call that gave up: %v", err)
	}
	s.Resume()
	others.Wait()
	if !p.durable.confirmed.Load() {
		t.Error("the answer was forgotten")
	}
}

// RetryTimeout must count from the beginning of a call, including the question for the durability. Regression: it
// counted from the end of the question.
func TestRetryTimeoutBeginsBeforeTheDurabilityIsAskedFor(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Own(t)
	p := newProducer(t, s.Client(t), s.Prefix(t), func(c *Config) {
		c.Durability, c.RetryTimeout = lua.Durability{Replicas: 1, Timeout: 10 * time.Millisecond}, 2*time.Second
	})
	s.Stop()
	hung := &question{answered: make(chan struct{})}
	p.durable.inFlight = hung
	time.AfterFunc(2*time.Second, func() {
		p.durable.mu.Lock()
		p.durable.inFlight = nil
		p.durable.mu.Unlock()
		p.durable.confirmed.Store(true)
		close(hung.answered)
	})
	began := time.Now()
	_, err := p.Schedule(t.Context(), "q", Message{})
	if took := time.Since(began); !errors.Is(err, lua.ErrUnavailable) || took >= 4*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
}
