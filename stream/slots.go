package stream

import (
	"context"
	"sync"

	"github.com/duestream/duestream/internal/loop"
)

// slots bounds how many messages a worker holds at once. Safe for concurrent use, by any number of readers.
type slots struct {
	mu    sync.Mutex
	free  int
	freed chan struct{} // poked while some are free
}

func newSlots(n int) *slots {
	s := &slots{free: n, freed: make(chan struct{}, 1)}
	loop.Poke(s.freed)
	return s
}

// take waits for one free slot and takes all free ones, but no more than most; zero when ctx ended.
func (s *slots) take(ctx context.Context, most int) int {
	for {
		select {
		case <-ctx.Done():
			return 0
		case <-s.freed:
		}
		s.mu.Lock()
		n := min(s.free, most)
		s.free -= n
		left := s.free > 0
		s.mu.Unlock()
		if left {
			loop.Poke(s.freed) // for whoever else waits
		}
		if n > 0 {
			return n
		}
	}
}

func (s *slots) put(n int) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	s.free += n
	s.mu.Unlock()
	loop.Poke(s.freed)
}
