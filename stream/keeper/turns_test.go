package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Queues that need tidying take turns, 30 s apart. A queue that moves to another bridge while it waits must give up its
// turn. Regression: the turn stayed reserved. When bridges came and went, later queues waited for queues that had long
// gone: 108 s instead of 10 s.
func TestQueueThatLeavesGivesUpItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTakeTurns(30 * time.Second)
		if !g.wait(t.Context(), nil) {
			t.Fatal("the first turn was refused")
		}
		began := time.Now()
		for flip := range 12 {
			ctx, leave := context.WithCancel(t.Context())
			gotTurn := make(chan bool)
			for range 100 {
				go func() { gotTurn <- g.wait(ctx, nil) }()
			}
			<-time.After(time.Second)
			leave()
			for range 100 {
				if <-gotTurn {
					t.Fatalf("flip %d: a turn was given to a queue that had gone", flip)
				}
			}
		}
		waited := time.Since(began)
		poked := make(chan struct{}, 1)
		poked <- struct{}{}
		if !g.wait(t.Context(), poked) || time.Since(began) != waited {
			t.Fatalf("a queue that became busy waited for %v", time.Since(began)-waited)
		}
		for i := range 3 {
			if !g.wait(t.Context(), nil) {
				t.Fatal("a turn was refused")
			}
			if got, want := time.Since(began), time.Duration(i+1)*30*time.Second; got != want {
				t.Errorf("turn %d came after %v, want %v", i+1, got, want)
			}
		}
	})
}
