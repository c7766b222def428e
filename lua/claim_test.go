package lua

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// claim claims the effect of message m for an hour.
func (b *testQueue) claim(claimer string) (token int64, held time.Duration) {
	b.Helper()
	token, held, err := Claim(b.ctx, b.c, b.k.Once("g", "m"), claimer, time.Hour, 2*time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	return token, held
}

func (b *testQueue) endClaim(claimer string, token int64, happened bool) (isLast bool) {
	b.Helper()
	isLast, err := EndClaim(b.ctx, b.c, b.k.Once("g", "m"), claimer, token, happened, 2*time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	return isLast
}

// One attempt at a time holds the claim of an effect. Each claim has a higher token than those before it, and only the
// last token can end a claim. A call that is repeated has the same result.
func TestClaim(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		key := b.k.Once("g", "m")
		first, held := b.claim("a")
		redistest.Want(b, "first claim", first > 0 && held == 0, true)
		again, _ := b.claim("a")
		redistest.Want(b, "token of the repeated claim", again, first)
		none, held := b.claim("b")
		redistest.Want(b, "token while another holds it", none, 0)
		if held <= 59*time.Minute || held > time.Hour {
			b.Errorf("it is held for %v", held)
		}
		for range 2 {
			redistest.Want(b, "given back", b.endClaim("a", first, false), true)
		}
		second, _ := b.claim("b")
		redistest.Want(b, "the token grows", second > first, true)
		for _, happened := range []bool{true, false} {
			redistest.Want(b, "a stale holder ends it", b.endClaim("a", first, happened), false)
			redistest.Want(b, "another claimer ends it", b.endClaim("a", second, happened), false)
		}
		_, held = b.claim("c")
		redistest.Want(b, "still held", held > 0, true)
		for range 2 {
			redistest.Want(b, "recorded", b.endClaim("b", second, true), true)
		}
		redistest.Want(b, "given back after the effect", b.endClaim("b", second, false), false)
		for _, claimer := range []string{"b", "c"} { // also a claim whose reply was lost
			token, held := b.claim(claimer)
			redistest.Want(b, "after the effect", token == 0 && held == 0, true)
		}
		if left := b.count("PTTL", key); left <= 0 || left > 2*60*60*1000 {
			b.Error("it stays for ", left)
		}

		// A record of the future: the token grows, although the clock is behind. The claim of a clock that was set back
		// does not hold for years.
		b.do("SET", key, "8999999999999999 0 a")
		next, _ := b.claim("b")
		redistest.Want(b, "token above a high one", next, int64(9_000_000_000_000_000))
		b.do("SET", key, "5 99999999999999 a")
		next, _ = b.claim("b")
		redistest.Want(b, "after the clock was set back", next > 5, true)
		for _, foreign := range []string{"", "x", "1", "1 2", "-1 done a", "nan done a", "99999999999999999 done a",
			"1e3 done a", strings.Repeat("9", 400) + " 0 a", "\x00"} { // each counts as no record
			b.do("SET", key, foreign)
			if token, _ := b.claim("b"); token < 1e15 || token > 9e15 {
				b.Errorf("%q: token %d", foreign, token)
			}
		}
		b.do("DEL", key)
		redistest.Want(b, "a record that is gone is given back", b.endClaim("b", second, false), false)
		redistest.Want(b, "keys", b.count("EXISTS", key), 0)
		redistest.Want(b, "an effect whose claim is gone is recorded", b.endClaim("b", second, true), true)
		token, held := b.claim("c")
		redistest.Want(b, "after it", token == 0 && held == 0, true)
		b.do("DEL", key)
		b.do("HSET", key, "a", "b")
		if _, _, err := Claim(b.ctx, b.c, key, "a", time.Hour, time.Hour); !errors.Is(err, ErrWrongType) {
			b.Error(err)
		}
	})
}

// The script refuses arguments that would make a record that no other attempt can read.
func TestClaimRefuses(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, words := range [][]string{
			{"claim", "a b", "0", "1000", "2000"}, {"claim", "", "0", "1000", "2000"},
			{"claim", strings.Repeat("a", 33), "0", "1000", "2000"},
			{"claim", "a", "0", "0", "2000"}, {"claim", "a", "0", "86400001", "2000"}, {"claim", "a", "0", "1000", "-1"},
			{"record", "a", "0", "0", "2000"}, {"record", "a", "x", "0", "2000"}, {"record", "a", "1e16", "0", "2000"},
		} {
			_, err := claimScript.integer(b.ctx, b.c, []string{b.k.Once("g", "m")}, words)
			redistest.Want(b, strings.Join(words, ","), err != nil && strings.Contains(err.Error(), "must be"), true)
		}
		redistest.Want(b, "keys", b.count("EXISTS", b.k.Once("g", "m")), 0)
	})
}
