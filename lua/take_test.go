package lua

import (
	"errors"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// take takes n tokens out of the bucket, or returns how long to wait for them.
func (b *testQueue) take(interval time.Duration, burst, n int) time.Duration {
	b.Helper()
	wait, err := Take(b.ctx, b.c, b.g.Bucket("d"), interval, burst, n)
	if err != nil {
		b.Fatal(err)
	}
	return wait
}

func (b *testQueue) putBack(interval time.Duration, burst, n int) {
	b.Helper()
	if err := PutBack(b.ctx, b.c, b.g.Bucket("d"), interval, burst, n); err != nil {
		b.Fatal(err)
	}
}

// look returns how long to wait for the next token; below 0 = for how long one has been there.
func (b *testQueue) look(interval time.Duration, burst int) time.Duration {
	b.Helper()
	wait, err := UntilNext(b.ctx, b.c, b.g.Bucket("d"), interval, burst)
	if err != nil {
		b.Fatal(err)
	}
	return wait
}

// A token bucket gives out a burst, then one token an interval; it can owe tokens, and take tokens back. A change of
// the rate keeps the number of tokens that are missing. Waits are hours, so that the duration of the test does not
// matter.
func TestTokenBucket(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		// near checks a time that grows shorter while the test runs.
		near := func(what string, got, want time.Duration) {
			b.Helper()
			if got > want || got < want-time.Minute {
				b.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		for i := range 3 {
			near("when the next of three is there", b.look(time.Hour, 3), -time.Duration(2-i)*time.Hour)
			near("of three", b.take(time.Hour, 3, 1), 0)
		}
		near("when a fourth is there", b.look(time.Hour, 3), time.Hour)
		near("a fourth", b.take(time.Hour, 3, 1), time.Hour)
		near("all of them", b.take(time.Hour, 3, 3), 3*time.Hour)
		near("more than it holds", b.take(time.Hour, 3, 1000), 3*time.Hour)
		b.putBack(time.Hour, 3, 2)
		near("two that were given back", b.take(time.Hour, 3, 2), 0)
		near("when a fourth is there", b.look(time.Hour, 3), time.Hour)
		if left := b.count("PTTL", b.g.Bucket("d")); left <= 0 || left > int(3*time.Hour.Milliseconds()) {
			b.Error("it stays for ", left)
		}
		b.do("DEL", b.g.Bucket("d"))
		near("more than it holds, when it is full", b.take(time.Hour, 3, 10), 0)
		near("what is owed", b.take(time.Hour, 3, 1), 8*time.Hour)
		b.putBack(time.Hour, 3, 1)
		near("what is still owed", b.take(time.Hour, 3, 1), 7*time.Hour)
		b.putBack(time.Hour, 3, MaxBurst)
		near("no more than it holds", b.take(time.Hour, 3, 1), 0)
		near("no more than it holds", b.look(time.Hour, 3), -1*time.Hour)
		b.do("DEL", b.g.Bucket("d"))
		near("of a rate that is another one soon", b.take(time.Hour, 100, 40), 0)
		near("what is there at the other rate", b.look(time.Minute, 50), -9*time.Minute)
		if left := b.count("PTTL", b.g.Bucket("d")); left > int(40*time.Minute.Milliseconds()) {
			b.Error("what is missing comes back at the former rate: ", left)
		}
		near("what is missing at the other rate", b.take(time.Minute, 50, 10), 0)
		near("what is there at the first rate", b.look(time.Hour, 51), 0)
		b.do("DEL", b.g.Bucket("d"))
		for _, foreign := range []string{"", "x", "nan", "inf", "-1", "1e400", "0x10", "\x00",
			"1 2 3", "1 x", "1 inf", "1 -5", "1 0", "1 0.0", "1 .", ". ."} { // each counts as a full bucket
			b.do("SET", b.g.Bucket("d"), foreign)
			near(foreign, b.take(time.Hour, 1, 1), 0)
		}
		b.do("SET", b.g.Bucket("d"), "9999999999999999") // written before the clock went back
		near("longer than anyone may owe", b.take(time.Millisecond, 3, 1), 1_000_000*time.Millisecond+time.Millisecond)
		b.do("SET", b.g.Bucket("d"), "9999999999999999 0.001")
		near("longer than anyone may owe, at another rate", b.take(time.Millisecond, 3, 1), 1_000_000*time.Millisecond+time.Millisecond)
		b.do("DEL", b.g.Bucket("d"))
		near("the most, the slowest", b.take(time.Hour, MaxBurst, MaxBurst), 0)
		if wait := b.take(time.Hour, MaxBurst, MaxBurst); wait < 100*365*24*time.Hour {
			b.Error("it waits for ", wait)
		}
		b.do("DEL", b.g.Bucket("d"))
		b.do("HSET", b.g.Bucket("d"), "a", "b")
		if _, err := Take(b.ctx, b.c, b.g.Bucket("d"), time.Hour, 3, 1); !errors.Is(err, ErrWrongType) {
			b.Error(err)
		}
		redistest.Want(b, "another bucket", b.count("EXISTS", b.g.Bucket("e")), 0)
	})
}
