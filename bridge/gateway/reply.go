package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// mostAtOnce is the most memory, in bytes, that is allocated for a body before it has arrived.
const mostAtOnce = 16 << 10

// zipFrom is the size in bytes from which an answer is compressed.
const zipFrom = 1 << 10

// reply is an answer, with its request.
type reply struct {
	http.ResponseWriter
	g       *Gateway
	r       *http.Request
	body    *counted // the request's body; nil = none, or it is answered while it is read
	id      string   // of the request
	route   string   // "" = none
	token   string   // name of the token that the answer counts for; "" = none
	status  int      // 0 until the header was written
	refused bool     // not written, because too many answers to the token wait to be read
}

// counted is a request body that counts the bytes that were read.
type counted struct {
	io.ReadCloser
	n int64
}

func (b *counted) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

// WriteHeader records the status and writes the header.
func (w *reply) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		// Before a large answer net/http would read the rest of the request's body, until the read deadline. It does
		// not if the connection is closed afterwards.
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
	back, err := w.beginWrite(len(p))
	if err != nil {
		return 0, err
	}
	defer back()
	return w.ResponseWriter.Write(p)
}

// FlushError sends the bytes that were written. It is for http.ResponseController.
func (w *reply) FlushError() error {
	back, err := w.beginWrite(0)
	if err != nil {
		return err
	}
	defer back()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// flushHTTP2 flushes an answer over HTTP/2. Otherwise net/http would send the end of it after the handler has returned,
// when it no longer counts for a token.
func (w *reply) flushHTTP2() {
	if w.status != 0 && w.r.ProtoMajor > 1 {
		_ = w.FlushError()
	}
}

// largeAnswer is the size in bytes from which an answer over HTTP/1 counts for its token while it is written. A
// smaller one fits into the buffers of the connection. Over HTTP/2 every answer counts, because the caller's flow
// control decides how much of it can be sent.
const largeAnswer = 64 << 10

var errTooManyAnswers = errors.New("too many answers to this token wait to be read")

// beginWrite makes a write of size bytes count for the token instead of as busy, until back is called. A token that has
// reached its limit of answers gets a refusal. Over HTTP/2 the refusal may wait to be read as well. So above twice the
// limit the stream ends without an answer, and every later write fails: the caller must not get a part of an answer.
func (w *reply) beginWrite(size int) (back func(), err error) {
	if w.refused {
		return nil, errTooManyAnswers
	}
	counts := size >= largeAnswer || w.r.ProtoMajor > 1
	w.g.busy.Add(-1)
	if counts {
		w.g.answers.begin(w.token)
	}
	back = func() {
		if counts {
			w.g.answers.end(w.token)
		}
		w.g.busy.Add(1)
	}
	if w.r.ProtoMajor > 1 && w.g.answers.farOver(w.token) {
		back()
		w.refused = true
		return nil, errTooManyAnswers
	}
	return back, nil
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
		panic(err) // a value of ours always has a JSON form
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
	h["Content-Length"] = []string{strconv.Itoa(len(text))}
	w.WriteHeader(status)
	_, _ = w.Write(text)
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
			q, is := strings.CutPrefix(strings.TrimSpace(weight), "q=")
			f, err := strconv.ParseFloat(q, 64)
			return !is || err == nil && f > 0
		}
	}
	return false
}

// openBody makes reads of a compressed body return it decompressed.
func (c *call) openBody() error {
	switch encoding := c.r.Header.Get("Content-Encoding"); strings.ToLower(encoding) {
	case "", "identity":
	case "gzip":
		c.r.Body = &unzipped{body: c.r.Body}
	default:
		c.w.Header().Set("Accept-Encoding", "gzip, identity")
		return &problem{Type: typeMedia, Status: http.StatusUnsupportedMediaType,
			Detail: "Content-Encoding must be gzip, or left out"}
	}
	return nil
}

// unzipped decompresses a body. It reads nothing before the first Read.
type unzipped struct {
	body io.ReadCloser
	z    *gzip.Reader
}

func (u *unzipped) Read(p []byte) (n int, err error) {
	if u.z == nil {
		if u.z, err = gzip.NewReader(u.body); err != nil {
			return 0, malformed("the body is not what gzip makes")
		}
	}
	if n, err = u.z.Read(p); err != nil && err != io.EOF {
		return n, malformed("the body is not what gzip makes")
	}
	return n, err
}

func (u *unzipped) Close() error { return u.body.Close() }

// body reads the whole body. It fails if the body, decompressed, has more than most bytes.
func (c *call) body(most int) ([]byte, error) {
	if size := c.r.ContentLength; size > int64(most) && c.r.Header.Get("Content-Encoding") == "" {
		return nil, tooLarge(int64(most))
	}
	done, ok := c.reading(c.w, c.r, c.grant.Name())
	if !ok {
		return nil, errBodies()
	}
	text, err := c.read(most + 1)
	done(err)
	if busy := (*problem)(nil); errors.As(err, &busy) && busy.Type == typeBusy {
		return nil, busy
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(c.ctx.Err(), context.DeadlineExceeded):
		return nil, &problem{Type: typeMalformed, Status: http.StatusRequestTimeout, Detail: "the body took too long"}
	case err == nil && len(text) > most:
		return nil, tooLarge(int64(most))
	case err != nil && c.ctx.Err() == nil:
		return nil, malformed("the body could not be read")
	}
	return text, err
}

// read reads at most most bytes of the body. A body of known length is read into a slice of that size, unless it is
// larger than mostAtOnce: a caller could announce a large body and never send it.
func (c *call) read(most int) ([]byte, error) {
	size := c.r.ContentLength
	if size < 0 || size >= int64(most) || size > mostAtOnce || c.r.Header.Get("Content-Encoding") != "" {
		return io.ReadAll(io.LimitReader(c.r.Body, int64(most)))
	}
	text := make([]byte, size)
	_, err := io.ReadFull(c.r.Body, text)
	return text, err
}

// malformed returns the problem of a request that cannot be read.
func malformed(detail string, args ...any) error {
	return &problem{Type: typeMalformed, Status: http.StatusBadRequest, Detail: fmt.Sprintf(detail, args...)}
}

func sizeLimit(n int64) string { return fmt.Sprintf("must be at most %d bytes", n) }
