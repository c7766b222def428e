package deadletter

import (
	"context"
	"iter"
	"math"
	"slices"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Stored is a dead letter in the form of its stream entry.
type Stored struct {
	Partition int
	Entry     rueidis.XRangeSlice
}

// Stored yields the letters within the filter's ages as stream entries, sorted by age. At an error it yields the error
// and stops. It does not see letters added after it began. Of the filter it applies OlderThan, NewerThan, Newest,
// After and UpTo; the caller checks the other fields.
func (d *DeadLetters) Stored(ctx context.Context, queue string, f Filter) iter.Seq2[Stored, error] {
	return view.Sequence(func(give func(Stored) error) error {
		walks, err := d.walks(ctx, queue, f)
		if err != nil {
			return err
		}
		return mergeLetters(walks, f.Newest, give)
	})
}

// letterWalk yields the dead letters of one partition, in order.
type letterWalk iter.Seq2[rueidis.XRangeSlice, error]

// smallestPage is the size in bytes of a partition's pages in a queue with many partitions.
const smallestPage = 16 << 10

// walks returns, by partition, a walk over the dead letters within the filter's ages. It is nil for a partition without
// dead letters.
func (d *DeadLetters) walks(ctx context.Context, queue string, f Filter) ([]letterWalk, error) {
	counts, err := view.ReadCounts(ctx, d.client, d.prefix, queue)
	if err != nil {
		return nil, err
	}
	pager := view.NewPager()
	pager.Bytes = max(view.PageBytes/counts.Latest(), smallestPage)
	return view.ReadPartitions(d.prefix, counts.Names(queue), func(partition int, keys lua.Keys) (letterWalk, error) {
		from, to, err := d.bounds(ctx, keys.Dead, f)
		if err != nil || to == "" {
			return nil, err
		}
		if f.After != "" {
			if from, to, err = f.behindAfter(partition, from, to); err != nil {
				return nil, err
			}
		}
		return letterWalk(view.WalkPages(ctx, d.client, keys.Dead, from, to, f.Newest, pager)), nil
	})
}

// behindAfter returns the part of a partition's range that comes after the letter After in the order of List. Letters
// of several partitions with the same ID come in the order of the partitions.
func (f Filter) behindAfter(partition int, from, to string) (string, string, error) {
	afterPartition, after, err := SplitLetter(f.After)
	if err != nil {
		return "", "", err
	}
	id, err := view.ParseEntryID(after)
	if err != nil {
		return "", "", err
	}
	after = id.String()
	if partition <= afterPartition {
		after = "(" + after
	}
	if !f.Newest {
		if least, err := view.ParseEntryID(from); from != "-" && (err != nil || id.Compare(least) < 0) {
			return from, to, err
		}
		return after, to, nil
	}
	most, err := view.ParseEntryID(to)
	if err == nil && to != most.String() { // only a time: all letters of that millisecond
		most.Seq = math.MaxUint64
	}
	if err != nil || most.Compare(id) < 0 {
		return from, to, err
	}
	return from, after, nil
}

// mergeLetters gives the letters of all walks, sorted by age, the newest first if newestFirst is true.
func mergeLetters(walks []letterWalk, newestFirst bool, give func(Stored) error) error {
	// head is the next letter of a walk.
	type head struct {
		Stored
		id   view.EntryID
		next func() (rueidis.XRangeSlice, error, bool)
	}
	var heads []*head // of the walks that have not ended
	advance := func(h *head) (more bool, err error) {
		h.Entry, err, more = h.next()
		if err == nil && more {
			h.id, err = view.ParseEntryID(h.Entry.ID)
		}
		return more && err == nil, err
	}
	for i, walk := range walks {
		if walk == nil {
			continue
		}
		next, stop := iter.Pull2(iter.Seq2[rueidis.XRangeSlice, error](walk))
		defer stop()
		h := &head{Stored: Stored{Partition: i}, next: next}
		more, err := advance(h)
		if err != nil {
			return err
		}
		if more {
			heads = append(heads, h)
		}
	}
	for len(heads) > 0 {
		first := 0
		for i, h := range heads {
			order := h.id.Compare(heads[first].id)
			if newestFirst {
				order = -order
			}
			if order < 0 {
				first = i
			}
		}
		if err := give(heads[first].Stored); err != nil {
			return err
		}
		more, err := advance(heads[first])
		if err != nil {
			return err
		}
		if !more {
			heads = slices.Delete(heads, first, first+1)
		}
	}
	return nil
}
