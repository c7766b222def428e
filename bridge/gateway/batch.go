package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/internal/ndjson"
	"github.com/duestream/duestream/lua"
)

// Bounds of a batch.
const (
	mostLines    = 500      // lines that are scheduled together
	maxBodyParts = 16 << 20 // bytes of a JSON array, which is read as a whole
	mostItems    = 10_000   // of an array

	blankLines     = 1000 // empty lines that every stream may hold
	blankPerLine   = 10   // further empty lines for each line with a message
	blankLineBytes = 1024 // each so many bytes of an empty line count as one more line
)

// verdict is the result of one message of a batch.
type verdict struct {
	Line int `json:"line"` // from 1
	receipt
	Problem *problem `json:"problem,omitempty"`
}

// publishMany schedules a batch. A JSON array is answered with an array. A stream of JSON lines is answered line by
// line, while it is read.
func publishMany(c *call) (int, any, error) {
	kind, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	switch kind {
	case "application/json":
		return c.publishArray()
	case "application/x-ndjson", "application/jsonl":
		return 0, nil, c.publishLines()
	}
	return 0, nil, &problem{Type: typeMedia, Status: http.StatusUnsupportedMediaType,
		Detail: "Content-Type must be application/json, for an array, or application/x-ndjson"}
}

func (c *call) publishArray() (int, any, error) {
	if err := c.take(access.Publish, 1); err != nil { // before the body, which may be large
		return 0, nil, err
	}
	text, err := c.body(maxBodyParts)
	if err != nil {
		return 0, nil, err
	}
	lines, err := itemsOf(text)
	if err != nil {
		return 0, nil, err // it was work, and counts
	}
	// Charge the whole array at once. An array above the burst passes only if the bucket is full, so give back the
	// first one before.
	c.cfg.Access.GiveBack(c.ctx, c.grant, access.Publish, 1)
	if err := c.take(access.Publish, max(len(lines), 1)); err != nil {
		return 0, nil, err
	}
	var b batch
	for i, one := range lines {
		b.add(c, i+1, one, false)
	}
	b.send(c)
	return http.StatusOK, map[string]any{"results": append([]verdict{}, b.verdicts...)}, nil
}

// itemsOf returns the values of a JSON array. Their number is bounded, because a value of a few bytes costs hundreds of
// bytes of memory.
func itemsOf(text []byte) (items []json.RawMessage, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	begin, err := d.Token()
	if begin != json.Delim('[') {
		return nil, malformed("the body is not a JSON array")
	}
	for err == nil && d.More() {
		if len(items) == mostItems {
			return nil, lua.Invalid("messages", "", "must be at most %d in an array: send more of them as lines", mostItems)
		}
		var one json.RawMessage
		err = d.Decode(&one)
		items = append(items, one)
	}
	if err == nil {
		_, err = d.Token()
	}
	if _, more := d.Token(); err != nil || more != io.EOF { //nolint:errorlint // a Decoder gives it as it is
		return nil, malformed("the body is not a JSON array")
	}
	return items, nil
}

// publishLines schedules the lines that it has read whenever no further line is buffered. So memory is bounded, and a
// caller that waits for its verdicts gets them.
func (c *call) publishLines() error {
	defer c.streams.end(c.grant.Name())
	if c.streams.begin(c.grant.Name()) {
		return &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
			Detail: "this gateway, or this token, has the most streams that are read at the same time: try again"}
	}
	rc := http.NewResponseController(c.w)
	_ = rc.EnableFullDuplex() // for HTTP/1.1; HTTP/2 is always full duplex
	c.w.body = nil
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	body := &countedBody{ReadCloser: c.r.Body, share: &c.bytes, token: c.grant.Name()}
	defer body.giveBack()
	lines := ndjson.NewReader(body)
	lines.Max = 2*c.cfg.MaxPayload + 128<<10 // base64, headers and names
	var b batch
	blank := blanks{began: time.Now()}
	size := 0
	for {
		_ = rc.SetReadDeadline(time.Now().Add(readTimeout))
		idle := !lines.Buffered()
		if idle {
			c.busy.Add(-1) // a stream that waits for its caller does not count as busy
		}
		before := lines.Bytes
		text, tooLong, err := lines.Next()
		if idle {
			c.busy.Add(1)
		}
		read := lines.Bytes - before
		switch {
		case err != nil:
		case tooLong || len(bytes.TrimSpace(text)) > 0:
			b.add(c, lines.Number, text, tooLong)
			b.cost += int(read / int64(lines.Max)) // what is too long was read, or unpacked, all the same
			size += len(text)
			blank.others++
		case blank.tooMany(read):
			err = errBlank
		}
		most := c.grant.Part(access.Publish, mostLines)
		if err == nil && len(b.verdicts) < most && size < c.cfg.MaxPayload && lines.Buffered() {
			continue
		}
		if failed := b.flush(c, rc); failed != nil || err != nil {
			if errors.Is(err, errBlank) && c.w.status == 0 && failed == nil { // it was work, and counts
				failed = c.take(access.Publish, 1)
			}
			if err != nil && !errors.Is(err, io.EOF) && failed == nil {
				c.lastWord(lines.Number+1, lastWordOf(err))
			}
			if c.w.status == 0 && failed == nil { // the stream had no line with a message
				if err := c.take(access.Publish, 1); err != nil {
					return err
				}
				c.w.WriteHeader(http.StatusOK)
			}
			return failed
		}
		b, size = batch{}, 0
		body.giveBack()
	}
}

// blanks counts the empty lines of a stream. They cost work but are not charged to the token's rate, so their number
// is bounded: a few for each line with a message, as some programs write them, and one a second, as others keep a
// connection open.
type blanks struct {
	began  time.Time
	n      int64 // empty lines; a long one counts as several
	others int64 // lines with a message
}

// tooMany counts an empty line of the given size in bytes, and reports whether the stream has too many.
func (b *blanks) tooMany(size int64) bool {
	b.n += 1 + size/blankLineBytes
	return b.n > blankLines+blankPerLine*b.others+int64(time.Since(b.began)/time.Second)
}

var errBlank = malformed("there are more empty lines than a stream may hold")

// lastWordOf turns an error of the body into the error that the caller gets.
func lastWordOf(err error) error {
	if busy := (*problem)(nil); errors.Is(err, errBlank) || errors.As(err, &busy) && busy.Type == typeBusy {
		return err
	}
	return malformed("the body ended in the middle")
}

// lastWord writes the reason why the stream ends at a line.
func (c *call) lastWord(number int, err error) {
	text, _ := encode(verdict{Line: number, Problem: c.problemOf(err)})
	_, _ = c.w.Write(text)
}

// batch holds messages that are scheduled together, with their results.
type batch struct {
	verdicts []verdict
	messages []bridge.NewMessage
	at       []int // index of each message's verdict
	cost     int   // to charge to the token's rate, besides one for each verdict
	down     bool  // Redis could not store a message
}

// add reads one line. If the line is wrong, its verdict is the problem.
func (b *batch) add(c *call, number int, text []byte, tooLong bool) {
	v := verdict{Line: number}
	m, err := bridge.NewMessage{}, error(nil)
	if tooLong {
		err = tooLarge(int64(2*c.cfg.MaxPayload + 128<<10))
	} else {
		m, err = parseLine(bytes.TrimSpace(text))
	}
	if err == nil && len(m.Payload) > c.cfg.MaxPayload {
		p := tooLarge(int64(c.cfg.MaxPayload))
		p.Field = "payload"
		err = p
	}
	if err != nil {
		v.Problem = c.problemOf(err)
	} else {
		b.messages, b.at = append(b.messages, m), append(b.at, len(b.verdicts))
	}
	b.verdicts = append(b.verdicts, v)
}

// send schedules the messages of the valid lines, and fills in their verdicts.
func (b *batch) send(c *call) {
	if len(b.messages) == 0 {
		return
	}
	results, failed := c.client.SendBatch(c.ctx, c.queue, b.messages)
	for i, at := range b.at {
		err := failed
		var r bridge.Receipt
		if err == nil {
			r, err = results[i].Receipt, results[i].Err
		}
		if err != nil {
			b.verdicts[at].Problem = c.problemOf(err)
			b.down = b.down || b.verdicts[at].Problem.Status >= http.StatusInternalServerError
			continue
		}
		b.verdicts[at].receipt = receipt{ID: r.ID, Due: r.Due, Ready: r.Ready, Replaced: r.Replaced}
	}
}

var errEnded = errors.New("the stream ended")

// awaitRate waits until the token's rate allows n messages. It waits no longer than Timeout, because the gateway does
// not notice a caller that hangs up meanwhile. The request does not count as busy while it waits. The wait ends when
// the token is no longer valid or the gateway stops, and a changed rate takes effect at once.
func (c *call) awaitRate(n int) error {
	for until := time.Now().Add(c.cfg.Timeout); ; {
		if err := errors.Join(c.authenticate(), c.mayAll(access.Publish, []string{c.queue})); err != nil {
			return err
		}
		wait, err := c.cfg.Access.Take(c.ctx, c.grant, access.Publish, n)
		if err != nil || wait <= 0 {
			return c.ctx.Err()
		}
		if time.Now().After(until) {
			return tooFast(wait)
		}
		c.busy.Add(-1)
		select {
		case <-time.After(min(wait, time.Second)):
		case <-c.stopping.Done():
			err = &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
				Detail: "the gateway stops: try again"}
		case <-c.ctx.Done():
			err = c.ctx.Err()
		}
		c.busy.Add(1)
		if err != nil {
			return err
		}
	}
}

// flush schedules a part of a stream as soon as the token's rate allows it, and writes the verdicts. If Redis could not
// store a message of the part, the stream ends.
func (b *batch) flush(c *call, rc *http.ResponseController) error {
	if len(b.verdicts) == 0 {
		return nil
	}
	if err := c.awaitRate(len(b.verdicts) + b.cost); err != nil {
		if c.w.status != 0 {
			c.lastWord(b.verdicts[0].Line, err)
		}
		return err
	}
	b.send(c)
	_ = rc.SetWriteDeadline(time.Now().Add(readTimeout))
	for _, v := range b.verdicts {
		text, err := encode(v)
		if err == nil {
			_, err = c.w.Write(text)
		}
		if err != nil {
			return err
		}
	}
	if err := rc.Flush(); err != nil {
		return err
	}
	if b.down {
		return errEnded
	}
	return nil
}

// problemOf returns the problem that a verdict shows for an error.
func (c *call) problemOf(err error) *problem {
	p := problemOf(err)
	p.Title, p.Request = http.StatusText(p.Status), c.w.id
	return p
}
