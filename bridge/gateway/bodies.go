package gateway

import (
	"net/http"
	"sync"
	"time"
)

const (
	bodyTime   = 10 * time.Second // for a body that is not a stream of lines
	lingerTime = time.Second      // for what is left of the body of a request that was refused: the answer waits for it
)

// bodies counts the bodies that are being read, for each token: one token alone must not take all places of the gateway by bodies
// that never end. The zero value allows one at a time.
type bodies struct {
	most int // of a token

	mu sync.Mutex
	of map[string]int
}

// read begins to read the body of a token's request, and bounds how long that may take. It is false when that token has as many
// as it may already. done ends it, and is told how.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, token string) (done func(error), ok bool) {
	if r.ContentLength == 0 {
		return func(error) {}, true
	}
	rc := http.NewResponseController(w)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[token] >= max(1, b.most) {
		return nil, false
	}
	if b.of == nil {
		b.of = map[string]int{}
	}
	b.of[token]++
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	return func(err error) {
		if err == nil {
			_ = rc.SetReadDeadline(time.Now().Add(readTimeout)) // whoever hangs up is noticed
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.of[token]--; b.of[token] == 0 {
			delete(b.of, token)
		}
	}, true
}

// errBodies refuses a body of a token that has as many as it may.
func errBodies() error {
	return &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
		Detail: "this gateway reads as many bodies of this token as it may: try again"}
}
