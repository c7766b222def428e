package stream

import (
	"context"
	"sync"

	"github.com/duestream/duestream/internal/loop"
)

// slots bounds the number of messages that a worker holds at once. Safe for concurrent use, by any number of readers.
type slots struct {
	wants func() // called when a reader begins to wait and no slot is free; may be nil

	mu      sync.Mutex
	free    int
	waiting int
	freed   chan struct{} // poked while slots are free
	order   *order        // nil: readers are served first come, first served
}

func newSlots(n int) *slots {
	s := &slots{free: n, freed: make(chan struct{}, 1)}
	loop.Poke(s.freed)
	return s
}

// take waits for one free slot, and takes all free slots, but no more than claim.most. It returns the number of slots,
// or zero if ctx ended. In a worker with several queues it also waits until it is the claim's turn.
func (s *slots) take(ctx context.Context, c *claim) int {
	if s.order != nil {
		return s.takeInOrder(ctx, c)
	}
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
		n := min(s.free, c.most)
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

// put returns n slots.
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
