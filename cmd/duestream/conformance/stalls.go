package conformance

import (
	"sync"
	"time"
)

const (
	stallEvery = 20 * time.Millisecond
	stallLasts = 3 * time.Second // after a stall, output of the stall may still arrive late for so long
)

// stalls records when the system did not schedule this process. The kit received the output of programs late by that
// time.
type stalls struct {
	mu   sync.Mutex
	all  []pauseOfOurs
	stop chan struct{}
}

type pauseOfOurs struct {
	end  time.Time
	long time.Duration
}

func newStalls() *stalls {
	s := &stalls{stop: make(chan struct{})}
	go s.measure()
	return s
}

func (s *stalls) measure() {
	ticks := time.NewTicker(stallEvery)
	defer ticks.Stop()
	for last := time.Now(); ; {
		select {
		case <-s.stop:
			return
		case <-ticks.C:
		}
		now := time.Now()
		if long := now.Sub(last) - stallEvery; long > stallEvery {
			s.mu.Lock()
			s.all = append(s.all, pauseOfOurs{now, long})
			s.mu.Unlock()
		}
		last = now
	}
}

// before returns the longest stall that may have delayed output received at a time.
func (s *stalls) before(at time.Time) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if age := at.Sub(one.end); age < stallLasts && age > -stallEvery {
			longest = max(longest, one.long)
		}
	}
	return longest
}

func (s *stalls) end() { close(s.stop) }
