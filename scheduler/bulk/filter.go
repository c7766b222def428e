package bulk

import (
	"errors"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Filter says which messages of a schedule are meant; what is set must hold together. The zero value is every message that waits
// for the first time, or was redriven for all groups.
type Filter struct {
	IDs     []string          // one of these; empty = any
	Prefix  string            // the ID begins with it
	Headers map[string]string // it has all of these, with these values
	From    time.Time         // due then, or later
	Until   time.Time         // due before
	Retries bool              // also what waits to be tried again, for whichever group
	Group   string            // only what waits to be tried again for this group
}

func (f Filter) validate() error {
	errs := []error{lua.CheckHeaders(f.Headers)}
	for _, id := range f.IDs {
		errs = append(errs, lua.CheckID(id))
	}
	if f.Prefix != "" && lua.CheckID(f.Prefix) != nil {
		errs = append(errs, lua.Invalid("prefix", f.Prefix, "must be the beginning of an ID: UTF-8 of at most %d bytes without "+
			"control characters", lua.MaxIDBytes))
	}
	if f.Group != "" {
		errs = append(errs, lua.CheckGroup(f.Group))
	}
	if !f.From.IsZero() && !f.Until.IsZero() && !f.From.Before(f.Until) {
		errs = append(errs, lua.Invalid("until", f.Until.Format(time.RFC3339Nano), "must be after %s",
			f.From.Format(time.RFC3339Nano)))
	}
	return errors.Join(errs...)
}

// looksUp says whether all that is meant can be looked up: the IDs are known, and no retries are meant.
func (f Filter) looksUp() bool { return len(f.IDs) > 0 && !f.Retries && f.Group == "" }

// mayCease says whether a message may cease to be meant while it keeps its ID: when it is moved, or replaced.
func (f Filter) mayCease() bool { return len(f.Headers) > 0 || !f.From.IsZero() || !f.Until.IsZero() }

// pattern is the glob of a scan that finds all that is meant.
func (f Filter) pattern() string { return view.EscapeGlob(f.Prefix) + "*" }

// matches says whether a member is meant, as far as can be told without its headers.
func (f Filter) matches(m lua.Member, due time.Time) bool {
	switch {
	case f.Group != "":
		if m.Kind == lua.MemberFirst || m.Group != f.Group {
			return false
		}
	case !f.Retries && m.Kind != lua.MemberFirst && m.Group != "":
		return false
	}
	return strings.HasPrefix(m.ID, f.Prefix) && (f.From.IsZero() || !due.Before(f.From)) &&
		(f.Until.IsZero() || due.Before(f.Until))
}

// hasHeaders says whether a message has the headers that are asked for.
func (f Filter) hasHeaders(headers map[string]string) bool {
	for name, want := range f.Headers {
		if got, there := headers[name]; !there || got != want {
			return false
		}
	}
	return true
}
