package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
)

// Types of problems, for programs to branch on. They never change.
const (
	typeMalformed    = "urn:duestream:problem:malformed"
	typeInvalid      = "urn:duestream:problem:invalid"
	typeToken        = "urn:duestream:problem:token"
	typeForbidden    = "urn:duestream:problem:forbidden"
	typeRate         = "urn:duestream:problem:rate"
	typeNoRoute      = "urn:duestream:problem:no-route"
	typeMethod       = "urn:duestream:problem:method"
	typeNotFound     = "urn:duestream:problem:not-found"
	typeNotScheduled = "urn:duestream:problem:not-scheduled"
	typeNoGroup      = "urn:duestream:problem:no-group"
	typeDuplicate    = "urn:duestream:problem:duplicate"
	typeChanged      = "urn:duestream:problem:changed"
	typeDead         = "urn:duestream:problem:dead"
	typeLeft         = "urn:duestream:problem:left"
	typeTooLarge     = "urn:duestream:problem:too-large"
	typeMedia        = "urn:duestream:problem:media"
	typeBusy         = "urn:duestream:problem:busy"
	typeUnavailable  = "urn:duestream:problem:unavailable"
	typeUncertain    = "urn:duestream:problem:uncertain"
	typeFull         = "urn:duestream:problem:full"
	typeStore        = "urn:duestream:problem:store"
	typeInternal     = "urn:duestream:problem:internal"
)

// problem is an error in the form of RFC 9457. All texts of a problem are written in this package, and none by another
// program.
type problem struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Detail  string `json:"detail,omitempty"`
	Request string `json:"request_id,omitempty"`
	Reason  string `json:"reason,omitempty"` // of typeDead
	fault
	Errors []fault `json:"errors,omitempty"` // all faults, if there are several

	wait  time.Duration // for the header Retry-After; 0 = no such header
	cause error         // an error that names the faults, or one of the errors of a Call's methods
}

// Errors of a Call's methods, by which a mounted API chooses its answer.
var (
	ErrBusy     = errors.New("the gateway, or this token at it, has reached its limit of requests")
	ErrBodies   = errors.New("too many bodies of this token are being read")
	ErrAnswers  = errors.New("too many answers to this token wait to be read")
	ErrTooLarge = errors.New("the body is too large")
	ErrUnread   = errors.New("the body could not be read")
	ErrLate     = errors.New("the body arrived complete, but the time of the request was over")
)

// fault names a wrong field.
type fault struct {
	Field string `json:"field,omitempty"`
	Value string `json:"value,omitempty"`
	Limit string `json:"limit,omitempty"`
}

func (p *problem) Error() string { return p.Type + ": " + p.Detail }
func (p *problem) Unwrap() error { return p.cause }

// problems maps errors to problems. The first match counts.
var problems = []struct {
	err    error
	status int
	kind   string
	detail string
	wait   time.Duration
}{
	{access.ErrRefused, http.StatusUnauthorized, typeToken, "the token is unknown, revoked or expired", 0},
	{bridge.ErrNotDurable, http.StatusServiceUnavailable, typeUncertain, // before ErrDuplicate: an error may be both
		"the change was made, but Redis did not confirm the durability in time: repeat the request with the same ID",
		time.Second},
	{bridge.ErrDuplicate, http.StatusConflict, typeDuplicate,
		"a message has this ID, or had it within its dedup window", 0},
	{bridge.ErrUncertain, http.StatusServiceUnavailable, typeUncertain,
		"Redis did not answer: the change may have been made, or not", time.Second},
	{bridge.ErrNotScheduled, http.StatusNotFound, typeNotScheduled, "no such message is scheduled", 0},
	{bridge.ErrNoRecurrence, http.StatusNotFound, typeNotFound, "the queue has no recurrence of that name", 0},
	{bridge.ErrChanged, http.StatusConflict, typeChanged, "another client changed it at the same time", 0},
	{admin.ErrNoQueue, http.StatusNotFound, typeNotFound, "the queue is unknown: no client or worker has used it", 0},
	{admin.ErrNotFound, http.StatusNotFound, typeNotFound, "no message or dead letter has this ID", 0},
	{admin.ErrNoGroup, http.StatusNotFound, typeNoGroup, "the queue has no such group", 0},
	{bridge.ErrNoResult, http.StatusNotFound, typeNotFound, "no such message: it was cancelled or never scheduled, " +
		"or done without a result for this group, or its result has expired", 0},
	{bridge.ErrManyWaits, http.StatusServiceUnavailable, typeBusy,
		"this gateway has reached its limit of waits for results", time.Second},
	{bridge.ErrOldBridge, http.StatusServiceUnavailable, typeUnavailable,
		"a bridge is alive that does not serve this: upgrade or stop that bridge", 30 * time.Second},
	{bridge.ErrFull, http.StatusServiceUnavailable, typeFull, "Redis is full, and stored nothing", 30 * time.Second},
	{bridge.ErrUnavailable, http.StatusServiceUnavailable, typeUnavailable, "Redis is not available", time.Second},
	{bridge.ErrClosed, http.StatusServiceUnavailable, typeUnavailable, "the gateway is stopping", time.Second},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, typeUnavailable, "Redis did not answer in time",
		time.Second},
	{context.Canceled, http.StatusServiceUnavailable, typeUnavailable, "the request was cancelled", time.Second},
	{bridge.ErrDenied, http.StatusInternalServerError, typeStore, "Redis does not allow the gateway to do this", 0},
	{bridge.ErrWrongType, http.StatusInternalServerError, typeStore, "a key of the queue has another Redis type", 0},
	{bridge.ErrUnsupported, http.StatusInternalServerError, typeStore, "the Redis server cannot do this", 0},
	{bridge.ErrUntrusted, http.StatusServiceUnavailable, typeUnavailable, "Redis is not available", time.Second},
}

// problemOf returns the problem that a caller gets for an error. An unknown error becomes typeInternal, and only the
// log shows it.
func problemOf(err error) *problem {
	p := &problem{}
	if errors.As(err, &p) {
		copied := *p // because several requests may share the problem
		copied.addFaults(copied.cause)
		return &copied
	}
	var invalid *bridge.InvalidError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge(large.Limit)
	case errors.As(err, &invalid):
		p = &problem{Type: typeInvalid, Status: http.StatusUnprocessableEntity}
		p.addFaults(err)
		return p
	case errors.Is(err, bridge.ErrInvalid):
		return &problem{Type: typeInvalid, Status: http.StatusUnprocessableEntity, Detail: "a value is not allowed"}
	}
	for _, k := range problems {
		if errors.Is(err, k.err) {
			return &problem{Type: k.kind, Status: k.status, Detail: k.detail, wait: k.wait}
		}
	}
	return &problem{Type: typeInternal, Status: http.StatusInternalServerError}
}

func tooLarge(limit int64) *problem {
	return &problem{Type: typeTooLarge, Status: http.StatusRequestEntityTooLarge, Detail: "the body is too large",
		cause: ErrTooLarge, fault: fault{Field: "body", Limit: sizeLimit(limit)}}
}

// addFaults adds the faults that a tree of errors names.
func (p *problem) addFaults(err error) {
	all := faults(err)
	if len(all) == 0 {
		return
	}
	p.fault = all[0]
	if p.Detail == "" {
		p.Detail = p.Field + ": " + p.Limit
	}
	if len(all) > 1 {
		p.Errors = all
	}
}

// faults returns the faults that a tree of errors names.
func faults(err error) (all []fault) {
	if err == nil {
		return nil
	}
	if one, ok := err.(*bridge.InvalidError); ok { //nolint:errorlint // this function walks the tree of errors
		f := fault{one.Field, one.Value, one.Rule}
		if one.Field == "payload" || one.Field == "recurrence" { // the value may be confidential
			f.Value = ""
		}
		return []fault{f}
	}
	switch e := err.(type) { //nolint:errorlint // this function walks the tree of errors
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, faults(one)...)
		}
	case interface{ Unwrap() error }:
		return faults(e.Unwrap())
	}
	return all
}

// failed answers with the problem of an error, and logs the error if the status is 500 or above.
func (w *reply) failed(c *call, err error) {
	p := problemOf(err)
	w.logFailed(c, p, err)
	w.problem(p)
}

func (w *reply) logFailed(c *call, p *problem, err error) {
	if p.Status >= http.StatusInternalServerError && c.R.Context().Err() == nil {
		c.log.Warn("a request could not be answered", slog.String("request", w.id), slog.String("route", w.route),
			slog.Int("status", p.Status), slog.Any("error", err))
	}
}

// problem answers with a problem.
func (w *reply) problem(p *problem) {
	if w.status != 0 {
		return // a stream has begun, and reports the problem itself
	}
	p.Title, p.Request = http.StatusText(p.Status), w.id
	if p.wait > 0 {
		w.Header().Set("Retry-After", RetryAfter(p.wait))
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.json(p.Status, p)
}

// malformed returns the problem of a request that cannot be read.
func malformed(detail string, args ...any) error {
	return &problem{Type: typeMalformed, Status: http.StatusBadRequest, Detail: fmt.Sprintf(detail, args...)}
}

func sizeLimit(n int64) string { return fmt.Sprintf("must be at most %d bytes", n) }

// busy refuses a request because of a limit of the gateway. The cause is ErrBusy, or a more exact error.
func busy(cause error, detail string) *problem {
	return &problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second, Detail: detail, cause: cause}
}

// errBodies refuses a body of a token that has reached a limit of its bodies.
func errBodies(cause error) error {
	return busy(cause, "the bodies of this token have reached a limit of this gateway: try again")
}

// errAnswers refuses a request of a token that does not read its answers.
var errAnswers = busy(ErrAnswers, "too many answers to this token wait to be read: try again")

func tooFast(wait time.Duration) error {
	return &problem{Type: typeRate, Status: http.StatusTooManyRequests, wait: wait, Detail: "the token's rate is used up"}
}

func forbidden(verb access.Verb) error {
	return &problem{Type: typeForbidden, Status: http.StatusForbidden,
		Detail: "the token lacks the verb " + string(verb) + " on a queue of this request"}
}

// RetryAfter returns the value of the header Retry-After: a wait in whole seconds, rounded up.
func RetryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}

// cut returns the first 64 bytes of a caller's text, as valid UTF-8.
func cut(text string) string {
	if len(text) > 64 {
		text = text[:64] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
