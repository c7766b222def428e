package dashboard

import (
	"sync"
	"time"
)

// turns bounds the looks at messages: whatever the number of messages that are watched, there is at most one look in
// each busyInterval, besides the first look at a message.
type turns struct {
	mu   sync.Mutex
	last time.Time
}

// take reports whether a look may begin now.
func (t *turns) take() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.last) < busyInterval*3/4 { // less than the interval, so that a single watcher always gets its turn
		return false
	}
	t.last = time.Now()
	return true
}
