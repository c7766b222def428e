package lua

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// The release of a pinned connection waited for answers of a server that hung, so a search that its viewer had stopped
// went on until the server answered. Now a connection without an answer is closed.
func TestAPinnedConnectionIsReleasedWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := s.Client(t, func(o *rueidis.ClientOption) { o.Dialer.KeepAlive = -1 }) // no pings, as in the bridge
	pinned, release := Pin(c)
	if err := pinned.Do(t.Context(), c.B().Ping().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	defer s.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := pinned.Do(ctx, c.B().Ping().Build()).Error(); err == nil {
		t.Fatal("a server that hangs answered")
	}
	released := make(chan struct{})
	go func() {
		release()
		close(released)
	}()
	select {
	case <-released:
	case <-time.After(time.Minute):
		t.Error("the connection is not released while the server hangs")
		s.Resume()
		<-released
	}
}
