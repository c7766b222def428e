package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/internal/message"
	"github.com/duestream/duestream/internal/ndjson"
	"github.com/duestream/duestream/lua"
)

// Bounds of a batch.
const (
	maxLines      = 500      // lines that are scheduled together
	maxArrayBytes = 16 << 20 // of a JSON array, which is read whole before its messages are scheduled
	maxItems      = 10_000   // of an array

	// fewElements is the length in bytes above which the headers and delays of a line are counted before it is decoded.
	fewElements = 16 << 10

	blankLines     = 1000 // empty lines that every stream may hold
	blankPerLine   = 10   // further empty lines for each line with a message
	blankLineBytes = 1024 // an empty line counts as one line more for each such number of bytes
)

// maxLineBytes returns the longest line of a stream: twice the longest payload, because base64 makes it longer, and 128
// KiB for headers and field names.
func (g *Gateway) maxLineBytes() int { return 2*g.cfg.MaxPayload + 128<<10 }

// verdict is the result of one message of a batch.
type verdict struct {
	Line int `json:"line"` // from 1
	receipt
	Problem *problem `json:"problem,omitempty"`
}

// publishMany schedules a batch. A JSON array is answered with an array. A stream of JSON lines is answered line by
// line, while it is read.
func publishMany(c *call) (int, any, error) {
	kind, _, _ := mime.ParseMediaType(c.R.Header.Get("Content-Type"))
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
	if err := c.take(access.Publish, 1); err != nil { // before reading the body, which may be large
		return 0, nil, err
	}
	text, err := c.Body(maxArrayBytes)
	if err != nil {
		return 0, nil, err
	}
	lines, more, err := ndjson.Items(text, maxItems)
	if err != nil { // keeps the charge, because reading the body was work
		return 0, nil, malformed("the body is not a JSON array")
	}
	if more {
		return 0, nil, lua.Invalid("messages", "", "must be at most %d in an array: send more as JSON lines", maxItems)
	}
	// Charge the whole array at once. An array with more messages than the burst passes only if the bucket is full, so
	// give back the first charge before.
	c.GiveBack(access.Publish, 1)
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

// publishLines schedules the lines that it has read whenever no further line is buffered. So memory is bounded, and a
// caller that waits for its verdicts gets them.
func (c *call) publishLines() error {
	defer c.streams.end(c.Grant.Name())
	if c.streams.begin(c.Grant.Name()) {
		return busy(ErrBusy, "this gateway, or this token, has reached its limit of streams: try again")
	}
	rc := http.NewResponseController(c.w)
	_ = rc.EnableFullDuplex() // for HTTP/1.1; HTTP/2 is always full duplex
	c.w.body = nil
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	body := &chargedBody{ReadCloser: c.R.Body, bytes: &c.bytes, token: c.Grant.Name()}
	defer body.giveBack()
	lines := ndjson.NewReader(body)
	lines.Max = c.maxLineBytes()
	var b batch
	blanks := blankCount{began: time.Now()}
	size := 0
	for {
		_ = rc.SetReadDeadline(time.Now().Add(readTimeout))
		waits := !lines.Buffered()
		if waits {
			c.busy.Add(-1) // a stream that waits for its caller does not count as busy
		}
		bytesBefore := lines.Bytes
		text, tooLong, err := lines.Next()
		if waits {
			c.busy.Add(1)
		}
		read := lines.Bytes - bytesBefore
		switch {
		case err != nil:
		case tooLong || len(bytes.TrimSpace(text)) > 0:
			b.add(c, lines.Number, text, tooLong)
			b.extraCost += int(read / int64(lines.Max)) // reading, or unpacking, a line that is too long was work
			size += len(text)
			blanks.messages++
		case blanks.tooMany(read):
			err = errBlank
		}
		most := c.Grant.Part(access.Publish, maxLines)
		isFull := len(b.verdicts) >= most || size >= c.cfg.MaxPayload
		if err == nil && !isFull && lines.Buffered() {
			continue
		}
		if failed := b.flush(c, rc); failed != nil {
			return failed
		}
		if err != nil {
			return c.endLines(lines.Number+1, err)
		}
		b, size = batch{}, 0
		body.giveBack()
	}
}

// endLines ends the answer to a stream of lines: number is the line after the last one that was read, and err is
// io.EOF or the reason why the stream cannot be read further.
func (c *call) endLines(number int, err error) error {
	isEnd, isBlank, noMessages := errors.Is(err, io.EOF), errors.Is(err, errBlank), c.w.status == 0
	if noMessages && (isEnd || isBlank) { // charge for reading the empty lines
		if err := c.take(access.Publish, 1); err != nil {
			return err
		}
	}
	switch {
	case isEnd && noMessages:
		c.w.WriteHeader(http.StatusOK)
	case isEnd:
	case isBlank, errors.Is(err, ErrBusy):
		c.writeLast(number, err)
	default:
		c.writeLast(number, malformed("the body ended in the middle"))
	}
	return nil
}

// blankCount counts the empty lines of a stream. Empty lines cost work but are not charged to the token's rate, so
// their number is bounded. A stream may have some for each line with a message, because some programs write them. It
// may have one more each second, because other programs keep a connection open with them.
type blankCount struct {
	began    time.Time
	n        int64 // empty lines; a long one counts as several
	messages int64 // lines with a message
}

// tooMany counts an empty line of the given size in bytes, and reports whether the stream has too many.
func (b *blankCount) tooMany(size int64) bool {
	b.n += 1 + size/blankLineBytes
	return b.n > blankLines+blankPerLine*b.messages+int64(time.Since(b.began)/time.Second)
}

var errBlank = malformed("there are more empty lines than a stream may hold")

// writeLast writes the last line of an answer: why the stream ends at the line with this number.
func (c *call) writeLast(number int, err error) {
	text, _ := encode(verdict{Line: number, Problem: c.problemOf(err)})
	_, _ = c.w.Write(text)
}

// batch holds messages that are scheduled together, with their results.
type batch struct {
	verdicts    []verdict // of all lines, valid or not
	messages    []bridge.NewMessage
	verdictOf   []int // for each message the index of its verdict
	extraCost   int   // to charge to the token's rate, besides one for each verdict
	storeFailed bool  // Redis could not store a message
}

// add reads one line. The verdict of an invalid line is its problem.
func (b *batch) add(c *call, number int, text []byte, tooLong bool) {
	v := verdict{Line: number}
	m, err := bridge.NewMessage{}, error(nil)
	if tooLong {
		err = tooLarge(int64(c.maxLineBytes()))
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
		b.messages, b.verdictOf = append(b.messages, m), append(b.verdictOf, len(b.verdicts))
	}
	b.verdicts = append(b.verdicts, v)
}

// parseLine reads an object of a batch.
func parseLine(text []byte) (bridge.NewMessage, error) {
	if len(text) > fewElements && json.Valid(text) { // parseLine reports the fault of other texts
		if err := checkElements(text, newMessageElements()); err != nil {
			return bridge.NewMessage{}, err
		}
	}
	l, err := message.Parse(text)
	switch {
	case errors.Is(err, message.ErrNotObject), errors.Is(err, message.ErrNotUTF8):
		return bridge.NewMessage{}, malformed("the line %v", err)
	case err != nil:
		return bridge.NewMessage{}, malformed("the line is not an object of known fields: %s", shape(err))
	}
	return l.Message(bridge.NewMessage{})
}

// shape returns the part of a decoding error that tells where an object is wrong. It leaves out every value.
func shape(err error) string {
	text := err.Error()
	if field, _, found := strings.Cut(text, ":"); found && len(field) < 40 && !strings.ContainsAny(field, "\"'\\") {
		return field
	}
	if strings.HasPrefix(text, "unknown field") {
		return cut(text)
	}
	return "it cannot be read"
}

// send schedules the messages of the valid lines, and fills in their verdicts.
func (b *batch) send(c *call) {
	if len(b.messages) == 0 {
		return
	}
	results, failed := c.client.SendBatch(c.Ctx, c.queue, b.messages)
	for i, index := range b.verdictOf {
		v, err := &b.verdicts[index], failed
		var r bridge.Receipt
		if err == nil {
			r, err = results[i].Receipt, results[i].Err
		}
		if err != nil {
			v.Problem = c.problemOf(err)
			b.storeFailed = b.storeFailed || v.Problem.Status >= http.StatusInternalServerError
			continue
		}
		v.receipt = receipt{ID: r.ID, Due: r.Due, Ready: r.Ready, Replaced: r.Replaced}
	}
}

// errEnded ends a stream whose last verdicts name the reason.
var errEnded = errors.New("the stream ended")

// awaitRate waits until the token's rate allows n messages. It waits no longer than Timeout, because the gateway does
// not notice a caller that hangs up meanwhile. The request does not count as busy while it waits. The wait ends when
// the token is no longer valid or the gateway stops. A changed rate takes effect within a second.
func (c *call) awaitRate(n int) error {
	for deadline := time.Now().Add(c.cfg.Timeout); ; {
		err := c.stillMay(access.Publish, []string{c.queue})
		if err != nil {
			return err
		}
		wait := c.Charge(access.Publish, n)
		if wait <= 0 {
			return c.Ctx.Err()
		}
		if time.Now().After(deadline) {
			return tooFast(wait)
		}
		c.busy.Add(-1)
		select {
		case <-time.After(min(wait, time.Second)):
		case <-c.stopping.Done():
			err = busy(ErrBusy, "the gateway is stopping: try again")
		case <-c.Ctx.Done():
			err = c.Ctx.Err()
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
	if err := c.awaitRate(len(b.verdicts) + b.extraCost); err != nil {
		if c.w.status != 0 {
			c.writeLast(b.verdicts[0].Line, err)
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
	if b.storeFailed {
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
