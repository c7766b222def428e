package stream

import (
	"context"
	"sync"

	"github.com/duestream/duestream/internal/loop"
)

// slots bounds the number of messages that a worker holds at once. Safe for concurrent use, by any number of readers.
type slots struct {
	wants func() // called when a reader waits and no slot is free; may be nil

	mu      sync.Mutex
	free    int
	waiting int
	freed   chan struct{} // poked while some are free
	order   *order        // nil: first come, first served
}

func newSlots(n int) *slots {
	s := &slots{free: n, freed: make(chan struct{}, 1)}
	loop.Poke(s.freed)
	return s
}

// take waits for one free slot, and takes all free ones, but no more than most; zero if ctx ended.
func (s *slots) take(ctx context.Context, most int) int {
	s.mu.Lock()
	s.waiting++
	none := s.free == 0
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	if none && s.wants != nil {
		s.wants()
	}
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
			loop.Poke(s.freed) // for the next waiting reader
		}
		if n > 0 {
			return n
		}
	}
}

// wanted reports whether a reader waits for a slot and none is free.
func (s *slots) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting > 0 && s.free == 0
}

func (s *slots) put(n int) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	s.free += n
	if s.order != nil {
		s.grant()
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	loop.Poke(s.freed)
}
