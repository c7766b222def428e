package inspect

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of a StateReader's memory of dead letters.
const (
	letterSegment = 100         // letters that are dropped together
	letterKinds   = 200         // groups and reasons of a partition; further ones are OtherKind
	letterCheap   = 64 << 10    // bytes of letters that are read again whenever some are gone;
	letterWalks   = time.Minute // more are read again at most once in this time
)

// LetterKind is a class of dead letters: their group, "" if the letter names none, and a reason of the protocol.
type LetterKind struct{ Group, Reason string }

// OtherKind stands for reasons that the protocol does not know, for illegal group names, and for both when a partition
// has too many kinds.
const OtherKind = "other"

func letterKindOf(e lua.Entry) LetterKind {
	kind := LetterKind{e.Group, OtherKind}
	if e.Group != "" && lua.CheckGroup(e.Group) != nil {
		kind.Group = OtherKind
	}
	if slices.Contains(lua.Reasons(), e.Reason) {
		kind.Reason = e.Reason
	}
	return kind
}

// letterCounts is the length of a stream of dead letters at the last look, and the counts of its newest letters by
// kind.
type letterCounts struct {
	length int64
	last   string    // ID of the newest letter
	walked time.Time // when all were read, or as many as one read may
	guess  bool      // some were gone since then, and assumed to be the oldest

	segments []*segment // newest first
	read     int64      // letters in all segments
	bytes    int
	kinds    map[LetterKind]int64
}

// segment is a run of consecutive letters.
type segment struct {
	n     int64
	bytes int
	kinds map[LetterKind]int64
}

func newLetterCounts() *letterCounts {
	return &letterCounts{last: "0-0", kinds: map[LetterKind]int64{}}
}

// add counts a letter that is older than all segments.
func (l *letterCounts) add(kind LetterKind, size int) {
	if len(l.segments) == 0 || l.segments[len(l.segments)-1].n >= letterSegment {
		l.segments = append(l.segments, &segment{kinds: map[LetterKind]int64{}})
	}
	l.count(l.segments[len(l.segments)-1], kind, 1)
	l.segments[len(l.segments)-1].bytes += size
	l.bytes += size
}

func (l *letterCounts) count(s *segment, kind LetterKind, n int64) {
	if _, known := l.kinds[kind]; !known {
		if len(l.kinds) >= letterKinds {
			kind = LetterKind{OtherKind, OtherKind}
		}
		kind.Group = strings.Clone(kind.Group) // a slice of it would keep the whole letter in memory
	}
	l.kinds[kind] += n
	s.kinds[kind] += n
	s.n, l.read = s.n+n, l.read+n
}

// addOlder adds the segments of older counts.
func (l *letterCounts) addOlder(older *letterCounts) {
	for _, s := range older.segments {
		last := len(l.segments) - 1
		if last < 0 || l.segments[last].n+s.n > letterSegment {
			l.segments, last = append(l.segments, &segment{kinds: map[LetterKind]int64{}}), last+1
		}
		for kind, n := range s.kinds {
			l.count(l.segments[last], kind, n)
		}
		l.segments[last].bytes += s.bytes
		l.bytes += s.bytes
	}
}

// keep drops the oldest letters until no more than most are left. Within the last segment it drops arbitrary ones, as
// if they were the oldest.
func (l *letterCounts) keep(most int64) {
	for l.read > most {
		oldest := l.segments[len(l.segments)-1]
		gone := min(oldest.n, l.read-most)
		if gone == oldest.n {
			l.segments = l.segments[:len(l.segments)-1]
			l.bytes -= oldest.bytes
		}
		for kind, n := range oldest.kinds {
			n = min(n, gone)
			gone -= n
			l.read, oldest.n = l.read-n, oldest.n-n
			if oldest.kinds[kind] -= n; oldest.kinds[kind] == 0 {
				delete(oldest.kinds, kind)
			}
			if l.kinds[kind] -= n; l.kinds[kind] == 0 {
				delete(l.kinds, kind)
			}
		}
	}
}

// countLetters counts the dead letters by group and reason. If letters were only added since the last look, it reads
// the new ones. If others are gone, it reads all again, newest first, when they are few or were not read lately.
// Otherwise it assumes that the oldest are gone. That is true where the stream is trimmed, and needs no walk at each
// look.
func (r *stateRead) countLetters(ctx context.Context, p *statePartition) (map[LetterKind]int64, int64, error) {
	known, length := r.letters[p.name], p.figures.dead
	again := r.now.Sub(known.walked) >= letterWalks
	if len(p.fresh) == 0 && length == known.length && !(known.guess && again) {
		return maps.Clone(known.kinds), length - known.read, nil
	}
	next := func() *letterCounts {
		l := newLetterCounts()
		l.length, l.last, l.walked = length, known.last, known.walked
		if len(p.fresh) > 0 {
			l.last = p.fresh[0].ID
		}
		return l
	}
	l := next()
	end, err := r.readLetters(ctx, p, l, "("+known.last)
	if err == nil && end == lettersEnd {
		l.guess = known.guess || known.length+l.read != length
		if l.guess && (again || known.bytes <= letterCheap) {
			l = next()
			end, err = r.readLetters(ctx, p, l, "-")
			l.walked = r.now
		} else {
			l.addOlder(known)
		}
	}
	if err != nil {
		delete(r.letters, p.name)
		return nil, 0, err
	}
	l.keep(min(statsEntries, length))
	r.letters[p.name] = l
	if end == lettersBudget { // the next read begins here, with the budget that the others leave
		delete(r.letters, p.name)
	}
	return maps.Clone(l.kinds), length - l.read, nil
}

// lettersRead is the reason why reading letters ended.
type lettersRead int

const (
	lettersEnd    lettersRead = iota // there are no more
	lettersBound                     // the limit of one partition
	lettersBudget                    // the limit of all partitions together
)

// readLetters reads letters from the newest one back.
func (r *stateRead) readLetters(ctx context.Context, p *statePartition, l *letterCounts, from string) (lettersRead, error) {
	if from == "("+l.last || l.length == 0 {
		return lettersEnd, nil
	}
	for letter, err := range view.Walk(ctx, r.c, p.keys.Dead, from, l.last, true) {
		switch {
		case err != nil:
			return lettersEnd, err
		case r.letterBytes <= 0:
			return lettersBudget, nil
		case l.read >= statsEntries || l.bytes >= statsBytes:
			return lettersBound, nil
		}
		size := view.EntrySize(letter)
		r.letterBytes -= size
		l.add(letterKindOf(lua.ParseEntry(letter.ID, letter.FieldValues)), size)
	}
	return lettersEnd, nil
}
