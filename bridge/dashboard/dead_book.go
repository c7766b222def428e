package dashboard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file reads the dead letters for the pages that group them. All viewers share what was read.

// Bounds of the reading. A queue may hold so many letters that reading them all takes minutes.
const (
	letterStep  = 500 * time.Millisecond // of reading the newest letters of one queue
	lettersStep = 600 * time.Millisecond // of reading the newest letters of all queues
	letterEvery = 30 * time.Second       // a summary is this old before the letters are read again
	letterShare = 20                     // or this multiple of the time that the reading took
	letterLimit = 2 * time.Minute        // the same, if the number of letters has not changed
	keepLetters = 10 * time.Minute       // a summary that nobody asked for
	sweepEvery  = time.Minute            // between two looks for such summaries
)

// letterBook holds the last summary of each queue's dead letters.
type letterBook struct {
	letters *admin.DeadLetters
	limit   time.Duration // letterLimit; shorter in tests

	mu     sync.Mutex
	queues map[string]*letterSummary
	swept  time.Time // when summaries that nobody asked for were last dropped
}

// letterSummary summarizes the dead letters of a queue that were read.
type letterSummary struct {
	reading sync.Mutex // held by the loop that reads

	// letterBook.mu guards the fields below.
	admin.LetterSummary
	at      time.Time // beginning of the reading, by the clock of this process
	err     error     // of the reading
	next    time.Time // when the letters may be read again
	used    time.Time
	changed time.Time // when a viewer of this process last changed letters of the queue
}

func newLetterBook(letters *admin.DeadLetters) *letterBook {
	return &letterBook{letters: letters, limit: letterLimit, queues: map[string]*letterSummary{}}
}

// entry returns the entry of a queue. Before it adds one, it drops those that nobody has used for long, if it has
// not looked for them lately. The caller holds mu.
func (b *letterBook) entry(queue string) *letterSummary {
	now := time.Now()
	e := b.queues[queue]
	if e == nil {
		if now.Sub(b.swept) > sweepEvery {
			b.swept = now
			maps.DeleteFunc(b.queues, func(_ string, e *letterSummary) bool { return now.Sub(e.used) > keepLetters })
		}
		e = &letterSummary{}
		b.queues[queue] = e
	}
	e.used = now
	return e
}

// change notes that a viewer has changed letters of a queue, so that the next look reads them again.
func (b *letterBook) change(queue string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entry(queue).changed = time.Now()
}

// changedSince reports whether a viewer has changed letters of a queue after a time.
func (b *letterBook) changedSince(queue string, t time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entry(queue).changed.After(t)
}

// deadSummary is a summary of a queue for a page.
type deadSummary struct {
	Queue string
	Total int64 // letters now
	admin.LetterSummary
	At  time.Time // when the letters of the summary were read; zero = not yet
	Err error     // why they cannot be read
}

// last returns the last summary of a queue that has total letters now.
func (b *letterBook) last(queue string, total int64) deadSummary {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(queue)
	return deadSummary{Queue: queue, Total: total, LetterSummary: e.LetterSummary, At: e.at, Err: e.err}
}

// read returns the summary of a queue that has total letters now. It reads the newest letters for about the step, if
// the last summary is stale, or if again is true, and nobody else is reading.
func (b *letterBook) read(
	ctx context.Context, queue string, total int64, step time.Duration, again bool,
) (deadSummary, error) {
	b.mu.Lock()
	e := b.entry(queue)
	again = again || e.isStale(total)
	b.mu.Unlock()
	if again && e.reading.TryLock() {
		defer e.reading.Unlock()
		begun := time.Now()
		survey := b.letters.Survey(queue, admin.LetterFilter{})
		err := survey.Read(ctx, step)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if lua.Temporary(err) || ctx.Err() != nil {
			return deadSummary{}, err
		}
		b.mu.Lock()
		e.LetterSummary, e.at, e.err = survey.Summary(), begun, err
		e.next = time.Now().Add(max(letterEvery, letterShare*time.Since(begun)))
		b.mu.Unlock()
	}
	return b.last(queue, total), nil
}

// isStale reports whether the letters must be read again: they were never read, a viewer has changed them, or their
// number differs and the pause after the last reading is over. The caller holds the mu of the book.
func (e *letterSummary) isStale(total int64) bool {
	isOther := int64(e.Total) != total
	return e.at.IsZero() || e.changed.After(e.at) || isOther && !time.Now().Before(e.next)
}

// isOld reports whether a summary has reached its age limit and may be read again. An equal number of letters does not
// prove that they are the same: one may have been added and another one deleted.
func (b *letterBook) isOld(queue string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, now := b.entry(queue), time.Now()
	return !e.at.IsZero() && now.Sub(e.at) > b.limit && !now.Before(e.next)
}

// deadState is a sample of the pages that group dead letters: one summary for each queue with letters, by name.
type deadState struct {
	queues []deadSummary
	all    bool // the letters of the one queue are being counted to the last
}

func (s deadState) mark() string {
	var mark []byte
	for _, one := range s.queues {
		mark = fmt.Appendf(mark, "%s %d %d %d %v;", one.Queue, one.Total, one.Looked, one.At.UnixNano(), one.Complete)
	}
	return string(mark) + "." // a sample without letters has a mark, too
}

// liveDead returns the look that all viewers of a queue's dead letters share; "" = of all queues. With all, the look
// reads further letters each time, until it has read them all.
func (d *Dashboard) liveDead(queue string, all bool) *live {
	l := &live{part: "dead-live", queue: queue}
	switch {
	case queue == "":
		r := &lettersReader{book: d.book, watcher: d.op.Watcher()}
		l.topic, l.look = "dead", r.look
	case all:
		var survey *admin.LetterSurvey
		var begun time.Time
		l.topic = "dead " + queue + " all"
		l.look = func(ctx context.Context) (sample, error) {
			if survey == nil || d.book.changedSince(queue, begun) {
				survey, begun = d.op.DeadLetters().Survey(queue, admin.LetterFilter{}), time.Now()
			}
			if err := survey.Read(ctx, letterStep); err != nil {
				return sample{}, err
			}
			got := survey.Summary()
			s := deadState{[]deadSummary{{queue, int64(got.Total), got, begun, nil}}, true}
			return sample{value: s, mark: s.mark()}, nil
		}
	default:
		l.topic = "dead " + queue
		l.look = func(ctx context.Context) (sample, error) {
			total, err := d.op.DeadLetters().Count(ctx, queue, admin.LetterFilter{})
			if err != nil {
				return sample{}, err
			}
			one, err := d.book.read(ctx, queue, int64(total), letterStep, d.book.isOld(queue))
			s := deadState{queues: []deadSummary{one}}
			return sample{value: s, mark: s.mark()}, err
		}
	}
	return l
}

// lettersReader looks at the letters of all queues. One loop calls look.
type lettersReader struct {
	book    *letterBook
	watcher *admin.Watcher
	totals  string // queues and their numbers of letters at the last look
}

// look reads the number of letters of each queue. It then reads the letters of queues with stale summaries, the oldest
// first, until the time of a step is used. It reads again only one summary that is merely old, so a quiet page costs
// little even if many queues have letters.
func (r *lettersReader) look(ctx context.Context) (sample, error) {
	samples, err := r.watcher.Look(ctx)
	if err != nil {
		return sample{}, err
	}
	var s deadState
	totals := ""
	for _, one := range samples {
		if one.Dead > 0 {
			s.queues = append(s.queues, r.book.last(one.Queue, one.Dead))
			totals += fmt.Sprintln(one.Queue, one.Dead)
		}
	}
	slices.SortStableFunc(s.queues, func(a, b deadSummary) int { return a.At.Compare(b.At) })
	rests := totals == r.totals
	r.totals = totals
	end := time.Now().Add(lettersStep)
	again := true // an old summary may be read
	for i, one := range s.queues {
		left := time.Until(end)
		if left > 0 {
			isOld := again && r.book.isOld(one.Queue)
			again = again && !isOld
			if s.queues[i], err = r.book.read(ctx, one.Queue, one.Total, left/4, isOld); err != nil {
				return sample{}, err
			}
		}
		rests = rests && int64(s.queues[i].LetterSummary.Total) == one.Total
	}
	slices.SortFunc(s.queues, func(a, b deadSummary) int { return strings.Compare(a.Queue, b.Queue) })
	return sample{value: s, mark: s.mark(), rests: rests}, nil
}
