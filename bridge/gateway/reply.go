package gateway

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
)

// zipFrom is the size in bytes from which an answer is compressed.
const zipFrom = 1 << 10

// reply is an answer, with its request.
type reply struct {
	http.ResponseWriter
	g      *Gateway
	r      *http.Request
	body   *countedBody // the request's body; nil = no body, or a stream that is answered while it is read
	id     string       // of the request
	route  string       // method and pattern of the route; "" = no route matches
	token  string       // name of the token that the answer counts for; "" = no token
	status int          // 0 until the header was written
	// complete, if not nil, is called when the answer of a request that reads payloads is complete, before it is written.
	complete func()
	refused  bool // nothing more is written, because too many answers to the token wait to be read
	counted  bool // HoldBytes has counted the bytes of the answer
}

// WriteHeader records the status and writes the header.
func (w *reply) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		// Before a large answer net/http would read the remaining body of the request, until the read deadline. With
		// the header Connection: close it does not.
		if status < http.StatusBadRequest && w.body != nil && w.body.n < w.r.ContentLength && w.r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the answer's body, with status 200 if WriteHeader was not called.
func (w *reply) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	done, err := w.beginWrite(len(p))
	if err != nil {
		return 0, err
	}
	defer done()
	return w.ResponseWriter.Write(p)
}

// FlushError sends the bytes that were written. It is for http.ResponseController.
func (w *reply) FlushError() error {
	done, err := w.beginWrite(0)
	if err != nil {
		return err
	}
	defer done()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// flushHTTP2 flushes an answer over HTTP/2. Otherwise net/http would send the end of the answer after the handler has
// returned, when the answer no longer counts for its token.
func (w *reply) flushHTTP2() {
	if w.status != 0 && w.r.ProtoMajor > 1 {
		_ = w.FlushError()
	}
}

// largeAnswer is the size in bytes from which an answer over HTTP/1 counts for its token while it is written. A smaller
// answer fits into the buffers of the connection. Over HTTP/2 every answer counts, because the caller's flow control
// decides how much of the answer can be sent.
const largeAnswer = 64 << 10

var errTooManyAnswers = errors.New("too many answers to this token wait to be read")

// beginWrite makes a write of size bytes count for the token instead of as busy, until done is called.
//
// MayAnswer refuses the requests of a token that has reached its limit of answers. Over HTTP/2 such a refusal may wait
// to be read as well, and counts. So above twice the limit beginWrite fails, now and for every later write, and the
// stream ends without an answer: the caller must not get a part of an answer.
func (w *reply) beginWrite(size int) (done func(), err error) {
	if w.refused {
		return nil, errTooManyAnswers
	}
	counts := size >= largeAnswer || w.r.ProtoMajor > 1
	w.g.busy.Add(-1)
	if counts {
		w.g.answers.begin(w.token)
	}
	done = func() {
		if counts {
			w.g.answers.end(w.token)
		}
		w.g.busy.Add(1)
	}
	if w.r.ProtoMajor > 1 && w.g.answers.isFarOver(w.token) {
		done()
		w.refused = true
		return nil, errTooManyAnswers
	}
	return done, nil
}

// Unwrap is for http.ResponseController.
func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// json answers with a value as JSON. A large answer is compressed if the caller accepts that. With a nil value the
// answer has no body.
func (w *reply) json(status int, value any) {
	if value == nil {
		w.WriteHeader(status)
		return
	}
	text, err := encode(value)
	if err != nil {
		panic(err) // every answer of the gateway has a JSON form
	}
	h := w.Header() // names in canonical form: assigning is faster than Set
	if h["Content-Type"] == nil {
		h["Content-Type"] = isJSON
	}
	h["Vary"] = variesByZip
	if len(text) >= zipFrom && acceptsGzip(w.r.Header.Values("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		_, _ = z.Write(text)
		_ = z.Close()
		text = zipped.Bytes()
	}
	if w.complete != nil {
		w.complete()
	}
	if len(text) >= largeAnswer && !w.counted {
		leave, err := w.takeBytes(len(text))
		if err != nil {
			h.Del("Content-Encoding")
			w.problem(err)
			return
		}
		defer leave()
	}
	h["Content-Length"] = []string{strconv.Itoa(len(text))}
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// takeBytes counts the bytes of a large answer for its token until the caller has read it. One such answer may have any
// size; several have at most maxUnread together.
func (w *reply) takeBytes(n int) (leave func(), refusal *problem) {
	leave = func() { w.g.unread.add(w.token, -n) }
	if w.g.unread.add(w.token, n) && w.g.unread.count(w.token) > n {
		leave()
		return nil, busy(ErrBusy, "too many large answers to this token wait to be read: try again")
	}
	return leave, nil
}

// encode is json.Marshal that does not escape <, > and &, and adds a line end.
func encode(value any) ([]byte, error) {
	if r, is := value.(receipt); is {
		if text, ok := r.text(); ok {
			return text, nil
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return b.Bytes(), err
}

// acceptsGzip reports whether Accept-Encoding names gzip with a weight above 0.
func acceptsGzip(values []string) bool {
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			name, weight, _ := strings.Cut(strings.TrimSpace(one), ";")
			if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
				continue
			}
			text, isWeighted := strings.CutPrefix(strings.TrimSpace(weight), "q=")
			q, err := strconv.ParseFloat(text, 64)
			return !isWeighted || err == nil && q > 0
		}
	}
	return false
}
