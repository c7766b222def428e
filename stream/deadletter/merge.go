package deadletter

import (
	"context"
	"iter"
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

// Stored yields the letters within the filter's ages as stream entries, sorted by age, and at most one error, at the
// end. It does not see letters added after it began. It ignores the filter's other fields, which the caller checks.
func (d *DeadLetters) Stored(ctx context.Context, queue string, f Filter) iter.Seq2[Stored, error] {
	return view.Sequence(func(give func(Stored) error) error {
		walks, err := d.walks(ctx, queue, f)
		if err != nil {
			return err
		}
		return mergeLetters(walks, f.Newest, give)
	})
}

type letterWalk iter.Seq2[rueidis.XRangeSlice, error]

// walks returns, by partition, a walk over the dead letters within the filter's ages; nil if there are none.
func (d *DeadLetters) walks(ctx context.Context, queue string, f Filter) ([]letterWalk, error) {
	counts, err := view.ReadCounts(ctx, d.client, d.prefix, queue)
	if err != nil {
		return nil, err
	}
	size := view.NewPager()
	size.Bytes = max(view.PageBytes/counts.Latest(), 16<<10)
	return view.ReadPartitions(d.prefix, counts.Names(queue), func(_ int, keys lua.Keys) (letterWalk, error) {
		from, to, err := d.bounds(ctx, keys.Dead, f)
		if err != nil || to == "" {
			return nil, err
		}
		return letterWalk(view.WalkPages(ctx, d.client, keys.Dead, from, to, f.Newest, size)), nil
	})
}

// mergeLetters yields the letters of all walks, sorted by age.
func mergeLetters(walks []letterWalk, newest bool, give func(Stored) error) error {
	type head struct {
		Stored
		at   view.EntryID
		next func() (rueidis.XRangeSlice, error, bool)
	}
	var heads []*head
	advance := func(h *head) (more bool, err error) {
		h.Entry, err, more = h.next()
		if err == nil && more {
			h.at, err = view.ParseEntryID(h.Entry.ID)
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
			if order := h.at.Compare(heads[first].at); order < 0 && !newest || order > 0 && newest {
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
