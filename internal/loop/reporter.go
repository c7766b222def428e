package loop

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/lua"
)

// Reporter logs the changes of state of an activity, one line each: when it starts to fail, when it fails for another
// reason, and when it works again. An activity may have parts, such as queues; it works again when no part fails any
// more. At level Info and above, each line "is failing" is followed by a line "works again" or "ended while it was
// failing", and neither comes without an "is failing" before it. Any number of goroutines may report.
type Reporter struct {
	Log      *slog.Logger // has the attributes of all lines
	Activity string       // begins the log messages: "drain"
	// Quiet says for which errors the line has debug level, because other code reports these errors; nil = for none.
	Quiet func(error) bool

	failing atomic.Bool // changes under mu

	mu     sync.Mutex
	kinds  map[string]string // failing part → the kind of its last error
	since  time.Time         // when the activity started to fail
	logged bool              // a line "is failing" was logged above debug level
}

// IsFailing reports whether the last report of any part was an error.
func (r *Reporter) IsFailing() bool { return r.failing.Load() }

// Trouble names the kinds of errors of the failing parts; "" if none fails.
func (r *Reporter) Trouble() string {
	if !r.IsFailing() {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(slices.Compact(slices.Sorted(maps.Values(r.kinds))), ", ")
}

// Report takes the result of a pass; nil = it succeeded.
func (r *Reporter) Report(err error) { r.ReportPart("", err) }

// ReportPart takes the result of a pass of one part.
func (r *Reporter) ReportPart(part string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.works(part)
		return
	}
	if len(r.kinds) == 0 {
		r.kinds, r.since = map[string]string{}, time.Now()
	}
	r.failing.Store(true)
	quiet, kind := r.Quiet != nil && r.Quiet(err), kindOf(err)
	known := slices.Contains(slices.Collect(maps.Values(r.kinds)), kind)
	if quiet && r.logged {
		kind, known = cmp.Or(r.kinds[part], kind), true // the kind that was logged stays
	}
	r.kinds[part] = kind
	if !known {
		r.logged = r.logged || !quiet
		hint := cmp.Or(lua.Hint(err), "this should not happen: please report it")
		r.Log.Log(context.Background(), level(slog.LevelError, quiet), r.Activity+" is failing",
			slog.Any("error", err), slog.String("hint", hint))
	}
}

func (r *Reporter) works(part string) {
	if _, failed := r.kinds[part]; !failed {
		return
	}
	delete(r.kinds, part)
	if len(r.kinds) == 0 {
		r.Log.Log(context.Background(), level(slog.LevelInfo, !r.logged), r.Activity+" works again",
			slog.Duration("after", time.Since(r.since).Round(time.Millisecond)))
		r.logged = false
		r.failing.Store(false)
	}
}

// End is called when the activity ends, for example because another bridge takes over its queue. If the activity was
// failing, End logs that it has ended, because nobody will log that it works again.
func (r *Reporter) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kinds) == 0 {
		return
	}
	r.Log.Log(context.Background(), level(slog.LevelInfo, !r.logged), r.Activity+" ended while it was failing",
		slog.Duration("after", time.Since(r.since).Round(time.Millisecond)))
	clear(r.kinds)
	r.logged = false
	r.failing.Store(false)
}

// level returns the level of a line: debug if it is quiet, else the given level.
func level(normal slog.Level, quiet bool) slog.Level {
	if quiet {
		return slog.LevelDebug
	}
	return normal
}

// kindOf returns the kind of an error. Errors of one kind are logged once, although their texts differ.
func kindOf(err error) string {
	for _, kind := range []error{
		lua.ErrFull, lua.ErrWrongType, lua.ErrDenied, lua.ErrUnsupported, lua.ErrNoGroup, lua.ErrUnavailable,
		context.DeadlineExceeded,
	} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	for {
		inner := errors.Unwrap(err)
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			inner = several.Unwrap()[0]
		}
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
