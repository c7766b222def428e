package stream

import (
	"context"
	"iter"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Bounds of one page of a walk.
const (
	pageBytes   = 256 << 10
	pageEntries = 1000
)

// pager decides how many entries the next page asks for: as many as come to about so many bytes, judging by the last page.
type pager struct{ count, bytes int }

func newPager() pager { return pager{count: 8, bytes: pageBytes} }

func (p *pager) seen(entries, bytes int) {
	p.count = max(1, min(p.bytes*entries/(bytes+1), 2*p.count, pageEntries))
}

// walk yields the entries of a stream from one ID to another (both included, "-" and "+" are the ends), oldest first, or newest first
// when backwards. It holds one page at a time. What is added or deleted meanwhile may be seen or not.
func walk(ctx context.Context, c rueidis.Client, key, from, to string, backwards bool) iter.Seq2[rueidis.XRangeSlice, error] {
	return walkPages(ctx, c, key, from, to, backwards, newPager())
}

func walkPages(ctx context.Context, c rueidis.Client, key, from, to string, backwards bool, size pager) iter.Seq2[rueidis.XRangeSlice, error] {
	return func(yield func(rueidis.XRangeSlice, error) bool) {
		size := size
		for {
			page, err := readPage(ctx, c, key, from, to, size.count, backwards)
			if err != nil {
				yield(rueidis.XRangeSlice{}, err)
				return
			}
			bytes := 0
			for _, entry := range page {
				bytes += entrySize(entry)
				if !yield(entry, nil) {
					return
				}
			}
			if len(page) < size.count {
				return
			}
			size.seen(len(page), bytes)
			if next := "(" + page[len(page)-1].ID; backwards {
				to = next
			} else {
				from = next
			}
		}
	}
}

func readPage(ctx context.Context, c rueidis.Client, key, from, to string, count int, backwards bool) ([]rueidis.XRangeSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	if backwards {
		page, err := c.Do(ctx, c.B().Xrevrange().Key(key).End(to).Start(from).Count(int64(count)).Build()).AsXRangeSlices()
		return page, lua.Classify("XREVRANGE "+key, err)
	}
	page, err := c.Do(ctx, c.B().Xrange().Key(key).Start(from).End(to).Count(int64(count)).Build()).AsXRangeSlices()
	return page, lua.Classify("XRANGE "+key, err)
}

// readEntry returns one entry by its ID; ok is false when it is not there.
func readEntry(ctx context.Context, c rueidis.Client, key, id string) (entry rueidis.XRangeSlice, ok bool, err error) {
	page, err := readPage(ctx, c, key, id, id, 1, false)
	if err != nil || len(page) == 0 {
		return entry, false, err
	}
	return page[0], true, nil
}

func entrySize(entry rueidis.XRangeSlice) int {
	n := 0
	for _, f := range entry.FieldValues {
		n += len(f.Field) + len(f.Value)
	}
	return n
}
