package producer

import (
	"crypto/rand"
	"sync"

	"github.com/oklog/ulid/v2"
)

// ids makes ULIDs, each greater than the last one, even if the clock is set back. Safe for concurrent use.
type ids struct {
	mu      sync.Mutex
	entropy *ulid.MonotonicEntropy
	last    uint64 // Unix ms of the newest
}

func newIDs() *ids { return &ids{entropy: ulid.Monotonic(rand.Reader, 0)} }

func (s *ids) next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last, ulid.Now())
	id, err := ulid.New(s.last, s.entropy)
	if err != nil { // all IDs of this millisecond are used up
		s.last++
		id = ulid.MustNew(s.last, s.entropy)
	}
	return id.String()
}
