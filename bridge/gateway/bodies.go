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

// share counts what is under way for each token: one token alone must not take what is meant for all. The zero value
// allows one at a time.
type share struct {
	most int // of a token

	mu sync.Mutex
	of map[string]int
}

// begin counts one more of a token, whether or not it may have that many. over: it may not.
func (s *share) begin(token string) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]int{}
	}
	s.of[token]++
	return s.of[token] > max(1, s.most)
}

// end counts one less.
func (s *share) end(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[token]--; s.of[token] == 0 {
		delete(s.of, token)
	}
}

// full says whether a token has as many as it may.
func (s *share) full(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[token] >= max(1, s.most)
}

// reading begins to read the body of a token's request, and bounds how long that may take. It is false when as many of
// that token's bodies are being read as may be. done ends it, and is told how.
func (g *Gateway) reading(w http.ResponseWriter, r *http.Request, token string) (done func(error), ok bool) {
	if r.ContentLength == 0 {
		return func(error) {}, true
	}
	if g.bodies.begin(token) {
		g.bodies.end(token)
		return nil, false
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	return func(err error) {
		if err == nil {
			_ = rc.SetReadDeadline(time.Now().Add(readTimeout)) // whoever hangs up is noticed
		}
		g.bodies.end(token)
	}, true
}

// answering says from now on whose token the answer to a request counts for. It is false when as many answers to that
// token are being written as may be: who reads slowly, or not at all, is to have only so many.
func (g *Gateway) answering(w http.ResponseWriter, token string) bool {
	if out, is := w.(*reply); is {
		out.token = token
	}
	return !g.answers.full(token)
}

// tokenOf returns whose token the answer counts for, as answering was told.
func tokenOf(w http.ResponseWriter) string {
	if out, is := w.(*reply); is {
		return out.token
	}
	return ""
}

// errBodies refuses a body of a token that has as many as it may.
func errBodies() error {
	return &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
		Detail: "this gateway reads as many bodies of this token as it may: try again"}
}

// errAnswers refuses a request of a token that does not take its answers.
func errAnswers() error {
	return &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
		Detail: "as many answers to this token as may be wait to be read: try again"}
}
