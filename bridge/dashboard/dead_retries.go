package dashboard

import (
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
)

// This file tells with which errors messages of a queue are being retried, long before they are dead letters.

// Bounds of a reading of retries. Viewers share each reading.
const (
	mostRetries = 1000
	retryStep   = time.Second
)

// retriesView is the table of retries.
type retriesView struct {
	admin.RetrySummary
	Queue string
	Err   error
}

// retriesOfQueue reads the table of retries. If that fails, the page of dead letters shows the error in place of the
// table. A change does not cause a new reading, because a reading may take a third of the server's time for a second.
func (q *request) retriesOfQueue(queue string) *retriesView {
	s, err := q.retriesOf.get(q.ctx, queue, time.Time{}, func() (admin.RetrySummary, error) {
		return q.shared().Retries(q.ctx, queue, mostRetries, retryStep)
	})
	return &retriesView{s, queue, err}
}

// Search returns the address of the retries of a row. The variable parts of the error differ, so the search is for the
// longest part between them.
func (v *retriesView) Search(g admin.RetryGroup) (string, error) {
	longest := ""
	for part := range strings.SplitSeq(g.Error, "#") {
		if part = strings.TrimSpace(part); len(part) > len(longest) {
			longest = part
		}
	}
	return href("search", "queue", v.Queue, "state", string(admin.StateRetrying), "group", g.Group, "error", longest)
}
