package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// An operation that looks at a queue asks only the queue's own master. Regression: these operations asked the master of
// slot 0 for the time. While that master hung, an operation on a queue of any master failed after 5 s.
func TestLooksAtAQueueAskItsOwnMasterAlone(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	r := queuetest.New(t, c.Server())
	owner := func(key string) *redistest.Server { return c.Owner(c.Slot(key)) }
	away, masters := c.Owner(0), c.Masters()
	master := masters[0] // to be the master of the keys that all queues share, and of the queue
	if master == away {
		master = masters[1]
	}
	for i, own := 0, r.Prefix; ; i++ {
		r.Prefix = fmt.Sprint(own, "-", i)
		shared := lua.NewGlobals(r.Prefix)
		if owner(shared.Queues) == master && owner(shared.Defaults) == master && owner(shared.Bridges) == master {
			break
		}
	}
	for i := 0; i == 0 || owner(r.Keys.Stream) != master; i++ {
		r = r.On(fmt.Sprint("q-", i))
	}
	a := redistest.Must(admin.New(&bridge.Redis{Client: r.Client, Blocking: r.Blocking}, r.Prefix))
	if err := a.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	r.Kill("g", lua.ReasonDeadLetter, "refused", "dead")
	r.Ready("held")
	r.Take("g", "c", 1)
	r.Enqueue(lua.Item{ID: "scheduled", When: lua.After(time.Hour)})
	in, err := a.Import(t.Context(), r.Queue, "elsewhere", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	away.Pause()
	for name, look := range map[string]func(ctx context.Context) error{
		"stats": func(ctx context.Context) error {
			stats, err := a.Stats(ctx, r.Queue)
			return want(err, "scheduled", stats.Scheduled, int64(1))
		},
		"pending": func(ctx context.Context) error {
			all, err := a.Pending(ctx, r.Queue, "g", admin.PendingFilter{}, 10)
			return want(err, "pending", len(all), 1)
		},
		"peek": func(ctx context.Context) error {
			found, err := a.Peek(ctx, r.Queue, 10, false)
			return want(err, "scheduled", len(found.Next), 1)
		},
		"search": func(ctx context.Context) error {
			f := admin.SearchFilter{Queues: []string{r.Queue}, IDs: []string{"held"}}
			progress, err := a.Search(ctx, f, admin.SearchOptions{}, func(admin.Hit) error { return nil })
			return want(err, "hits", progress.Found, int64(1))
		},
		"locate": func(ctx context.Context) error {
			places, err := a.Locate(ctx, r.Queue, "held")
			return want(err, "places", len(places), 1)
		},
		"find": func(ctx context.Context) error {
			found, err := a.Find(ctx, "held", admin.FindOptions{Queues: []string{r.Queue}})
			return want(err, "places", len(found.Places), 1)
		},
		"dead letters by age": func(ctx context.Context) error {
			for _, err := range a.DeadLetters().List(ctx, r.Queue, admin.LetterFilter{NewerThan: time.Hour}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"reschedule": func(ctx context.Context) error {
			_, err := a.Bulk().Reschedule(ctx, r.Queue, admin.BulkFilter{}, time.Hour, time.Time{}, admin.BulkOptions{})
			return err
		},
		"export": func(ctx context.Context) error {
			_, err := a.Export(r.Queue).Time(ctx)
			return err
		},
		"import": func(ctx context.Context) error {
			if err := in.Remember(ctx, []string{"a"}); err != nil {
				return err
			}
			known, err := in.Known(ctx, []string{"a"})
			return want(err, "known", known, []bool{true})
		},
		"any server's time": func(ctx context.Context) error {
			_, err := a.Time(ctx, "")
			return err
		},
	} {
		for range 12 {
			if err := look(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
}
