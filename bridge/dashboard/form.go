package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/written"
	"github.com/duestream/duestream/lua"
)

// This file shows the errors of a form beside its fields, with the typed values.

// fault is an error of a form.
type fault struct {
	Field string // name of the field; "" = the error is about the whole form
	Text  string
}

// fieldError is an error about a field of a form.
type fieldError struct {
	field string
	err   error
}

func (e *fieldError) Error() string { return e.field + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

// inField says that an error is about a field of the form; nil stays nil.
func inField(field string, err error) error {
	if err == nil {
		return nil
	}
	return &fieldError{field, err}
}

// faultsOf returns the faults that an error tells: one for each error of a tree of joined errors.
func faultsOf(err error) []fault {
	var inner []fault
	switch e := err.(type) {
	case nil:
		return nil
	case *fieldError:
		var invalid *bridge.InvalidError
		if errors.As(e.err, &invalid) {
			return []fault{{e.field, invalidText(invalid)}}
		}
		return []fault{{e.field, e.err.Error()}}
	case *bridge.InvalidError:
		return []fault{{strings.ReplaceAll(e.Field, " ", "_"), invalidText(e)}}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			inner = append(inner, faultsOf(one)...)
		}
	case interface{ Unwrap() error }:
		inner = faultsOf(e.Unwrap())
	}
	if slices.ContainsFunc(inner, func(f fault) bool { return f.Field != "" }) {
		return inner
	}
	return []fault{{Text: errorText(err)}}
}

// errorText returns an error in words for people in a browser.
func errorText(err error) string {
	if errors.Is(err, bridge.ErrFull) {
		return "Redis is full, and refuses new messages until memory is free. A change of one message was not made; a " +
			"larger change may be made in part. The page System shows which queue holds the most"
	}
	return err.Error()
}

// invalidText returns the error without the name of the field, beside which it is shown.
func invalidText(e *bridge.InvalidError) string { return fmt.Sprintf("%s %s", e.Value, e.Rule) }

// field is a field of a form, with the typed text.
type field struct{ Name, Value, Fault string }

// Field returns a field of the form on the page, with its fault. Its text is the typed one, or without one the
// parameter of the address.
func (f frame) Field(name string) field {
	one := field{Name: name}
	if f.q != nil {
		one.Value = f.q.query.Get(name)
	}
	for _, fault := range f.Faults {
		if fault.Field == name {
			one.Fault = fault.Text
		}
	}
	return one
}

// showForm answers with the page of an action's form, with the typed values, and reports whether it did. The error says
// why the page cannot be shown.
func (q *request) showForm(a action, preview any, problem error) (answered bool, err error) {
	for _, one := range []error{errForbidden, errReadOnly, errUnread} {
		if errors.Is(problem, one) {
			return false, nil
		}
	}
	if a.form == "" {
		return false, nil
	}
	for _, p := range pages {
		if p.path != a.form {
			continue
		}
		if !a.allQueues {
			if err := q.checkQueue(); err != nil {
				return false, err
			}
		}
		q.problem, q.preview = problem, preview
		data, err := p.show(q)
		if err != nil {
			return false, err
		}
		status := http.StatusOK
		if problem != nil {
			status = newFailure(problem).Status
		}
		q.render(status, p, data)
		return true, nil
	}
	return false, nil
}

// formDuration returns the duration in a field of the form or the address; empty = 0.
func (q *request) formDuration(field string) (time.Duration, error) {
	text := strings.TrimSpace(q.query.Get(field))
	if text == "" {
		return 0, nil
	}
	d, err := written.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, inField(field, lua.Invalid(field, text, "must be a duration, like 500ms, 15m, 1h30m or 7d"))
	}
	return d, nil
}
