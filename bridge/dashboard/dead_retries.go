package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
)

// This file tells with which errors messages of a queue are being retried, long before they are dead letters.

// Bounds of a reading of retries. Viewers share each reading.
const (
	mostRetries = 1000
	retryStep   = time.Second

	shownRetrying = 50 // queues with retries

	// After a reading for a token, the token's next reading waits restOfRetries times as long, at most mostRestOfRetries.
	// A reading uses up to a third of the server's time, so all readings for a token use a tenth.
	restOfRetries     = 2
	mostRestOfRetries = 5 * time.Second
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
	v := &retriesView{Queue: queue}
	ctx, end := context.WithTimeout(q.ctx, q.cfg.Timeout/2) // the rest of the time is for the page
	defer end()
	v.Err = q.retryTime.do(ctx, q.token(), restOfRetries, mostRestOfRetries, func() (err error) {
		v.RetrySummary, err = q.retriesOf.get(ctx, queue, time.Time{}, func() (admin.RetrySummary, error) {
			return q.shared().Retries(ctx, queue, mostRetries, retryStep)
		})
		return err
	})
	return v
}

// retryingQueues returns the queues with retries, the most first, from the look that the viewers of the overview share.
// Without that look it returns none, because the page is mainly about dead letters.
func (q *request) retryingQueues() []queueRow {
	l, err := liveOverview(q)
	if err != nil {
		return nil
	}
	value, err := q.sample(l)
	if err != nil {
		return nil
	}
	rows := slices.DeleteFunc(q.overview(value.(systemSample)).Rows, func(r queueRow) bool { return r.Retrying == 0 })
	slices.SortStableFunc(rows, func(a, b queueRow) int { return cmp.Compare(b.Retrying, a.Retrying) })
	return rows[:min(len(rows), shownRetrying)]
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
