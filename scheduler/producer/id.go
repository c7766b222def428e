package producer

import (
	"crypto/rand"
	"sync"

	"github.com/oklog/ulid/v2"
)

// ids makes ULIDs. Each is greater than the one before, even if the clock is set back. It is safe for concurrent use.
type ids struct {
	mu      sync.Mutex
	entropy *ulid.MonotonicEntropy
	last    uint64 // time of the newest ULID, Unix ms
}

func newIDs() *ids { return &ids{entropy: ulid.Monotonic(rand.Reader, 0)} }

func (s *ids) next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last, ulid.Now())
	id, err := ulid.New(s.last, s.entropy)
	if err != nil { // all ULIDs of this millisecond are used up
		s.last++
		id = ulid.MustNew(s.last, s.entropy)
	}
	return id.String()
}
