package inspect

import (
	"context"
	"sync"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// searchPageBytes bounds a page of a stream that is searched for one message. It is about as much as a server writes to
// a connection at once. With pages of 192 KiB the search takes a fifth longer.
const searchPageBytes = 64 << 10

// streamSearch looks for one message in streams.
type streamSearch struct {
	c       rueidis.Client
	filters []rueidis.Client // one per direction; none: whole replies, through c
	id      string
	looked  func(entries int) // nil, or called with the number of entries examined; by several goroutines
}

// streamPage is one page of a stream: the entries of the message, and the page's bounds and size.
type streamPage struct {
	found          []lua.Entry
	entries, bytes int
	first, last    string // entry IDs, in the order of reading
}

func (s *streamSearch) page(ctx context.Context, key, from, to string, count int, backwards bool) (streamPage, error) {
	c := s.c
	switch {
	case len(s.filters) == 0:
	case backwards:
		c = s.filters[len(s.filters)-1]
	default:
		c = s.filters[0]
	}
	list, err := view.ReadPage(ctx, c, key, from, to, count, backwards)
	if err != nil || len(list) == 0 {
		return streamPage{}, err
	}
	p, filtered := summaryOf(list[len(list)-1])
	if filtered {
		list = list[:len(list)-1]
	} else {
		p = streamPage{entries: len(list), first: list[0].ID, last: list[len(list)-1].ID}
	}
	for _, one := range list {
		if !filtered {
			p.bytes += view.EntrySize(one)
		}
		if e := lua.ParseEntry(one.ID, one.FieldValues); e.ID == s.id {
			p.found = append(p.found, e)
		}
	}
	if s.looked != nil {
		s.looked(p.entries)
	}
	return p, nil
}

// all calls found once for every entry of the message after an entry ID, one call at a time, in any order. It returns
// the ID of the newest entry that it read. It reads from both ends at once until they meet, so that the server prepares
// one page while another is parsed. Then it reads entries added meanwhile.
func (s *streamSearch) all(ctx context.Context, key, after string, found func(lua.Entry) error) (newest string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := unreadRange{low: after, newest: after, found: found, known: map[string]bool{}}
	var readers sync.WaitGroup
	for _, backwards := range []bool{false, true} {
		readers.Go(func() {
			if failed := s.readTowards(ctx, key, backwards, &b); failed != nil {
				b.failed.Do(func() { err = failed }) // the first error: it stops the other reader
				cancel()
			}
		})
	}
	readers.Wait()
	if err == nil {
		b.low, b.high, b.met = b.newest, "", false
		err = s.readTowards(ctx, key, false, &b)
	}
	return b.newest, err
}

// unreadRange is the part of a stream that neither end has read yet.
type unreadRange struct {
	mu        sync.Mutex
	low, high string // entry IDs: between them nothing was read; "" is the end of the stream
	newest    string
	met       bool

	found  func(lua.Entry) error
	known  map[string]bool // entries passed to found
	failed sync.Once
}

func (b *unreadRange) between() (from, to string, met bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return openEnd(b.low, "-"), openEnd(b.high, "+"), b.met
}

// add notes a page, and passes the entries found in it on, unless the other side has found them. whole: it was the last
// page.
func (b *unreadRange) add(p streamPage, backwards, whole bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range p.found {
		if b.known[e.EntryID] {
			continue
		}
		b.known[e.EntryID] = true
		if err := b.found(e); err != nil {
			return err
		}
	}
	if p.entries > 0 {
		newest := p.last
		if backwards {
			b.high, newest = p.last, p.first
		} else {
			b.low = p.last
		}
		if compareEntries(newest, b.newest) > 0 {
			b.newest = newest
		}
	}
	b.met = b.met || whole
	return nil
}

// readTowards reads page after page, from one end towards the other.
func (s *streamSearch) readTowards(ctx context.Context, key string, backwards bool, b *unreadRange) error {
	for size := (view.Pager{Count: 8, Bytes: searchPageBytes}); ; {
		from, to, met := b.between()
		if met {
			return nil
		}
		p, err := s.page(ctx, key, from, to, size.Count, backwards)
		if err == nil {
			err = b.add(p, backwards, p.entries < size.Count)
		}
		if err != nil {
			return err
		}
		size.Seen(p.entries, p.bytes)
	}
}

// openEnd returns the exclusive end of a range of entries, or end if there is no ID.
func openEnd(id, end string) string {
	if id == "" {
		return end
	}
	return "(" + id
}

// compareEntries orders entry IDs. A malformed one comes first.
func compareEntries(a, b string) int {
	x, _ := view.ParseEntryID(a)
	y, _ := view.ParseEntryID(b)
	return x.Compare(y)
}
