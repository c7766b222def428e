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

// do runs commands of one round trip, and classifies their errors. The first error counts.
func (e *examination) do(ctx context.Context, cmds ...rueidis.Completed) ([]rueidis.RedisResult, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	names := make([]string, len(cmds))
	for i, cmd := range cmds {
		names[i] = strings.Join(cmd.Commands()[:min(2, len(cmd.Commands()))], " ")
	}
	replies := e.c.DoMulti(ctx, cmds...)
	for i, reply := range replies {
		if err := reply.Error(); err != nil && !rueidis.IsRedisNil(err) {
			return nil, lua.Classify(names[i], err)
		}
	}
	return replies, nil
}

// number runs a command that answers with an integer.
func (e *examination) number(ctx context.Context, cmd rueidis.Completed) (int64, error) {
	replies, err := e.do(ctx, cmd)
	if err != nil {
		return 0, err
	}
	return replies[0].AsInt64()
}

// pageOf returns how many elements of a key a call may read, by what they take on average. n is how many it has.
func (e *examination) pageOf(ctx context.Context, key string, n int64) int64 {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	bytes, err := e.c.Do(ctx, e.c.B().MemoryUsage().Key(key).Build()).AsInt64()
	if err != nil || bytes == 0 { // a server without MEMORY, or a user who may not use it
		return 20
	}
	return min(pageItems, max(1, pageBytes*n/bytes))
}

// denied says whether a user may not do something: then it is left out, and said.
func (e *examination) denied(err error, what string) bool {
	if !errors.Is(err, lua.ErrDenied) && !errors.Is(err, lua.ErrUnsupported) {
		return false
	}
	e.missing(what, err)
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
	e.report.Findings = append(e.report.Findings, *e.finding(notLookedAt, place{}, "", "", 1,
		plural(1, "look", "looks")+" left out", what+": "+short(err)))
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
func (e *examination) scan(ctx context.Context, page func(cursor uint64) rueidis.Completed,
	take func(elements []string) (more bool, err error)) error {
	for cursor := uint64(0); ; {
		replies, err := e.do(ctx, page(cursor))
		if err != nil {
			return err
		}
		one, err := replies[0].AsScanEntry()
		if err != nil {
			return err
		}
		more, err := take(one.Elements)
		if cursor = one.Cursor; err != nil || !more || cursor == 0 {
			return err
		}
	}
}

// entryID reads an ID that the server wrote.
func entryID(text string) view.EntryID {
	id, _ := view.ParseEntryID(text)
	return id
}
