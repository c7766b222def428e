package sizes

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of a StateReader's memory of dead letters.
const (
	letterSegment = 100         // letters of a segment
	letterKinds   = 200         // kinds of a partition; further kinds count as OtherKind
	letterCheap   = 64 << 10    // bytes of letters that are all read again whenever some letters are gone
	letterWalks   = time.Minute // more bytes than that are read again at most once in this time
)

// LetterKind is a class of dead letters: their group, "" if the letter names none, and a reason of the protocol.
type LetterKind struct{ Group, Reason string }

// OtherKind stands for reasons that the protocol does not know, for illegal group names, and for both when a partition
// has too many kinds.
const OtherKind = "other"

func letterKindOf(l lua.Letter) LetterKind {
	kind := LetterKind{l.Group, OtherKind}
	if l.Group != "" && lua.CheckGroup(l.Group) != nil {
		kind.Group = OtherKind
	}
	if slices.Contains(lua.Reasons(), l.Reason) {
		kind.Reason = l.Reason
	}
	return kind
}

// letterCounts holds the counts of a partition's newest dead letters, by kind, as of the last look. The letters are
// counted in segments, so that the oldest can be subtracted when they are gone.
type letterCounts struct {
	length  int64     // of the stream of dead letters, at the last look
	last    string    // ID of the newest letter
	walked  time.Time // time of the last walk through all letters, or through as many as one read may take
	guessed bool      // letters disappeared since the last walk, and the oldest are assumed to be gone

	segments []*segment           // newest first
	counted  int64                // letters in all segments
	bytes    int                  // of these letters
	kinds    map[LetterKind]int64 // these letters, by kind
}

// segment holds the counts of up to letterSegment consecutive letters.
type segment struct {
	counted int64
	bytes   int
	kinds   map[LetterKind]int64
}

func newLetterCounts() *letterCounts {
	return &letterCounts{last: "0-0", kinds: map[LetterKind]int64{}}
}

// add counts a letter that is older than all segments.
func (l *letterCounts) add(kind LetterKind, size int) {
	oldest := l.oldestSegment(1)
	l.count(oldest, kind, 1)
	oldest.bytes += size
	l.bytes += size
}

// oldestSegment returns the oldest segment if it has room for n more letters, or else a new one.
func (l *letterCounts) oldestSegment(n int64) *segment {
	if len(l.segments) > 0 {
		if oldest := l.segments[len(l.segments)-1]; oldest.counted+n <= letterSegment {
			return oldest
		}
	}
	s := &segment{kinds: map[LetterKind]int64{}}
	l.segments = append(l.segments, s)
	return s
}

// count adds n letters of a kind to a segment.
func (l *letterCounts) count(s *segment, kind LetterKind, n int64) {
	if _, known := l.kinds[kind]; !known {
		if len(l.kinds) >= letterKinds {
			kind = LetterKind{OtherKind, OtherKind}
		}
		kind.Group = strings.Clone(kind.Group) // without the copy, the map would keep the whole letter in memory
	}
	l.kinds[kind] += n
	l.counted += n
	s.kinds[kind] += n
	s.counted += n
}

// addOlder adds the segments of older counts.
func (l *letterCounts) addOlder(older *letterCounts) {
	for _, s := range older.segments {
		oldest := l.oldestSegment(s.counted)
		for kind, n := range s.kinds {
			l.count(oldest, kind, n)
		}
		oldest.bytes += s.bytes
		l.bytes += s.bytes
	}
}

// keepNewest subtracts the oldest letters until no more than most are counted. A segment does not tell the order of its
// letters, so the last subtraction takes arbitrary letters of the oldest segment.
func (l *letterCounts) keepNewest(most int64) {
	for l.counted > most {
		oldest := l.segments[len(l.segments)-1]
		surplus := min(oldest.counted, l.counted-most)
		if surplus == oldest.counted {
			l.segments = l.segments[:len(l.segments)-1]
			l.bytes -= oldest.bytes
		}
		for kind, n := range oldest.kinds {
			n = min(n, surplus)
			surplus -= n
			l.counted -= n
			oldest.counted -= n
			subtract(oldest.kinds, kind, n)
			subtract(l.kinds, kind, n)
		}
	}
}

// subtract subtracts n letters of a kind. A kind without letters is deleted.
func subtract(kinds map[LetterKind]int64, kind LetterKind, n int64) {
	if kinds[kind] -= n; kinds[kind] == 0 {
		delete(kinds, kind)
	}
}

// FreshLetter is the greatest age of a dead letter that still indicates that messages are being given up.
const FreshLetter = 5 * time.Minute

// newestLetterSeen is the newest dead letter that a Watcher has seen in a partition.
type newestLetterSeen struct {
	count int64     // of dead letters at the last look
	added time.Time // zero: the letter was not fresh
}

// noteNewestLetter sets NewestDead.
func (r *reader) noteNewestLetter(p *partition) {
	seen := &r.cacheOf(p).newestDead
	if id, err := view.ParseEntryID(p.glanced.Letter); err == nil {
		seen.added = id.Time()
		r.newestBytes -= unknownEntrySize
	}
	if p.askedLetter && !p.glanced.NoRoom {
		seen.count = p.Dead
	}
	if age := view.Millis(max(0, r.now.Sub(seen.added))); p.Dead > 0 && age < view.Millis(FreshLetter) {
		p.NewestDead = &age
	}
}

// countLettersByGroup counts the letters per group, newest first, for Stats.
func (r *reader) countLettersByGroup(ctx context.Context, p *partition) error {
	if p.Dead == 0 || len(p.groups) == 0 {
		return nil
	}
	entries, bytes, approx := 0, 0, false
	for letter, err := range view.Walk(ctx, r.c, p.keys.Dead, "-", "+", true) {
		if err != nil {
			return err
		}
		if approx = entries >= walkEntries || bytes >= walkBytes; approx {
			break
		}
		if entries++; entries == 1 {
			p.NewestDead = ageOf(letter, r.now)
		}
		bytes += view.EntrySize(letter)
		if g := p.group(lua.ParseLetter(letter.ID, letter.FieldValues).Group); g != nil {
			g.dead++
		}
	}
	for _, g := range p.groups {
		g.deadApprox = approx
	}
	return nil
}

// ageOf returns the age of an entry; nil if its ID is malformed.
func ageOf(e rueidis.XRangeSlice, now time.Time) *view.Millis {
	id, err := view.ParseEntryID(e.ID)
	if err != nil {
		return nil
	}
	age := view.Millis(max(0, id.Age(now)))
	return &age
}

// uncountedLetter asks, for a scrape, for the newest dead letter that the cache has not counted. If there is none, no
// body is read.
func (r *reader) uncountedLetter(p *partition) view.Question {
	cache := r.cacheOf(p)
	if cache.letters == nil {
		cache.letters = newLetterCounts()
	}
	newest := r.c.B().Xrevrange().Key(p.keys.Dead).End("+").Start("(" + cache.letters.last).Count(1).Build()
	return view.Entries(newest, &p.letters)
}

// countLetters counts the dead letters by group and reason. If letters were only added since the last look, it reads
// the new letters. If counted letters are gone, it reads all letters again, newest first, when they are few or were not
// read lately. Otherwise it assumes that the oldest letters are gone. The assumption is true where the stream is
// trimmed, and saves a walk at each look.
func (r *reader) countLetters(ctx context.Context, p *partition) error {
	cache, length := r.cacheOf(p), p.Dead
	known := cache.letters
	walkIsDue := r.now.Sub(known.walked) >= letterWalks
	unchanged := len(p.letters) == 0 && length == known.length
	if unchanged && !(known.guessed && walkIsDue) {
		p.letterKinds, p.moreLetters = maps.Clone(known.kinds), length-known.counted
		return nil
	}
	startCounts := func() *letterCounts {
		counts := newLetterCounts()
		counts.length, counts.last, counts.walked = length, known.last, known.walked
		if len(p.letters) > 0 {
			counts.last = p.letters[0].ID
		}
		return counts
	}
	counts := startCounts()
	stop, err := r.readLetters(ctx, p, counts, "("+known.last)
	if err == nil && stop == stopAtEnd {
		lettersAreGone := known.length+counts.counted != length
		counts.guessed = known.guessed || lettersAreGone
		if counts.guessed && (walkIsDue || known.bytes <= letterCheap) {
			counts = startCounts()
			stop, err = r.readLetters(ctx, p, counts, "-")
			counts.walked = r.now
		} else {
			counts.addOlder(known)
		}
	}
	if err != nil {
		cache.letters = nil
		return err
	}
	counts.keepNewest(min(walkEntries, length))
	cache.letters = counts
	if stop == stopAtBudget { // other partitions have spent the budget: the next read counts this partition anew
		cache.letters = nil
	}
	p.letterKinds, p.moreLetters = maps.Clone(counts.kinds), length-counts.counted
	return nil
}

// letterStop is the reason why readLetters stopped.
type letterStop int

const (
	stopAtEnd    letterStop = iota // there are no more letters
	stopAtBound                    // the limit of one partition is reached
	stopAtBudget                   // the limit of all partitions together is reached
)

// readLetters counts the letters from l.last back to the ID from, newest first. A "(" before from excludes that letter.
func (r *reader) readLetters(ctx context.Context, p *partition, l *letterCounts, from string) (letterStop, error) {
	if from == "("+l.last || l.length == 0 {
		return stopAtEnd, nil
	}
	for letter, err := range view.Walk(ctx, r.c, p.keys.Dead, from, l.last, true) {
		switch {
		case err != nil:
			return stopAtEnd, err
		case r.letterBytes <= 0:
			return stopAtBudget, nil
		case l.counted >= walkEntries || l.bytes >= walkBytes:
			return stopAtBound, nil
		}
		size := view.EntrySize(letter)
		r.letterBytes -= size
		l.add(letterKindOf(lua.ParseLetter(letter.ID, letter.FieldValues)), size)
	}
	return stopAtEnd, nil
}
