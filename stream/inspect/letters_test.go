package inspect

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

func (r *lettersRig) pages() int { return r.server.Calls(r)["xrevrange"] }

// If a user keeps the newest 5,000 letters with XTRIM, each scrape used to read all of them again.
func TestATrimmedStreamOfLettersIsNotReadAgainAtEachLook(t *testing.T) {
	t.Parallel()
	r := newLettersRig(t)
	r.add(3000, "g", "expired")
	r.add(3000, "g", "max_attempts")
	r.read()
	queuetest.Do(t, r.c, "XTRIM", r.dead, "MAXLEN", "5000")
	r.read() // letters are gone for the first time: all are read
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
	// Others than the oldest are gone: that is noticed at the latest when all are read again.
	queuetest.Do(t, r.c, "EVAL", `
		for _, e in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 300)) do redis.call('XDEL', KEYS[1], e[1]) end
		return 1`, "1", r.dead)
	r.read()
	r.reader.letters["q"].walked = time.Now().Add(-2 * letterWalks)
	s := r.read()
	redistest.Want(t, "dead_letter", s.Letters[LetterKind{"g", "dead_letter"}], 0)
	redistest.Want(t, "expired", s.Letters[LetterKind{"g", "expired"}], 1700)
}

// The newest 10,000 letters of a partition are distinguished, however many reads find them.
func TestLettersOfManyReadsAreBounded(t *testing.T) {
	t.Parallel()
	r := newLettersRig(t)
	for i := range 4 {
		r.add(4000, "g", lua.Reasons()[i])
		r.read()
	}
	s := r.read()
	redistest.Want(t, "unread", s.Unread, 6000)
	redistest.Want(t, "of the last read", s.Letters[LetterKind{"g", lua.Reasons()[3]}], 4000)
	redistest.Want(t, "of the one before the last two", s.Letters[LetterKind{"g", lua.Reasons()[1]}], 2000)
	if n := len(r.reader.letters["q"].segments); n > 250 {
		t.Errorf("%d segments", n)
	}
}

// A program that can write letters could once make a bridge remember a name for each, of any size.
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
	redistest.Want(t, "of one group, for reasons that there are not", s.Letters[LetterKind{"g", OtherKind}], 1500)
	redistest.Want(t, "of groups that there cannot be", s.Letters[LetterKind{OtherKind, "expired"}], 1500)
	for kind := range s.Letters {
		if strings.HasPrefix(kind.Reason, "reason-") || len(kind.Group) > 64 {
			t.Errorf("%.80q", kind)
		}
	}
	if n := s.Letters[LetterKind{OtherKind, OtherKind}]; n < 1000 {
		t.Errorf("%d letters of too many groups", n)
	}
}
