package lmstfy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/gateway"
)

// failed is an error answer.
type failed struct {
	status int
	body   map[string]any
	wait   time.Duration // for the header Retry-After
}

func (f *failed) Error() string { return fmt.Sprint(f.status, " ", f.body) }

// failure returns an error answer with a text.
func failure(status int, text string) *failed {
	return &failed{status: status, body: map[string]any{"error": text}}
}

var errToken = failure(http.StatusUnauthorized, "invalid token")

// write answers in the form of lmstfy's server: JSON with sorted names, without a line end.
func write(w http.ResponseWriter, status int, body any) {
	if body == nil {
		w.WriteHeader(status)
		return
	}
	writeText(w, status, text(body, ""))
}

func writeText(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// text returns a value as JSON. If indent is not empty, each member is on a line of its own.
func text(value any, indent string) []byte {
	text, err := json.Marshal(value)
	if indent != "" {
		text, err = json.MarshalIndent(value, "", indent)
	}
	if err != nil {
		panic(err) // every answer of this package has a JSON form
	}
	return text
}

var errBusy = &failed{status: http.StatusServiceUnavailable, wait: time.Second,
	body: map[string]any{"error": "too many requests at the same time"}}

// answers maps errors to answers. The first match counts.
var answers = []struct {
	err    error
	answer *failed
}{
	{gateway.ErrBusy, errBusy},
	{gateway.ErrBodies, failure(http.StatusServiceUnavailable, "too many bodies of this token are being read: try again")},
	{gateway.ErrAnswers, failure(http.StatusServiceUnavailable,
		"too many answers to this token wait to be read: try again")},
	{gateway.ErrTooLarge, failure(http.StatusRequestEntityTooLarge, "body too large")},
	{gateway.ErrLate, temporary("the request took too long: try again")},
	{gateway.ErrUnread, failure(http.StatusBadRequest, "the body could not be read")},
	{access.ErrRefused, errToken},
	{bridge.ErrDenied, errInternal},
	{bridge.ErrWrongType, errInternal},
	{bridge.ErrUnsupported, errInternal},
	{bridge.ErrInvalid, errInternal},
	{bridge.ErrFull, temporary("the store is full")},
	{bridge.ErrNotDurable, temporary("the change was made, but the store did not confirm its durability")},
}

var errInternal = failure(http.StatusInternalServerError, "internal error")

// temporary returns an error answer after which clients repeat the call.
func temporary(text string) *failed {
	return &failed{status: http.StatusServiceUnavailable, wait: time.Second, body: map[string]any{"error": text}}
}

// answerTo returns the answer to an error. An error that is not in the table counts as a temporary error of Redis.
func answerTo(err error) *failed {
	var f *failed
	if errors.As(err, &f) {
		return f
	}
	for _, one := range answers {
		if errors.Is(err, one.err) {
			return one.answer
		}
	}
	return temporary("the store is not available")
}

// fail answers with an error. If the error comes from Redis, only the log shows its text.
func fail(log *slog.Logger, w http.ResponseWriter, r *http.Request, err error) {
	f := answerTo(err)
	if f.status >= http.StatusInternalServerError && f != errBusy && r.Context().Err() == nil {
		log.Warn("a request of lmstfy's API could not be answered", slog.String("method", r.Method),
			slog.Int("status", f.status), slog.Any("error", err))
	}
	if f.wait > 0 {
		w.Header().Set("Retry-After", gateway.RetryAfter(f.wait))
	}
	write(w, f.status, f.body)
}

// number reads an unsigned number of so many bits from the query. If the query has no such parameter, number returns
// otherwise.
func (c *call) number(name string, otherwise uint64, bits int) (uint64, error) {
	values := c.R.URL.Query()[name]
	if len(values) == 0 {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(values[0], 10, bits)
	if err != nil {
		return 0, failure(http.StatusBadRequest, "invalid "+name)
	}
	return n, nil
}

// seconds reads a duration in seconds, like number.
func (c *call) seconds(name string, otherwise uint64) (time.Duration, error) {
	n, err := c.number(name, otherwise, 32)
	return time.Duration(n) * time.Second, err
}
