package lookup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

func (r *rig) latencies() Latencies {
	r.T.Helper()
	l, err := ReadLatencies(r.T.Context(), r.Client, r.Prefix, r.Queue)
	if err != nil {
		r.T.Fatal(err)
	}
	return l
}

// record adds an entry to the history of a partition, at a time in ms, with events and their contents.
func (r *rig) record(partition int, ms int64, changes ...string) {
	r.T.Helper()
	key := lua.NewKeys(r.Prefix, lua.PartitionName(r.Queue, partition)).History
	r.Do(append([]string{"XADD", key, fmt.Sprint(ms, "-*"), "by", "worker w"}, changes...)...)
}

// inWords returns the count and the percentiles of a distribution, and how many waits are in its buckets.
func inWords(d Distribution) string {
	var full []string
	for i, n := range d.Buckets {
		if n > 0 {
			bound := "more"
			if i < len(latencyBounds) {
				bound = latencyBounds[i].String()
			}
			full = append(full, fmt.Sprint(bound, ":", n))
		}
	}
	return fmt.Sprint(d.Count, " ", d.P50, " ", d.P95, " ", d.P99, " ", strings.Join(full, " "))
}

// The latencies must be those that the records of all partitions tell. An acknowledgement by which a group skipped a
// retry of another group is no end of a delivery. A letter without a delivery, an entry with an ID of another program,
// and a due time that means "now" tell no wait.
func TestLatenciesAreThoseOfTheRecords(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.grow(3)
		const at = int64(1_790_000_000_000)
		end := at + 200_000
		entryAt := func(ms int64) string { return fmt.Sprintf("%d-0", end-ms) }
		r.record(0, end-9_000_000,
			"ready", fmt.Sprintf(`{"id":"retry","entry":"%s","group":"h","due_ms":"1"}`, entryAt(9_000_000)))
		for i := range 100 { // ready i + 1 ms late, and acknowledged 10 (i + 1) ms after that
			due := at + int64(1000*i)
			ready := due + int64(i) + 1
			entry := fmt.Sprintf("%d-0", ready)
			r.record(i%3, ready, "ready", fmt.Sprintf(`{"id":"m-%d","entry":"%s","due_ms":"%d"}`, i, entry, due))
			r.record(i%3, ready+10*int64(i+1), "acknowledged", fmt.Sprintf(`{"entry":"%s","group":"g"}`, entry))
		}
		r.record(0, end,
			"acknowledged", fmt.Sprintf(`{"entry":"%s","group":"g"}`, entryAt(9_000_000)),
			"acknowledged", fmt.Sprintf(`{"entry":"%s","group":"h"}`, entryAt(9_000_000)),
			"acknowledged", `{"entry":"5-1","group":"h"}`,
			"acknowledged", fmt.Sprintf(`{"entry":"%s","group":"h"}`, entryAt(-1000)))
		r.record(1, end,
			"retried", fmt.Sprintf(`{"entry":"%s","group":"h","idle_ms":"300"}`, entryAt(1000)),
			"snoozed", fmt.Sprintf(`{"entry":"%s","group":"h","idle_ms":"0"}`, entryAt(40)),
			"released", fmt.Sprintf(`{"entry":"%s","group":"h","idle_ms":"41"}`, entryAt(40)),
			"dead", fmt.Sprintf(`{"letter":"9-9","entry":"%s","group":"h","idle_ms":"10"}`, entryAt(40)),
			"dead", fmt.Sprintf(`{"letter":"9-9","entry":"%s","group":"h"}`, entryAt(40)),
			"dead", `{"letter":"9-9","group":"h","idle_ms":"10"}`)
		l := r.latencies()
		redistest.Want(t, "late", inWords(l.Late),
			"100 50ms 95ms 99ms 1ms:1 2ms:1 5ms:3 10ms:5 20ms:10 50ms:30 100ms:50")
		redistest.Want(t, "groups", len(l.Groups), 2)
		g, h := l.Groups[0], l.Groups[1]
		redistest.Want(t, "g", fmt.Sprint(g.Name, ", ", inWords(g.Start), ", ", inWords(g.Done)),
			"g, 0 0s 0s 0s , 100 500ms 950ms 990ms 10ms:1 20ms:1 50ms:3 100ms:5 200ms:10 500ms:30 1s:50")
		redistest.Want(t, "h", fmt.Sprint(h.Name, ", ", inWords(h.Start), ", ", inWords(h.Done)),
			"h, 4 30ms 700ms 700ms 1ms:1 50ms:2 1s:1, 2 0s 2h30m0s 2h30m0s 1ms:1 more:1")
		redistest.Want(t, "reach", fmt.Sprint(l.From.UnixMilli(), l.Until.UnixMilli(), l.Records, l.More),
			fmt.Sprint(end-9_000_000, end, 211, false))
		if _, err := json.Marshal(l); err != nil {
			t.Error(err)
		}
	})
}

// The latencies of a queue with workers must be read from what its scripts record.
func TestLatenciesOfAQueueAtWork(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		r.Policy(map[string]string{policy.SettingHistory: "1000", policy.SettingRetryMin: "60000"})
		redistest.Want(t, "records before the first message", fmt.Sprint(r.latencies().Records, r.latencies().Groups), "0 []")
		begin := time.Now()
		_, stop := r.start(stream.WorkerConfig{Handler: func(_ context.Context, m *stream.Message) error {
			if strings.HasPrefix(m.ID, "fails") {
				return errors.New("no")
			}
			return nil
		}})
		r.Ready("a", "b", "c", "fails-1", "fails-2")
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			groups := r.latencies().Groups
			ended := len(groups) == 1 && groups[0].Done.Count == 3 && groups[0].Start.Count == 2
			return ended, fmt.Sprintf("%+v", groups)
		})
		if err := stop(); err != nil {
			t.Error(err)
		}
		l, took := r.latencies(), view.Millis(time.Since(begin))
		if g := l.Groups[0]; g.Done.P99 > took || g.Start.P99 > took || l.Late.Count != 5 || l.Late.P99 > took {
			t.Errorf("the test took %s: %+v", took, l)
		}
		// The record cuts the time of a change to whole milliseconds, so From may be up to one before the test began.
		if l.From.After(l.Until) || l.Until.After(l.At) || l.At.Sub(l.From) > time.Duration(took)+time.Millisecond {
			t.Errorf("the records reach from %s to %s at %s", l.From, l.Until, l.At)
		}
	})
}

// A queue that keeps no history must be told apart from one without records.
func TestLatenciesOfAQueueWithoutHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for _, queue := range []string{r.Queue, "never-used"} {
		if _, err := ReadLatencies(t.Context(), r.Client, r.Prefix, queue); !errors.Is(err, ErrNoHistory) {
			t.Errorf("%s: %v", queue, err)
		}
	}
	if _, err := ReadLatencies(t.Context(), r.Client, r.Prefix, "no queue"); !errors.Is(err, lua.ErrInvalid) {
		t.Error(err)
	}
}

// Only the newest records may be read, however long the history is and however large its records are.
func TestLatenciesReadOnlyTheNewestRecords(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name        string
		entries     int
		errorBytes  int
		least, most int // records
	}{
		{"many records", 3000, 0, 999, 1000},
		{"large records", 1500, 1024, 200, 300},
	} {
		t.Run(one.name, func(t *testing.T) {
			r := newRig(t, redistest.Shared(t))
			r.grow(3)
			for i := range one.entries {
				r.record(i%3, 1_790_000_000_000+int64(i),
					"ready", fmt.Sprintf(`{"id":"m","error":"%s"}`, strings.Repeat("x", one.errorBytes)))
			}
			l := r.latencies()
			if l.Records < one.least || l.Records > one.most || !l.More {
				t.Errorf("%d records, more: %t", l.Records, l.More)
			}
			redistest.Want(t, "the newest is read", l.Until.UnixMilli(), 1_790_000_000_000+int64(one.entries)-1)
		})
	}
}
