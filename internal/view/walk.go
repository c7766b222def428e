package view

import (
	"context"
	"iter"

	"github.com/redis/rueidis"
)

// Bounds of one page of a walk.
const (
	PageBytes   = 256 << 10
	PageEntries = 1000
)

// Pager decides how many entries the next page asks for: so many that they come to about Bytes, judged by the last
// page.
type Pager struct{ Count, Bytes int }

// NewPager returns a Pager for pages of about PageBytes. The first page is small.
func NewPager() Pager { return Pager{Count: 8, Bytes: PageBytes} }

// Seen tells the Pager the size of the last page. The next page asks for at most twice as many entries.
func (p *Pager) Seen(entries, bytes int) {
	p.Count = max(1, min(p.Bytes*entries/(bytes+1), 2*p.Count, PageEntries))
}

// Walk yields the entries of a stream from one ID to another (both included; "-" and "+" are the ends), oldest first,
// or newest first when backwards. It holds one page at a time. If an entry is added or deleted during the walk, the
// walk may or may not yield it.
func Walk(ctx context.Context, c rueidis.Client, key, from, to string, backwards bool) iter.Seq2[rueidis.XRangeSlice, error] {
	return WalkPages(ctx, c, key, from, to, backwards, NewPager())
}

// WalkPages is Walk with pages of another size.
func WalkPages(ctx context.Context, c rueidis.Client, key, from, to string, backwards bool,
	size Pager) iter.Seq2[rueidis.XRangeSlice, error] {
	return Sequence(func(give func(rueidis.XRangeSlice) error) error {
		for from, to, size := from, to, size; ; {
			page, err := ReadPage(ctx, c, key, from, to, size.Count, backwards)
			if err != nil {
				return err
			}
			bytes := 0
			for _, entry := range page {
				bytes += EntrySize(entry)
				if err := give(entry); err != nil {
					return err
				}
			}
			if len(page) < size.Count {
				return nil
			}
			size.Seen(len(page), bytes)
			if next := "(" + page[len(page)-1].ID; backwards {
				to = next
			} else {
				from = next
			}
		}
	})
}

// ReadPage returns at most count entries of a stream between two IDs, oldest first, or newest first when backwards. One
// round trip.
func ReadPage(ctx context.Context, c rueidis.Client, key, from, to string, count int,
	backwards bool) (page []rueidis.XRangeSlice, err error) {
	command := c.B().Xrange().Key(key).Start(from).End(to).Count(int64(count)).Build
	if backwards {
		command = c.B().Xrevrange().Key(key).End(to).Start(from).Count(int64(count)).Build
	}
	err = AskLong(ctx, c, Entries(command(), &page))
	return page, err
}

// ReadEach returns the entries with these IDs, in this order, and the bytes of all their fields and values. A missing
// entry has no ID. One round trip.
func ReadEach(ctx context.Context, c rueidis.Client, key string, ids []string) (found []rueidis.XRangeSlice, bytes int,
	err error) {
	replies, questions := make([][]rueidis.XRangeSlice, len(ids)), make([]Question, len(ids))
	for i, id := range ids {
		questions[i] = Entries(c.B().Xrange().Key(key).Start(id).End(id).Build(), &replies[i])
	}
	err = AskLong(ctx, c, questions...)
	found = make([]rueidis.XRangeSlice, len(ids))
	for i, list := range replies {
		if len(list) > 0 {
			found[i] = list[0]
			bytes += EntrySize(list[0])
		}
	}
	return found, bytes, err
}

// ReadEntry returns one entry by its ID; ok is false if it does not exist.
func ReadEntry(ctx context.Context, c rueidis.Client, key, id string) (entry rueidis.XRangeSlice, ok bool, err error) {
	page, err := ReadPage(ctx, c, key, id, id, 1, false)
	if err != nil || len(page) == 0 {
		return entry, false, err
	}
	return page[0], true, nil
}

// EntrySize returns the bytes of an entry's fields and values.
func EntrySize(entry rueidis.XRangeSlice) int {
	n := 0
	for _, f := range entry.FieldValues {
		n += len(f.Field) + len(f.Value)
	}
	return n
}
