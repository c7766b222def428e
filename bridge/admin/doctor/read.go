package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of what one call reads: such a call takes a server about a millisecond.
const (
	pageItems   = 200
	pageBytes   = 256 << 10
	scriptItems = 100 // looked at one by one in a script, which itself reads 1 MiB at most
)

// callTimeout ends a call that hangs.
const callTimeout = 10 * time.Second

// do runs commands of one round trip, and classifies their errors. The first error counts; then there are no replies.
func (l *look) do(cmds ...rueidis.Completed) []rueidis.RedisResult {
	names := make([]string, len(cmds))
	for i, cmd := range cmds {
		names[i] = strings.Join(cmd.Commands()[:min(2, len(cmd.Commands()))], " ")
	}
	return ask(l, func(ctx context.Context) ([]rueidis.RedisResult, error) {
		replies := l.c.DoMulti(ctx, cmds...)
		for i, reply := range replies {
			if err := reply.Error(); err != nil && !rueidis.IsRedisNil(err) {
				return nil, lua.Classify(names[i], err)
			}
		}
		return replies, nil
	})
}

// pageOf returns how many elements of a key a call may read, by what they take on average. n is how many it has.
func (l *look) pageOf(key string, n int64) int64 {
	ctx, cancel := context.WithTimeout(l.ctx, callTimeout)
	defer cancel()
	bytes, err := l.c.Do(ctx, l.c.B().MemoryUsage().Key(key).Build()).AsInt64()
	if err != nil || bytes == 0 { // a server without MEMORY, or a user who may not use it
		return 20
	}
	return min(pageItems, max(1, pageBytes*n/bytes))
}

// denied says whether a look failed because the user, or the server, does not do something. Then that is left out, and said, and the
// look goes on.
func (l *look) denied(what string) bool {
	if !errors.Is(l.err, lua.ErrDenied) && !errors.Is(l.err, lua.ErrUnsupported) {
		return false
	}
	l.missing(what, l.err)
	l.err = nil
	return true
}

// missing says what could not be looked at: as a finding when it is for want of a right, else among what was left out.
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
	e.add(e.finding(notLookedAt, place{}, "", "", 1, plural(1, "look", "looks")+" left out", what+": "+short(err)))
}

// short returns the server's own words.
func short(err error) string {
	var re *rueidis.RedisError
	if errors.As(err, &re) {
		return re.Error()
	}
	return err.Error()
}

// scan goes through a hash or a sorted set by pages: names and values in turn. It ends early when take says so.
func (l *look) scan(page func(cursor uint64) rueidis.Completed, take func(elements []string) (more bool)) {
	for cursor := uint64(0); ; {
		one := read(l, page(cursor), rueidis.RedisResult.AsScanEntry)
		if cursor = one.Cursor; l.err != nil || !take(one.Elements) || cursor == 0 {
			return
		}
	}
}

// tour is how far a look has come through a key with many elements.
type tour struct {
	*look
	step, key string // as shown, and as named where it ended early
	all       int64
	one, many string // what an element is called
	about     string // "about " where the server may show an element twice
	looked    int64
}

// more counts elements that were looked at. It is false when that is enough, because it is to be quick.
func (t *tour) more(n int) bool {
	t.looked += int64(n)
	t.Progress(t.step, int(min(t.looked, t.all)), int(t.all))
	if t.Quick && t.looked >= quickItems && t.looked < t.all {
		t.leftOut("%s: looked at %s%d of %s (without --quick: all)", t.key, t.about, t.looked, plural(t.all, t.one, t.many))
		return false
	}
	return t.err == nil
}

// entryID reads an ID that the server wrote.
func entryID(text string) view.EntryID {
	id, _ := view.ParseEntryID(text)
	return id
}
