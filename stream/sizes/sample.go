package sizes

import (
	"errors"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bytes of the newest entries of one partition.
const (
	newestBytesMost  = 4 << 10  // a look reads entries until they have this many bytes, so the last one may exceed it
	unknownEntrySize = 32 << 10 // assumed for a stream at which no look has seen entries
)

// QueueSample is a Watcher's view of a queue, over all its partitions: figures that one script reads for many
// partitions. Stats is more exact. It lacks NextDue, WaitForKey, Turns, LooksSeconds and Memory.
type QueueSample struct {
	Queue      string `json:"queue"`
	Partitions int    `json:"partitions"`
	Err        error  `json:"-"` // if set, the queue could not be read, and the figures are of the last successful look
	Sizes
	BehindMS   view.Millis   `json:"behind_ms"`            // Behind, under its name in JSON
	PerSecond  *QueueRates   `json:"per_second,omitempty"` // since the last look; nil at the first look
	Groups     []GroupSample `json:"groups"`
	MoreGroups int           `json:"more_groups,omitempty"` // groups that were not read
}

// QueueRates are numbers of messages per second. A nil rate is unknown, because the server does not tell the numbers.
type QueueRates struct {
	In   *float64 `json:"in"`   // scheduled, including retries, minus cancelled messages
	Out  *float64 `json:"out"`  // became ready
	Done *float64 `json:"done"` // deleted from the stream, because every group was done with them
}

// GroupSample is a Watcher's view of a group. If WaitingApprox is set, Waiting is a lower bound: many groups have a
// backlog, and their oldest entries are read in turns. Retrying is the number of the group's retries among the 100
// members of each partition that are due next; RetryingMore means that the schedule is longer.
type GroupSample struct {
	GroupSizes

	// These figures of GroupSizes have names of their own in JSON.
	Oldest       *view.Millis `json:"oldest_idle_ms,omitempty"` // OldestIdle
	OldestHeld   *view.Millis `json:"oldest_held_ms,omitempty"` // HeldLongest.Held
	Holder       string       `json:"holder,omitempty"`         // HeldLongest.Consumer
	RetryingMore bool         `json:"retrying_more,omitempty"`  // RetryingApprox, which is false here

	// Alive counts the consumers that read within the last minute. AliveApprox: all consumers count as alive, because
	// before Redis 7.2 an idle consumer looks like a dead one.
	Alive       int64 `json:"alive"`
	AliveApprox bool  `json:"alive_approx,omitempty"`

	// Done is the number of deliveries that ended per second. A delivery ends when it is acknowledged, when it fails,
	// or when the group skips it as another group's retry.
	Done *float64 `json:"done_per_second,omitempty"`
}

// QueueSizes returns the sizes without the fields that a Watcher adds to them.
func (s QueueSample) QueueSizes() QueueSizes {
	q := QueueSizes{Queue: s.Queue, Partitions: s.Partitions, Sizes: s.Sizes, MoreGroups: s.MoreGroups}
	q.Behind = s.BehindMS
	for _, g := range s.Groups {
		q.Groups = append(q.Groups, g.sizes())
	}
	return q
}

// sizes returns the figures of the group. A sample that was read from JSON has no timeouts.
func (g GroupSample) sizes() GroupSizes {
	f := g.GroupSizes
	f.OldestIdle = g.Oldest
	if f.HeldLongest == nil && g.OldestHeld != nil {
		f.HeldLongest = &PendingEntry{Held: *g.OldestHeld, Consumer: g.Holder}
	}
	return f
}

// sampleOf returns the sample of a queue from its partitions.
func sampleOf(queue string, parts []*partition) QueueSample {
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.err)
	}
	f := sum(parts)
	s := QueueSample{
		Queue:      queue,
		Partitions: len(parts),
		Err:        errors.Join(errs...),
		Sizes:      f.Sizes,
		BehindMS:   f.Behind,
		MoreGroups: f.moreGroups,
		Groups:     []GroupSample{},
	}
	for _, g := range f.groups {
		one := GroupSample{GroupSizes: *g, Oldest: g.OldestIdle, Alive: g.alive, AliveApprox: g.aliveApprox,
			RetryingMore: g.RetryingApprox}
		one.RetryingApprox = false
		if g.HeldLongest != nil {
			one.OldestHeld, one.Holder = &g.HeldLongest.Held, g.HeldLongest.Consumer
		}
		s.Groups = append(s.Groups, one)
	}
	return s
}

// spendNewestBytes returns how many bytes of the newest entries of a partition to read, and subtracts the bytes that
// are likely from the budget of this look.
func (r *reader) spendNewestBytes(p *partition) int {
	cache := r.cacheOf(p)
	switch {
	case cache.entrySize > 0:
		r.newestBytes -= max(newestBytesMost, cache.entrySize)
	case cache.looked: // the stream was empty
		r.newestBytes -= newestBytesMost
	default:
		r.newestBytes -= unknownEntrySize
	}
	return newestBytesMost
}

// noteNewestEntries sets Late, and keeps the mean size of the stream's newest entries.
func (r *reader) noteNewestEntries(p *partition) {
	cache := r.cacheOf(p)
	cache.looked = cache.looked || p.Entries == 0
	if len(p.glanced.Newest) == 0 {
		return
	}
	var late *view.Millis
	var newest time.Time
	bytes := 0
	for _, e := range p.glanced.Newest {
		bytes += e.Size
		if e.Due.UnixMilli() < view.EarliestDue {
			continue
		}
		ready := lua.EntryTime(e.ID)
		lateness := view.Millis(max(0, ready.Sub(e.Due)))
		late = longest(late, &lateness)
		if ready.After(newest) {
			newest = ready
		}
	}
	if r.now.Sub(newest) < lateFor {
		p.Late = late
	}
	cache.entrySize = max(1, bytes/len(p.glanced.Newest))
}
