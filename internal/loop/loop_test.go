package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/lua"
)

// Every runs a pass at once and then one each minute. A poke starts the next pass at once. After an error the next pass
// comes after a backoff, which is at most 1.5 times maxBackoff because of its jitter.
func TestEveryWaitsBacksOffAndIsPoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxBackoff = 5 * time.Second
		began, poked, passes := time.Now(), make(chan struct{}, 1), make(chan time.Duration)
		var answer error // of each pass
		go Every(t.Context(), func() time.Duration { return time.Minute }, NewBackoff(maxBackoff), poked,
			func(ctx context.Context) error {
				select {
				case passes <- time.Since(began):
				case <-ctx.Done():
				}
				return answer
			})
		for _, want := range []time.Duration{0, time.Minute, 2 * time.Minute} {
			if at := <-passes; at != want {
				t.Errorf("a pass at %v, want %v", at, want)
			}
		}
		Poke(poked)
		if at := <-passes; at != 2*time.Minute {
			t.Errorf("poked, and a pass at %v", at)
		}
		synctest.Wait()
		answer = lua.ErrUnavailable
		<-passes
		last := <-passes
		for range 10 {
			at := <-passes
			if at-last > 3*maxBackoff/2 {
				t.Errorf("%v after an error", at-last)
			}
			last = at
		}
	})
}
