package sizes

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// lettersRig is a stream of dead letters, with a reader that counts them.
type lettersRig struct {
	*testing.T
	server *redistest.Server
	c      rueidis.Client
	dead   string
	reader *StateReader
}

func newLettersRig(t *testing.T) *lettersRig {
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	return &lettersRig{t, s, c, lua.NewKeys(prefix, "q").Dead, NewStateReader(c, prefix)}
}

// add adds letters, each of about 100 bytes.
func (r *lettersRig) add(n int, group, reason string) {
	r.Helper()
	queuetest.Do(r.T, r.c, "EVAL", `
		for i = 1, ARGV[1] do
			redis.call('XADD', KEYS[1], '*', 'id', 'm', 'payload', string.rep('p', 60), 'group', ARGV[2], 'reason', ARGV[3])
		end
		return 1`, "1", r.dead, fmt.Sprint(n), group, reason)
}

// read reads the state, and checks that the letters of all kinds and the unread ones add up to all letters.
func (r *lettersRig) read() PartitionState {
	r.Helper()
	states, err := r.reader.Read(context.Background(), []string{"q"})
	if err != nil {
		r.Fatal(err)
	}
	sum := states[0].Unread
	for _, n := range states[0].Letters {
		sum += n
	}
	redistest.Want(r, "letters of all kinds", sum, states[0].Dead)
	return states[0]
}

// pages returns how many pages of letters were read so far.
func (r *lettersRig) pages() int { return r.server.Calls(r)["xrevrange"] }

// Regression: if a user kept only the newest 5,000 letters with XTRIM, each scrape read all of them again.
func TestATrimmedStreamOfLettersIsNotReadAgainAtEachLook(t *testing.T) {
	t.Parallel()
	r := newLettersRig(t)
	r.add(3000, "g", "expired")
	r.add(3000, "g", "max_attempts")
	r.read()
	queuetest.Do(t, r.c, "XTRIM", r.dead, "MAXLEN", "5000")
	r.read() // the first time that letters are gone, all are read
	before := r.pages()
	for i := range 10 {
		r.add(30, "g", "dead_letter")
		queuetest.Do(t, r.c, "XTRIM", r.dead, "MAXLEN", "5000")
		s := r.read()
		redistest.Want(t, "expired", s.Letters[LetterKind{"g", "expired"}], int64(2000-30*(i+1)))
		redistest.Want(t, "dead_letter", s.Letters[LetterKind{"g", "dead_letter"}], int64(30*(i+1)))
	}
	if n := r.pages() - before; n > 50 {
		t.Errorf("%d pages for 10 looks, each at 30 new letters", n)
	}
	// If letters other than the oldest are deleted, the figures are right again once all letters have been read again.
	queuetest.Do(t, r.c, "EVAL", `
		for _, e in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 300)) do redis.call('XDEL', KEYS[1], e[1]) end
		return 1`, "1", r.dead)
	r.read()
	r.reader.caches["q"].letters.walked = time.Now().Add(-2 * letterWalks)
	s := r.read()
	redistest.Want(t, "dead_letter", s.Letters[LetterKind{"g", "dead_letter"}], 0)
	redistest.Want(t, "expired", s.Letters[LetterKind{"g", "expired"}], 1700)
}

// However many reads find them, only the newest 10,000 letters of a partition may be counted by group and reason.
func TestLettersOfManyReadsAreBounded(t *testing.T) {
	t.Parallel()
	r := newLettersRig(t)
	for i := range 4 {
		r.add(4000, "g", lua.Reasons()[i])
		r.read()
	}
	s := r.read()
	redistest.Want(t, "unread", s.Unread, 6000)
	redistest.Want(t, "letters of the last addition", s.Letters[LetterKind{"g", lua.Reasons()[3]}], 4000)
	redistest.Want(t, "letters of the second addition", s.Letters[LetterKind{"g", lua.Reasons()[1]}], 2000)
	if n := len(r.reader.caches["q"].letters.segments); n > 250 {
		t.Errorf("%d segments", n)
	}
}

// Another program may write letters with any groups and reasons. A bridge must remember only a limited number of kinds,
// with short names. Regression: it remembered a name of any size for each letter.
func TestForeignLettersMakeFewKinds(t *testing.T) {
	t.Parallel()
	r := newLettersRig(t)
	for i := range 5 {
		queuetest.Do(t, r.c, "EVAL", `
			for i = 1, 300 do
				redis.call('XADD', KEYS[1], '*', 'group', ARGV[1] .. i, 'reason', 'reason-' .. ARGV[1] .. i)
				redis.call('XADD', KEYS[1], '*', 'group', 'g', 'reason', 'why-' .. ARGV[1] .. i)
				redis.call('XADD', KEYS[1], '*', 'group', string.rep('g', 300) .. ARGV[1] .. i, 'reason', 'expired')
			end
			return 1`, "1", r.dead, fmt.Sprint("group-", i, "-"))
		r.read()
	}
	r.add(1, "", "expired")
	s := r.read()
	if len(s.Letters) > letterKinds+1 {
		t.Errorf("%d kinds", len(s.Letters))
	}
	redistest.Want(t, "letters of one group with unknown reasons", s.Letters[LetterKind{"g", OtherKind}], 1500)
	redistest.Want(t, "letters of groups with invalid names", s.Letters[LetterKind{OtherKind, "expired"}], 1500)
	for kind := range s.Letters {
		if strings.HasPrefix(kind.Reason, "reason-") || len(kind.Group) > 64 {
			t.Errorf("%.80q", kind)
		}
	}
	if n := s.Letters[LetterKind{OtherKind, OtherKind}]; n < 1000 {
		t.Errorf("%d letters of too many groups", n)
	}
}
