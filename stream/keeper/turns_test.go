package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A queue that leaves gives up its turn. It once did not:
//
//  1. Queues that need tidying take turns, 30 s apart.
//  2. Bridges come and go, and each time the waiting queues move to other bridges.
//  3. Their turns stayed reserved, so later queues waited for queues that had long gone: 108 s instead of 10.
func TestTurnOfWhoLeavesIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTurns(30 * time.Second)
		if !g.wait(t.Context(), nil) {
			t.Fatal("the first turn was refused")
		}
		began := time.Now()
		for flip := range 12 {
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan bool)
			for range 100 {
				go func() { left <- g.wait(ctx, nil) }()
			}
			<-time.After(time.Second)
			leave()
			for range 100 {
				if <-left {
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
