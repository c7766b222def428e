package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// deadlines is a ResponseWriter that records the write deadline, and cancels the request after the first flush.
type deadlines struct {
	*httptest.ResponseRecorder
	mu      sync.Mutex
	last    time.Time
	set     int
	flushed context.CancelFunc
}

func (w *deadlines) SetReadDeadline(time.Time) error { return nil }

func (w *deadlines) SetWriteDeadline(at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.set = at, w.set+1
	return nil
}

func (w *deadlines) Flush() {
	if w.flushed != nil {
		w.flushed()
	}
}

// Between two writes, a stream and an export must have no write deadline. Regression: with HTTP/2 a deadline that
// passes ends the stream, even while nothing is written, so a browser lost its stream every ten seconds.
func TestAStreamHasNoDeadlineWhileItWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	r.schedule(r.Queue, "m-1", "needle")
	page, err := url.Parse(v.base)
	if err != nil {
		t.Fatal(err)
	}
	export := url.Values{"which": {whichAll}, "query": {"q=needle"}, "phase": {asText}}.Encode()
	for _, stream := range []struct{ method, address, form string }{
		{http.MethodGet, "/live-overview", ""}, {http.MethodGet, "/search-stream?q=needle", ""},
		{http.MethodPost, "/search-export", export},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req := httptest.NewRequestWithContext(ctx, stream.method, stream.address, strings.NewReader(stream.form))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for _, c := range v.http.Jar.Cookies(page) {
			req.AddCookie(c)
		}
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		if stream.address == "/live-overview" { // it has no end of its own
			w.flushed = cancel
		}
		r.dashboard.ServeHTTP(w, req)
		if w.set == 0 || !w.last.IsZero() || w.Body.Len() == 0 {
			t.Errorf("%s: the last of %d deadlines is %v\n%s", stream.address, w.set, w.last, w.Body)
		}
	}
}

// Close must wait for a change in flight, and a later change must be refused.
func TestCloseWaitsForChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if !r.dashboard.beginChange() {
		t.Fatal("a change was refused")
	}
	closed := make(chan struct{})
	go func() {
		_ = r.dashboard.Close()
		close(closed)
	}()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		allowed := r.dashboard.beginChange()
		if allowed {
			r.dashboard.inProgress.Done()
		}
		return !allowed, "changes are still accepted"
	})
	select {
	case <-closed:
		t.Error("Close did not wait for a change")
	default:
	}
	r.dashboard.inProgress.Done()
	<-closed
	if f := newFailure(errStops); f.Status != http.StatusServiceUnavailable {
		t.Errorf("a change after Close: %+v", f)
	}
}

// Shutdown must end a change that takes long when its context ends, and must wait for the end of the change.
func TestShutdownCutsOffChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if !r.dashboard.beginChange() {
		t.Fatal("a change was refused")
	}
	q := &request{Dashboard: r.dashboard, ctx: t.Context(), w: httptest.NewRecorder()}
	change, end := q.long()
	defer end()
	ended := make(chan struct{})
	go func() {
		<-change.Done()
		close(ended)
		r.dashboard.inProgress.Done()
	}()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := r.dashboard.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	select {
	case <-ended:
	default:
		t.Error("Shutdown did not wait for the change")
	}
}
