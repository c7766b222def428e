package bulk

import (
	"errors"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Filter selects messages of a schedule; all fields that are set must match. The zero value selects every message that
// waits for its first delivery, or was redriven for all groups.
type Filter struct {
	IDs     []string          // one of these; empty = any
	Prefix  string            // the ID begins with it
	Headers map[string]string // it has all of these, with these values
	From    time.Time         // due then, or later
	Until   time.Time         // due before
	Retries bool              // also retries, for any group
	Group   string            // only retries for this group
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

// looksUp reports whether ZSCORE can find all selected messages: their IDs are known, and no retries are selected.
func (f Filter) looksUp() bool { return len(f.IDs) > 0 && !f.Retries && f.Group == "" }

// mayCease reports whether a message may cease to match while it keeps its ID: when it is moved or replaced.
func (f Filter) mayCease() bool { return len(f.Headers) > 0 || !f.From.IsZero() || !f.Until.IsZero() }

// pattern returns a glob that matches all selected members.
func (f Filter) pattern() string { return view.EscapeGlob(f.Prefix) + "*" }

// matches reports whether a member matches, apart from headers.
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

// hasHeaders reports whether a message has all headers of the filter.
func (f Filter) hasHeaders(headers map[string]string) bool {
	for name, want := range f.Headers {
		if got, there := headers[name]; !there || got != want {
			return false
		}
	}
	return true
}
