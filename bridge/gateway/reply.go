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

// mostAtOnce is how many bytes of a body are made room for before they are there.
const mostAtOnce = 16 << 10

// zipFrom is from how many bytes on an answer is worth being compressed.
const zipFrom = 1 << 10

// reply is an answer, and what is known of its request.
type reply struct {
	http.ResponseWriter
	g      *Gateway
	r      *http.Request
	body   *counted // of the request; nil = it has none, or is answered while it is read
	id     string   // of the request
	route  string   // "" where there is none
	token  string   // name of the one that the answer counts for; "" = none
	status int      // 0 until it was written
	left   bool     // it was not written, because too many wait to be taken
}

// counted is a body, and how much of it was read.
type counted struct {
	io.ReadCloser
	n int64
}

func (b *counted) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

// WriteHeader notes the status.
func (w *reply) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		// net/http would read a body that nobody has read, before it writes a large answer, for as long as a request may
		// take.
		if status < http.StatusBadRequest && w.body != nil && w.body.n < w.r.ContentLength && w.r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write answers 200 unless something else was said.
func (w *reply) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	back, err := w.aside(len(p))
	if err != nil {
		return 0, err
	}
	defer back()
	return w.ResponseWriter.Write(p)
}

// FlushError sends what was written. It is for http.ResponseController.
func (w *reply) FlushError() error {
	back, err := w.aside(0)
	if err != nil {
		return err
	}
	defer back()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// finish sends what net/http would send behind the handler, where it would count for nobody: the end of an answer over HTTP/2.
func (w *reply) finish() {
	if w.status != 0 && w.r.ProtoMajor > 1 {
		_ = w.FlushError()
	}
}

// largeAnswer is from how many bytes on an answer over HTTP/1 counts for its token while it is written: a smaller one
// fits into the buffers of the connection. Over HTTP/2 every answer counts, because its caller decides how much of it
// is taken.
const largeAnswer = 64 << 10

var errLeft = errors.New("too many answers to this token wait to be read")

// aside gives the place of this request to others while its caller takes so many bytes. Whoever has as many answers as it may
// is told so in an answer. Over HTTP/2 that one may wait as well, so with twice as many the stream ends without any.
func (w *reply) aside(size int) (back func(), err error) {
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
	if w.r.ProtoMajor > 1 && w.g.answers.crowded(w.token) {
		back()
		w.left = true
		return nil, errLeft
	}
	return back, nil
}

// Unwrap is for http.ResponseController.
func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// json answers with a value, compressed if it is large and the caller takes that. A nil value is no body.
func (w *reply) json(status int, value any) {
	if value == nil {
		w.WriteHeader(status)
		return
	}
	text, err := encode(value)
	if err != nil {
		panic(err) // a value of ours always has a JSON form
	}
	h := w.Header() // the names are as Set would write them
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

// encode is json.Marshal that leaves < and > as they are, with a line end.
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

// acceptsGzip reads Accept-Encoding: gzip is taken unless it has q=0.
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

// openBody has the body unpacked where it is compressed.
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

// unzipped is a body that was compressed. Nothing is read before it is asked for.
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

// body reads the whole body, of so many bytes at most after it was unpacked.
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

// read reads the body, up to so many bytes. One whose length is told is read into a slice of that size, if it is not so large
// that a caller who does not send it would be given memory for nothing.
func (c *call) read(most int) ([]byte, error) {
	size := c.r.ContentLength
	if size < 0 || size >= int64(most) || size > mostAtOnce || c.r.Header.Get("Content-Encoding") != "" {
		return io.ReadAll(io.LimitReader(c.r.Body, int64(most)))
	}
	text := make([]byte, size)
	_, err := io.ReadFull(c.r.Body, text)
	return text, err
}

// malformed is a request that cannot be read.
func malformed(detail string, args ...any) error {
	return &problem{Type: typeMalformed, Status: http.StatusBadRequest, Detail: fmt.Sprintf(detail, args...)}
}

func sizeLimit(n int64) string { return fmt.Sprintf("must be at most %d bytes", n) }
