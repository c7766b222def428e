package deadletter

import (
	"context"
	"iter"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
)

// Stored is a dead letter as its stream has it.
type Stored struct {
	Partition int
	Entry     rueidis.XRangeSlice
}

// Stored yields the letters that are of the filter's age as their streams have them, in the order of their age, and at most one
// error, at the end. How far it goes in each partition is settled before the first one. What else the filter says is for the
// caller to check.
func (d *DeadLetters) Stored(ctx context.Context, queue string, f Filter) iter.Seq2[Stored, error] {
	return func(yield func(Stored, error) bool) {
		walks, err := d.walks(ctx, queue, f)
		if err != nil {
			yield(Stored{}, err)
			return
		}
		for letter, err := range mergeLetters(walks, f.Newest) {
			if !yield(letter, err) {
				return
			}
		}
	}
}

// letterWalk is the walk through the dead letters of one partition.
type letterWalk struct {
	partition int
	entries   iter.Seq2[rueidis.XRangeSlice, error]
}

// walks returns a walk per partition that holds letters of the filter's age.
func (d *DeadLetters) walks(ctx context.Context, queue string, f Filter) ([]letterWalk, error) {
	counts, err := view.ReadCounts(ctx, d.client, d.prefix, queue)
	if err != nil {
		return nil, err
	}
	all := make([]letterWalk, counts.Latest())
	size := view.NewPager()
	size.Bytes = max(view.PageBytes/len(all), 16<<10)
	err = view.EachPartition(counts.Names(queue), func(i int, _ string) error {
		key := d.key(queue, i)
		from, to, err := d.bounds(ctx, key, f)
		if err == nil && to != "" {
			all[i] = letterWalk{i, view.WalkPages(ctx, d.client, key, from, to, f.Newest, size)}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	some := all[:0]
	for _, one := range all {
		if one.entries != nil {
			some = append(some, one)
		}
	}
	return some, nil
}

// mergeLetters yields the letters of all walks in the order of their age, and at most one error, at the end.
func mergeLetters(walks []letterWalk, newest bool) iter.Seq2[Stored, error] {
	type head struct {
		partition int
		found     rueidis.XRangeSlice
		at        view.EntryID
		next      func() (rueidis.XRangeSlice, error, bool)
	}
	return func(yield func(Stored, error) bool) {
		heads := make([]*head, 0, len(walks))
		advance := func(h *head) (more bool, err error) {
			h.found, err, more = h.next()
			if err == nil && more {
				h.at, err = view.ParseEntryID(h.found.ID)
			}
			return more && err == nil, err
		}
		for _, w := range walks {
			next, stop := iter.Pull2(w.entries)
			defer stop()
			h := &head{partition: w.partition, next: next}
			more, err := advance(h)
			if err != nil {
				yield(Stored{}, err)
				return
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
			h := heads[first]
			if !yield(Stored{h.partition, h.found}, nil) {
				return
			}
			more, err := advance(h)
			if err != nil {
				yield(Stored{}, err)
				return
			}
			if !more {
				heads = append(heads[:first], heads[first+1:]...)
			}
		}
	}
}
