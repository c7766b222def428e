package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"
)

// This file divides places among tokens, such as those of viewers, of running jobs and of searches. It also divides
// memory and time.

// hasRoom reports whether a token that holds own places may take another one. It must leave more places free than it
// holds. So the first token gets half of all places, the second one half of the others, and so on.
func hasRoom(own, taken, all int) bool { return own < all-taken }

// budget divides bytes of memory among tokens. The zero value of its maps is empty.
type budget struct {
	all int

	mu    sync.Mutex
	taken int
	by    map[string]int // by the name of the token
}

// take takes bytes for a token, and reports whether it may have them. A taker of bytes calls giveBack.
func (b *budget) take(token string, bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !hasRoom(b.by[token]+bytes-1, b.taken, b.all) {
		return false
	}
	if b.by == nil {
		b.by = map[string]int{}
	}
	b.taken += bytes
	b.by[token] += bytes
	return true
}

// giveBack gives back bytes that take has taken.
func (b *budget) giveBack(token string, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= bytes
	if b.by[token] -= bytes; b.by[token] <= 0 {
		delete(b.by, token)
	}
}

// errBusyToken: other work for the token takes all of its share of the time.
var errBusyToken = errors.New("your token asks for too much at once: try again in some seconds")

// shares gives each token a share of the time: one piece of work at a time, and then a rest in proportion. The zero
// value is ready for use.
type shares struct {
	mostWaiting int // limit of the waiting pieces of work of one token, because each holds memory; 0 = no limit

	mu sync.Mutex
	by map[string]*share // by the name of the token; only of tokens whose work runs, waits or rests
}

// share is the turn of a token.
type share struct {
	turn    chan struct{} // has one element while work runs, and while the token rests
	holders int           // work that runs, waits or rests; guarded by the mu of shares
}

// do waits for the turn of a token, and calls work. Then the token rests for a multiple of the time that work took. The
// error is that of work, or errBusyToken if ctx ends before the turn comes, or if too much work waits already.
func (s *shares) do(ctx context.Context, token string, rest float64, most time.Duration, work func() error) error {
	one := s.hold(token)
	if one == nil {
		return errBusyToken
	}
	select {
	case one.turn <- struct{}{}:
	default:
		select {
		case one.turn <- struct{}{}:
		case <-ctx.Done():
			s.release(token, one)
			return errBusyToken
		}
	}
	begun := time.Now()
	defer func() {
		pause := time.Duration(rest * float64(time.Since(begun)))
		time.AfterFunc(min(pause, most), func() {
			<-one.turn
			s.release(token, one)
		})
	}()
	return work()
}

// hold returns the share of a token, or nil if as much work as may wait does so. The caller calls release.
func (s *shares) hold(token string) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]*share{}
	}
	one := s.by[token]
	if one == nil {
		one = &share{turn: make(chan struct{}, 1)}
		s.by[token] = one
	}
	if s.mostWaiting > 0 && one.holders > s.mostWaiting { // one of the holders does not wait: it runs or rests
		return nil
	}
	one.holders++
	return one
}

func (s *shares) release(token string, one *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.holders--; one.holders == 0 {
		delete(s.by, token)
	}
}
