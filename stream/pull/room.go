package pull

import (
	"context"

	"golang.org/x/sync/semaphore"
)

const (
	// maxReceived is how many bytes of payloads all callers together may receive at the same time. Each payload is held
	// by Redis and by this process until it has arrived.
	maxReceived = 256 << 20

	// maxReply is the expected size of the first reply for a queue and group, of which nothing is known.
	maxReply = 16 << 20

	// minReply is the smallest expected size: small replies do not wait.
	minReply = 4 << 10
)

// room bounds the bytes that are received at the same time. The size of a reply is known only when it has arrived, so
// the replies before it tell how many bytes to expect. The zero value is not ready for use.
type room struct {
	free *semaphore.Weighted
}

func newRoom(bytes int64) room { return room{semaphore.NewWeighted(bytes)} }

// enter waits until there is room for the expected reply of a source, or until ctx ends. The caller calls leave with
// the number of bytes that it received.
func (r room) enter(ctx context.Context, s *source) (leave func(received int), err error) {
	s.mu.Lock()
	if s.expected == 0 {
		s.expected = maxReply
	}
	expected := s.expected
	s.mu.Unlock()
	if err := r.free.Acquire(ctx, expected); err != nil {
		return nil, err
	}
	return func(received int) {
		r.free.Release(expected)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expected = min(maxReply, max(int64(received), s.expected/2, minReply))
	}, nil
}
