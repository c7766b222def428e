package gateway

import (
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	bodyTime   = 10 * time.Second // to read a body that is not a stream of lines
	lingerTime = time.Second      // to read the rest of a refused request's body; the answer waits for it

	bytesOfPlace = 1 << 20  // memory for a token's bodies, for each body that the token may send at once
	leastBytes   = 64 << 20 // memory for a token's bodies at least; more than the largest line
)

// perToken limits the use of a resource by each token, so that one token cannot take all of it. The zero value allows
// one at a time.
type perToken struct {
	most  int // for each token
	inAll int // for all tokens together; 0 = no limit

	mu    sync.Mutex
	of    map[string]int
	total int
}

// begin adds one to a token's count, even above the limits. It reports whether the token, or the sum of all tokens, is
// over its limit now.
func (s *perToken) begin(token string) (over bool) { return s.add(token, 1) }

// end counts one less for a token.
func (s *perToken) end(token string) { s.add(token, -1) }

// add adds n, which may be negative, to a token's count. Like begin it reports whether a limit is exceeded now.
func (s *perToken) add(token string, n int) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]int{}
	}
	count := s.of[token] + n
	s.of[token] = count
	if count == 0 {
		delete(s.of, token)
	}
	s.total += n
	return count > max(1, s.most) || s.inAll > 0 && s.total > s.inAll
}

// full reports whether a token has reached its limit.
func (s *perToken) full(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[token] >= max(1, s.most)
}

// farOver reports whether a token has more than twice its limit.
func (s *perToken) farOver(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[token] > 2*max(1, s.most)
}

// countedBody is a request body that is read into memory. Its bytes count for its token until giveBack.
type countedBody struct {
	io.ReadCloser
	share *perToken
	token string
	n     int
}

func (k *countedBody) Read(p []byte) (n int, err error) {
	n, err = k.ReadCloser.Read(p)
	k.n += n
	if k.share.add(k.token, n) {
		return n, errBodies()
	}
	return n, err
}

// giveBack takes the body's bytes off its token's count.
func (k *countedBody) giveBack() {
	k.share.add(k.token, -k.n)
	k.n = 0
}

// reading counts a request body for its token and sets a deadline for reading it. It returns false if the token has
// reached its limit of bodies. Call done after the body was read, with the error of that.
func (g *Gateway) reading(w http.ResponseWriter, r *http.Request, token string) (done func(error), ok bool) {
	if r.ContentLength == 0 {
		return func(error) {}, true
	}
	if g.bodies.begin(token) {
		g.bodies.end(token)
		return nil, false
	}
	body := &countedBody{ReadCloser: r.Body, share: &g.bytes, token: token}
	r.Body = body
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	return func(err error) {
		body.giveBack()
		r.Body = body.ReadCloser
		if err == nil {
			_ = rc.SetReadDeadline(time.Now().Add(readTimeout)) // so that a caller that hangs up is noticed
		}
		g.bodies.end(token)
	}, true
}

// answering makes the answer to a request count for a token. It returns false if the token has reached its limit of
// answers in writing: a caller that reads slowly or not at all can hold up only so many.
func (g *Gateway) answering(w http.ResponseWriter, token string) bool {
	if out, is := w.(*reply); is {
		out.token = token
	}
	return !g.answers.full(token)
}

// tokenOf returns the token that answering set for an answer.
func tokenOf(w http.ResponseWriter) string {
	if out, is := w.(*reply); is {
		return out.token
	}
	return ""
}

// errBodies refuses a body of a token that has reached its limit of bodies.
func errBodies() error {
	return &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
		Detail: "this gateway reads as much of this token as it may: try again"}
}

// errAnswers refuses a request of a token that does not read its answers.
func errAnswers() error {
	return &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
		Detail: "as many answers to this token as may be wait to be read: try again"}
}
