package gateway

import (
	"context"
	"slices"
	"sync"
)

// Bounds of requests that read payloads of messages. Redis and the gateway hold each payload, of up to 16 MiB, until
// the answer is complete.
const (
	maxReads    = 16       // at the same time; readers divides them among tokens
	maxAnswered = 16 << 20 // bytes of payloads of a list; the first message is always in the list
	maxUnread   = 64 << 20 // of large answers to one token that wait to be read
)

var errTooManyReads = busy(ErrBusy,
	"this gateway, or this token, has reached its limit of requests that read payloads: try again")

// readers lets a few requests read payloads, and the others wait in the order in which they came. A token gets another
// place only while more places are free than it holds. A request whose token has its share lets later ones pass.
type readers struct {
	most    int // places
	waiters int // most requests of one token that wait

	mu      sync.Mutex
	taken   int
	by      map[string]int // places by the name of the token
	waiting []*reader
}

// reader is a request that waits for a place.
type reader struct {
	token string
	begun chan struct{} // closed when it has the place
}

// begin waits for a place, until ctx ends. The caller calls end once. Errors: errTooManyReads, and that of ctx.
func (r *readers) begin(ctx context.Context, token string) (end func(), err error) {
	one := &reader{token, make(chan struct{})}
	r.mu.Lock()
	own := 0
	for _, other := range r.waiting {
		if other.token == token {
			own++
		}
	}
	if own >= max(1, r.waiters) {
		r.mu.Unlock()
		return nil, errTooManyReads
	}
	r.waiting = append(r.waiting, one)
	r.admit()
	r.mu.Unlock()
	select {
	case <-one.begun:
		return func() { r.end(token) }, nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.Index(r.waiting, one)
	if at < 0 { // it got the place just now
		return func() { r.end(token) }, nil
	}
	r.waiting = slices.Delete(r.waiting, at, at+1)
	return nil, ctx.Err()
}

func (r *readers) end(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken--
	if r.by[token]--; r.by[token] == 0 {
		delete(r.by, token)
	}
	r.admit()
}

// admit gives free places to requests that wait. The caller holds the lock.
func (r *readers) admit() {
	for i := 0; i < len(r.waiting) && r.taken < r.most; {
		one := r.waiting[i]
		if r.by[one.token] >= r.most-r.taken {
			i++
			continue
		}
		if r.by == nil {
			r.by = map[string]int{}
		}
		r.taken++
		r.by[one.token]++
		r.waiting = slices.Delete(r.waiting, i, i+1)
		close(one.begun)
	}
}

// beginRead waits for a place for a route that reads payloads. The place is free again when the answer is complete, or
// with end at the latest.
func (c *call) beginRead() (end func(), err error) {
	free, err := c.reads.begin(c.Ctx, c.Grant.Name())
	if err != nil {
		return nil, err
	}
	c.w.complete = sync.OnceFunc(free)
	return c.w.complete, nil
}
