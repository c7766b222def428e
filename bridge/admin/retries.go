package admin

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

// RetryGroup counts messages of a group that wait for a retry after errors of one kind.
type RetryGroup struct {
	Group string
	Error string // the common part: see LetterGroup.Error
	Count int
	Next  time.Time // the earliest time at which one of them is due
	// Since is the earliest time at which the attempt that failed last began for one of them; zero = not known. Earlier
	// attempts may have failed before.
	Since time.Time
}

// RetrySummary groups the retries of a queue.
type RetrySummary struct {
	Groups   []RetryGroup // the most frequent first
	Looked   int          // retries in the groups
	Complete bool         // all retries of the queue are in the groups
}

// retryLoad is the share of the server's time that a reading of retries may use.
const retryLoad = 0.3

// Retries groups the scheduled retries of a queue by group and error. It reads at most this number of retries, in no
// order. After the time limit it returns the retries that it has read so far.
func (a *Admin) Retries(ctx context.Context, queue string, most int, limit time.Duration) (RetrySummary, error) {
	var s RetrySummary
	found := map[RetryGroup]*RetryGroup{}
	filter := SearchFilter{Queues: []string{queue}, States: []State{StateRetrying}}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	progress, err := a.Search(bounded, filter, SearchOptions{Limit: most, Load: retryLoad}, func(h Hit) error {
		key := RetryGroup{Group: h.Group, Error: deadletter.FoldError(h.Error)}
		one := found[key]
		if one == nil {
			one = &RetryGroup{Group: key.Group, Error: key.Error, Next: h.Due}
			found[key] = one
		}
		one.Count++
		s.Looked++
		if h.Due.Before(one.Next) {
			one.Next = h.Due
		}
		if since := lua.EntryTime(h.Before); !since.IsZero() && (one.Since.IsZero() || since.Before(one.Since)) {
			one.Since = since
		}
		return nil
	})
	if err != nil && (bounded.Err() == nil || ctx.Err() != nil) {
		return s, err
	}
	s.Complete = progress.Complete
	for _, one := range found {
		s.Groups = append(s.Groups, *one)
	}
	slices.SortFunc(s.Groups, func(a, b RetryGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Group, b.Group), strings.Compare(a.Error, b.Error))
	})
	return s, nil
}
