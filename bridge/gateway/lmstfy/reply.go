package lmstfy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
)

// failed is an error answer.
type failed struct {
	status int
	body   map[string]any
	wait   time.Duration // for the header Retry-After
}

func (f *failed) Error() string { return fmt.Sprint(f.status, " ", f.body) }

// failure returns an error answer with a text.
func failure(status int, text string) error {
	return &failed{status: status, body: map[string]any{"error": text}}
}

// ErrBusy: a gateway, or one token at it, has reached its limit of requests. Config.Hold and reads of a body after
// Config.Reading return it.
var ErrBusy = errors.New("as many requests are being answered as may be")

var errBusy = &failed{status: http.StatusServiceUnavailable, wait: time.Second,
	body: map[string]any{"error": ErrBusy.Error()}}

var errToken = failure(http.StatusUnauthorized, "invalid token")

func unknownToken(err error) error {
	if errors.Is(err, access.ErrRefused) {
		return errToken
	}
	return err
}

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

// text returns the JSON form of a value of ours. With an indent it has one member a line.
func text(value any, indent string) []byte {
	text, err := json.Marshal(value)
	if indent != "" {
		text, err = json.MarshalIndent(value, "", indent)
	}
	if err != nil {
		panic(err) // a value of ours always has a JSON form
	}
	return text
}

// fail answers with an error. A temporary error of Redis, or a full Redis, becomes 503, after which clients repeat
// the call. A lasting error (a missing right, a key of another type) becomes 500. Only the log shows the text of an
// error of Redis.
func fail(log *slog.Logger, w http.ResponseWriter, r *http.Request, err error) {
	f := &failed{}
	switch {
	case errors.As(err, &f):
	case errors.Is(err, ErrBusy):
		f = errBusy
	case errors.Is(err, bridge.ErrDenied), errors.Is(err, bridge.ErrWrongType), errors.Is(err, bridge.ErrUnsupported),
		errors.Is(err, bridge.ErrInvalid):
		f = &failed{status: http.StatusInternalServerError, body: map[string]any{"error": "internal error"}}
	case errors.Is(err, bridge.ErrFull):
		f = &failed{status: http.StatusServiceUnavailable, wait: time.Second, body: map[string]any{"error": "the store is full"}}
	case errors.Is(err, bridge.ErrNotDurable):
		f = &failed{status: http.StatusServiceUnavailable, wait: time.Second, body: map[string]any{
			"error": "it is done, and the store did not confirm the durability that is waited for"}}
	default:
		f = &failed{status: http.StatusServiceUnavailable, wait: time.Second, body: map[string]any{
			"error": "the store is not available"}}
	}
	if f.status >= http.StatusInternalServerError && f != errBusy && r.Context().Err() == nil {
		log.Warn("a request of lmstfy's API could not be answered", slog.String("method", r.Method),
			slog.Int("status", f.status), slog.Any("error", err))
	}
	if f.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(f.wait.Seconds())))))
	}
	write(w, f.status, f.body)
}

// number reads an unsigned number from the query. Without the parameter it returns otherwise.
func (c *call) number(name string, otherwise uint64, bits int) (uint64, error) {
	values := c.r.URL.Query()[name]
	if len(values) == 0 {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(values[0], 10, bits)
	if err != nil {
		return 0, failure(http.StatusBadRequest, "invalid "+name)
	}
	return n, nil
}

func (c *call) seconds(name string, otherwise uint64) (time.Duration, error) {
	n, err := c.number(name, otherwise, 32)
	return time.Duration(n) * time.Second, err
}
