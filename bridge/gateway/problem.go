package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway/lmstfy"
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

// problem is an error in the form of RFC 9457. Its texts are all written here: none comes from another program.
type problem struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Detail  string `json:"detail,omitempty"`
	Request string `json:"request_id,omitempty"`
	fault
	Errors []fault `json:"errors,omitempty"` // all faults, if there are several

	wait  time.Duration // for the header Retry-After
	cause error         // an error that names the faults
}

// fault names a wrong field.
type fault struct {
	Field string `json:"field,omitempty"`
	Value string `json:"value,omitempty"`
	Limit string `json:"limit,omitempty"`
}

func (p *problem) Error() string { return p.Type + ": " + p.Detail }
func (p *problem) Unwrap() error { return p.cause }

// Is makes errors.Is(err, lmstfy.ErrBusy) true for a refusal because a limit of the gateway is reached.
func (p *problem) Is(target error) bool { return target == lmstfy.ErrBusy && p.Type == typeBusy } //nolint:errorlint // it is one

// problems maps errors to problems. The first match counts.
var problems = []struct {
	is     error
	status int
	kind   string
	detail string
	wait   time.Duration
}{
	{bridge.ErrNotDurable, http.StatusServiceUnavailable, typeUncertain, // also beside ErrDuplicate
		"it is done, and Redis did not confirm the durability that the gateway waits for: say it again with the same ID",
		time.Second},
	{bridge.ErrDuplicate, http.StatusConflict, typeDuplicate, "a message has this ID, or had it within its dedup window", 0},
	{bridge.ErrUncertain, http.StatusServiceUnavailable, typeUncertain,
		"Redis did not answer: what was asked may have been done, or not", time.Second},
	{bridge.ErrNotScheduled, http.StatusNotFound, typeNotScheduled, "no such message is scheduled", 0},
	{bridge.ErrNoRecurrence, http.StatusNotFound, typeNotFound, "the queue has no recurrence of that name", 0},
	{bridge.ErrChanged, http.StatusConflict, typeChanged, "somebody else changed it at the same time", 0},
	{admin.ErrNoQueue, http.StatusNotFound, typeNotFound, "nobody has used the queue", 0},
	{admin.ErrNotFound, http.StatusNotFound, typeNotFound, "there is none", 0},
	{admin.ErrNoGroup, http.StatusNotFound, typeNoGroup, "the queue has no such group", 0},
	{bridge.ErrOldBridge, http.StatusServiceUnavailable, typeUnavailable,
		"a bridge is alive that does not serve this: it is being upgraded, or to be stopped", 30 * time.Second},
	{bridge.ErrFull, http.StatusServiceUnavailable, typeFull, "Redis is full, and took nothing", 30 * time.Second},
	{bridge.ErrUnavailable, http.StatusServiceUnavailable, typeUnavailable, "Redis is not available", time.Second},
	{bridge.ErrClosed, http.StatusServiceUnavailable, typeUnavailable, "the gateway stops", time.Second},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, typeUnavailable, "Redis did not answer in time", time.Second},
	{context.Canceled, http.StatusServiceUnavailable, typeUnavailable, "the request was given up", time.Second},
	{bridge.ErrDenied, http.StatusInternalServerError, typeStore, "Redis does not allow the gateway to do this", 0},
	{bridge.ErrWrongType, http.StatusInternalServerError, typeStore, "a key of the queue holds something else", 0},
	{bridge.ErrUnsupported, http.StatusInternalServerError, typeStore, "the Redis server cannot do this", 0},
	{bridge.ErrUntrusted, http.StatusServiceUnavailable, typeUnavailable, "Redis is not available", time.Second},
}

// problemOf returns the problem that a caller gets for an error. An unknown error becomes typeInternal, and only the
// log shows it.
func problemOf(err error) *problem {
	p := &problem{}
	if errors.As(err, &p) {
		whole := *p
		whole.addFaults(whole.cause)
		return &whole
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
		if errors.Is(err, k.is) {
			return &problem{Type: k.kind, Status: k.status, Detail: k.detail, wait: k.wait}
		}
	}
	return &problem{Type: typeInternal, Status: http.StatusInternalServerError}
}

func tooLarge(limit int64) *problem {
	return &problem{Type: typeTooLarge, Status: http.StatusRequestEntityTooLarge, Detail: "the body is too large",
		fault: fault{Field: "body", Limit: sizeLimit(limit)}}
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

func faults(err error) (all []fault) {
	if err == nil {
		return nil
	}
	if one, ok := err.(*bridge.InvalidError); ok { //nolint:errorlint // the tree is walked here
		f := fault{one.Field, one.Value, one.Rule}
		if one.Field == "payload" || one.Field == "recurrence" { // the value may be confidential
			f.Value = ""
		}
		return []fault{f}
	}
	switch e := err.(type) { //nolint:errorlint // likewise
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, faults(one)...)
		}
	case interface{ Unwrap() error }:
		return faults(e.Unwrap())
	}
	return all
}

// failed answers with the problem of an error, and logs an error of the server.
func (w *reply) failed(c *call, err error) {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError && c.r.Context().Err() == nil {
		c.log.Warn("a request could not be answered", slog.String("request", w.id), slog.String("route", w.route),
			slog.Int("status", p.Status), slog.Any("error", err))
	}
	w.problem(p)
}

// problem answers with a problem.
func (w *reply) problem(p *problem) {
	if w.status != 0 {
		return // a stream has begun, and reports the problem itself
	}
	p.Title, p.Request = http.StatusText(p.Status), w.id
	if p.wait > 0 {
		w.Header().Set("Retry-After", retryAfter(p.wait))
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.json(p.Status, p)
}
