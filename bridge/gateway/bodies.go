package gateway

import (
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	bodyTime   = 10 * time.Second // for a body that is not a stream of lines
	lingerTime = time.Second      // for what is left of the body of a request that was refused: the answer waits for it

	bytesOfPlace = 1 << 20  // that bodies of one token may take for each of its places, together
	leastBytes   = 64 << 20 // more than the largest line has
)

// share counts what is under way for each token: one token alone must not take what is meant for all. The zero value
// allows one at a time.
type share struct {
	most int // of a token

	mu sync.Mutex
	of map[string]int
}

// begin counts one more of a token, whether or not it may have that many. over: it may not.
func (s *share) begin(token string) (over bool) { return s.add(token, 1) }

// end counts one less.
func (s *share) end(token string) { s.add(token, -1) }

// add counts n more of a token, or less where n is negative. over: these are more than it may have.
func (s *share) add(token string, n int) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]int{}
	}
	count := s.of[token] + n
	if s.of[token] = count; count == 0 {
		delete(s.of, token)
	}
	return count > max(1, s.most)
}

// full says whether a token has as many as it may.
func (s *share) full(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[token] >= max(1, s.most)
}

// crowded says whether a token has more than twice as many as it may.
func (s *share) crowded(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[token] > 2*max(1, s.most)
}

// kept is a body that is read into memory. Its bytes count for its token until they are given back.
type kept struct {
	io.ReadCloser
	share *share
	token string
	n     int
}

func (k *kept) Read(p []byte) (n int, err error) {
	n, err = k.ReadCloser.Read(p)
	k.n += n
	if k.share.add(k.token, n) {
		return n, errBodies()
	}
	return n, err
}

// giveBack counts none of the bytes any more.
func (k *kept) giveBack() {
	k.share.add(k.token, -k.n)
	k.n = 0
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
	body := &kept{ReadCloser: r.Body, share: &g.bytes, token: token}
	r.Body = body
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	return func(err error) {
		body.giveBack()
		r.Body = body.ReadCloser
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
		Detail: "this gateway reads as much of this token as it may: try again"}
}

// errAnswers refuses a request of a token that does not take its answers.
func errAnswers() error {
	return &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
		Detail: "as many answers to this token as may be wait to be read: try again"}
}
