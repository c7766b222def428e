package doctor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of one call. A call of this size takes a server about a millisecond.
const (
	pageItems   = 200
	pageBytes   = 256 << 10
	scriptItems = 100 // for a script that checks each item, and reads at most 1 MiB
)

// callTimeout ends a call that hangs.
const callTimeout = 10 * time.Second

// bytesOf returns about how many bytes of memory a key takes; 0 if the server has no MEMORY USAGE or the user may not
// run it.
func (l *look) bytesOf(key string) int64 {
	ctx, cancel := context.WithTimeout(l.ctx, callTimeout)
	defer cancel()
	bytes, _ := l.c.Do(ctx, l.c.B().MemoryUsage().Key(key).Build()).AsInt64()
	return bytes
}

// pageOf returns how many elements of a key one call may read, by their average size. n is the number of elements.
func (l *look) pageOf(key string, n int64) int64 {
	bytes := l.bytesOf(key)
	if bytes == 0 {
		return 20
	}
	return min(pageItems, max(1, pageBytes*n/bytes))
}

// denied reports whether the look failed because the user lacks a right or the server a command. Then it reports what
// could not be examined, and clears the error.
func (l *look) denied(what string) bool {
	if !errors.Is(l.err, lua.ErrDenied) && !errors.Is(l.err, lua.ErrUnsupported) {
		return false
	}
	l.missing(what, l.err)
	l.err = nil
	return true
}

// missing reports what could not be examined: as a finding if the user lacks a right, otherwise in Report.LeftOut.
func (e *examination) missing(what string, err error) {
	if !errors.Is(err, lua.ErrDenied) {
		e.leftOut("%s: this server does not do it (%v)", what, short(err))
		return
	}
	for i := range e.report.Findings {
		if f := &e.report.Findings[i]; f.Code == notLookedAt.Code {
			if text := what + ": " + short(err); !slices.Contains(f.Examples, text) {
				f.Count++
				f.Found = plural(f.Count, "look", "looks") + " left out"
				f.Examples = append(f.Examples, text)
			}
			return
		}
	}
	e.add(e.serverFinding(notLookedAt, 1, plural(1, "look", "looks")+" left out", what+": "+short(err)))
}

// short returns the text of a server's error without the words that this program added, or else the text of err.
func short(err error) string {
	var re *rueidis.RedisError
	if errors.As(err, &re) {
		return re.Error()
	}
	return err.Error()
}

// scan iterates over a hash or a sorted set in pages. take gets names and values in turn; it returns false to end the
// scan.
func (l *look) scan(page func(cursor uint64) rueidis.Completed, take func(elements []string) (more bool)) {
	for cursor := uint64(0); ; {
		var one rueidis.ScanEntry
		l.read(view.Scan(page(cursor), &one))
		if cursor = one.Cursor; l.err != nil || !take(one.Elements) || cursor == 0 {
			return
		}
	}
}

// progress reports how far a look through a key with many elements has come.
type progress struct {
	*look
	step, key string // names of the key, for Progress and for Report.LeftOut
	all       int64  // elements of the key
	one, many string // noun for an element
	about     string // "about " if the server may return an element twice
	looked    int64  // elements read so far
}

// more counts n elements that were read. It returns false if the look failed, or if enough were read for Config.Quick.
func (t *progress) more(n int) bool {
	t.looked += int64(n)
	t.Progress(t.step, int(min(t.looked, t.all)), int(t.all))
	if t.Quick && t.looked >= quickItems && t.looked < t.all {
		t.leftOut("%s: looked at %s%d of %s (without --quick: all)", t.key, t.about, t.looked, plural(t.all, t.one, t.many))
		return false
	}
	return t.err == nil
}

// entryID parses an entry ID from a reply of the server.
func entryID(text string) view.EntryID {
	id, _ := view.ParseEntryID(text)
	return id
}
