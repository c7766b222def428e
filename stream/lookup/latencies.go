package lookup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Latencies are distributions of waits, from the newest records of the history of a queue, over all its partitions.
// Changes that a history does not record are missing: see ReadStory.
type Latencies struct {
	At      time.Time        `json:"at"`             // when the history was read, by the server's clock
	From    time.Time        `json:"from,omitzero"`  // of the oldest record that was read; zero: there are no records yet
	Until   time.Time        `json:"until,omitzero"` // of the newest record
	Records int              `json:"records"`        // changes that were read
	More    bool             `json:"more,omitempty"` // there are older records, which were not read
	Bounds  []view.Millis    `json:"bounds_ms"`      // greatest wait of each bucket; the last bucket has no bound
	Late    Distribution     `json:"late"`           // due to ready, of first deliveries and retries
	Groups  []GroupLatencies `json:"groups"`         // sorted by name
}

// GroupLatencies are the waits of the entries of one group.
type GroupLatencies struct {
	Name string `json:"name"`

	// Start is the time from ready to the delivery. It is known only of deliveries that failed, were snoozed, or were
	// given back, because acknowledgements do not record it. If a consumer extended the delivery, Start ends at the
	// last extension.
	Start Distribution `json:"start"`

	// Done is the time from ready to the acknowledgement.
	Done Distribution `json:"done"`
}

// Distribution counts waits in buckets. A percentile is zero if Count is.
type Distribution struct {
	Count   int           `json:"count"`
	Buckets []int         `json:"buckets"` // for each bound, the waits above the bound before it; then those above all
	P50     view.Millis   `json:"p50_ms"`
	P95     view.Millis   `json:"p95_ms"`
	P99     view.Millis   `json:"p99_ms"`
	waits   []view.Millis // all of them, unordered, until they are counted
}

// latencyBounds are the bounds of the buckets. They are those of the metrics of durations.
var latencyBounds = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
}

// Bounds of one reading, of all partitions together. It ends with the entry that reaches one of them.
const (
	latencyEntries = 1000      // entries of histories; one holds up to 16 records
	latencyBytes   = 256 << 10 // of their fields and values
)

// ReadLatencies reads the newest records of the history of a queue: at most 1,000 entries, or about 256 KiB. If the
// queue has several partitions, each has an equal share of them. ErrNoHistory: the queue keeps no history. A history
// without records gives empty distributions.
func ReadLatencies(ctx context.Context, c rueidis.Client, prefix, queue string) (Latencies, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return Latencies{}, err
	}
	r := latencyReader{groups: map[string]*GroupLatencies{}}
	if err := r.read(ctx, c, prefix, queue, counts.Names(queue)); err != nil {
		return Latencies{}, fmt.Errorf("latencies of %s: %w", queue, err)
	}
	return r.conclude(), nil
}

// latencyReader collects the waits of all partitions.
type latencyReader struct {
	mu     sync.Mutex
	all    Latencies
	groups map[string]*GroupLatencies
}

func (r *latencyReader) read(ctx context.Context, c rueidis.Client, prefix, queue string, names []string) (err error) {
	if r.all.At, err = view.ServerTimeOf(ctx, c, lua.NewKeys(prefix, queue).History); err != nil {
		return err
	}
	err = view.EachPartition(names, func(_ int, name string) error {
		return r.readHistory(ctx, c, lua.NewKeys(prefix, name).History, len(names))
	})
	if err != nil || r.all.Records > 0 {
		return err
	}
	queuePolicy, _, err := policy.Read(ctx, c, prefix, queue, "")
	if err == nil && queuePolicy.History == 0 {
		err = ErrNoHistory
	}
	return err
}

// readHistory reads the newest records of one partition, up to its share of the bounds: 1/shares.
func (r *latencyReader) readHistory(ctx context.Context, c rueidis.Client, key string, shares int) error {
	records, more, err := newestRecords(ctx, c, key, shares)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.More = r.all.More || more
	r.add(records)
	return nil
}

// newestRecords reads one of shares equal shares of the newest records, from the history of one partition. They are
// sorted from the newest to the oldest. more: there are older ones.
func newestRecords(ctx context.Context, c rueidis.Client, key string, shares int) (
	records []lua.Told, more bool, err error,
) {
	mostEntries, mostBytes := max(1, latencyEntries/shares), latencyBytes/shares
	pages := view.Pager{Count: min(4, mostEntries), Bytes: min(32<<10, mostBytes)}
	entries, bytes := 0, 0
	for e, err := range view.WalkPages(ctx, c, key, "-", "+", true, pages) {
		if err != nil {
			return nil, false, err
		}
		if more = entries == mostEntries || bytes >= mostBytes; more {
			break
		}
		entries++
		bytes += view.EntrySize(e)
		told := lua.ParseTold(e.ID, e.FieldValues)
		slices.Reverse(told)
		records = append(records, told...)
	}
	return records, more, nil
}

// add adds the waits that the records of one partition tell. The records are sorted from the newest to the oldest.
func (r *latencyReader) add(records []lua.Told) {
	if len(records) == 0 {
		return
	}
	r.all.Records += len(records)
	if oldest := records[len(records)-1].At; r.all.From.IsZero() || oldest.Before(r.all.From) {
		r.all.From = oldest
	}
	if newest := records[0].At; newest.After(r.all.Until) {
		r.all.Until = newest
	}
	only := map[string]string{} // the only group of an entry that is a retry, by entry
	for _, record := range slices.Backward(records) {
		readyAt := lua.EntryTime(record.Entry)
		tells := record.Entry != "" && readyAt.UnixMilli() > view.EarliestDue // the ID of a foreign entry may be any number
		switch record.Event {
		case lua.EventReady:
			only[record.Entry] = record.Group
			if record.Due.UnixMilli() > view.EarliestDue {
				r.all.Late.add(record.At.Sub(record.Due))
			}
		case lua.EventAcknowledged:
			if group := only[record.Entry]; tells && (group == "" || group == record.Group) {
				r.group(record.Group).Done.add(record.At.Sub(readyAt))
			}
		case lua.EventRetried, lua.EventReleased, lua.EventSnoozed, lua.EventDead:
			if tells && record.Held {
				r.group(record.Group).Start.add(record.At.Add(-record.Idle).Sub(readyAt))
			}
		}
	}
}

// group returns the latencies of a group.
func (r *latencyReader) group(name string) *GroupLatencies {
	g := r.groups[name]
	if g == nil {
		g = &GroupLatencies{Name: name}
		r.groups[name] = g
	}
	return g
}

// conclude counts the waits.
func (r *latencyReader) conclude() Latencies {
	for _, bound := range latencyBounds {
		r.all.Bounds = append(r.all.Bounds, view.Millis(bound))
	}
	r.all.Late.count()
	r.all.Groups = []GroupLatencies{}
	for _, name := range slices.Sorted(maps.Keys(r.groups)) {
		g := r.groups[name]
		g.Start.count()
		g.Done.count()
		r.all.Groups = append(r.all.Groups, *g)
	}
	return r.all
}

// add adds a wait. The clock of a server may have been set back, so a wait may seem to be negative.
func (d *Distribution) add(wait time.Duration) { d.waits = append(d.waits, view.Millis(max(0, wait))) }

// count fills in the buckets and the percentiles.
func (d *Distribution) count() {
	d.Count, d.Buckets = len(d.waits), make([]int, len(latencyBounds)+1)
	slices.Sort(d.waits)
	for _, wait := range d.waits {
		bucket, _ := slices.BinarySearchFunc(latencyBounds, wait, func(bound time.Duration, wait view.Millis) int {
			return cmp.Compare(bound, time.Duration(wait))
		})
		d.Buckets[bucket]++
	}
	d.P50, d.P95, d.P99 = d.percentile(50), d.percentile(95), d.percentile(99)
	d.waits = nil
}

// percentile returns the least wait that is not less than percent of the waits.
func (d *Distribution) percentile(percent int) view.Millis {
	if len(d.waits) == 0 {
		return 0
	}
	rank := (len(d.waits)*percent + 99) / 100
	return d.waits[rank-1]
}
