package access

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// FuzzPattern compares patterns with regular expressions. A pattern without * matches only itself.
func FuzzPattern(f *testing.F) {
	for _, seed := range [][2]string{{"orders.*", "orders.new"}, {"*", ""}, {"a*b*a", "aba"}, {"a*a", "a"}, {"a", "a*"},
		{"*ab*b", "aab"}, {"", ""}, {"**", "x"}, {"a.c", "abc"}, {"a*", "a\n"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		got := matches(pattern, name)
		if !strings.Contains(pattern, "*") && got != (pattern == name) {
			t.Errorf("%q stands for %q: %v", pattern, name, got)
		}
		if len(pattern) > lua.MaxQueueBytes || !queuePattern.MatchString(pattern) || lua.CheckQueue(name) != nil {
			return
		}
		rule := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$")
		if want := rule.MatchString(name); got != want {
			t.Errorf("%q stands for %q: %v, want %v", pattern, name, got, want)
		}
	})
}

func FuzzToken(f *testing.F) {
	f.Add(`{"name":"a","verbs":["publish"],"queues":["*"],"rate":"5/s","burst":3,"expires":"2030-01-02T03:04:05Z"}`)
	f.Add(`{"digest":"` + strings.Repeat("0a", 32) + `","name":"a","verbs":["publish"],"queues":["*"]}` + "\n# more\n")
	f.Fuzz(func(t *testing.T, text string) {
		if token, err := parseToken([]byte(text)); err == nil {
			newGrant(digest{}, token).May(Publish, "a")
		}
		_, _ = parseFile([]byte(text))
	})
}

func TestARateIsKept(t *testing.T) {
	t.Parallel()
	b, now := newBucket("10/s", 5), time.Now()
	took := 0
	for range 1000 { // a hundred requests a second, for ten seconds
		if b.take(1, now) == 0 {
			took++
		}
		now = now.Add(10 * time.Millisecond)
	}
	if took < 104 || took > 105 {
		t.Error("took", took)
	}
	now = now.Add(time.Hour)
	redistest.Want(t, "a full bucket, more than it holds", b.take(50, now), 0)
	redistest.Want(t, "what is owed", b.take(1, now), 4600*time.Millisecond)
	redistest.Want(t, "later", b.take(1, now.Add(4600*time.Millisecond)), 0)
	redistest.Want(t, "nothing", newBucket("1/h", 0).take(0, now), 0)
	slow := newBucket("1/h", 0)
	redistest.Want(t, "no end of it", slow.take(1<<40, now), 0)
	if wait := slow.take(1, now); wait < time.Hour {
		t.Error("it overflowed: ", wait)
	}
	redistest.Want(t, "less than none", slow.take(-5, now.Add(200*365*24*time.Hour)), 0)
}

func TestTheRateOfATokenIsItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	s := r.store(r.client, "")
	limited, other, free := r.add(Token{Name: "a", Rate: "60/h"}), r.add(Token{Name: "b", Rate: "1"}), r.add(Token{Name: "c"})
	wait := func(secret string) time.Duration {
		d, err := s.Take(t.Context(), r.granted(s, secret), Publish, 1)
		if err != nil {
			t.Error(err)
		}
		return d
	}
	redistest.Want(t, "the first", wait(limited), 0)
	redistest.Want(t, "the second", wait(limited), time.Minute)
	redistest.Want(t, "another token", wait(other), 0)
	redistest.Want(t, "no rate", wait(free), 0)
	redistest.Want(t, "no rate", wait(free), 0)
	r.pass(FreshFor) // Redis is asked again, and the bucket keeps its level
	redistest.Want(t, "a second later", wait(limited), time.Minute-FreshFor)
	for _, n := range []int{0, -1} {
		if d, err := s.Take(t.Context(), r.granted(s, limited), Publish, n); d != 0 || err != nil {
			t.Error(n, d, err)
		}
	}
	if d, err := s.Take(t.Context(), nil, Publish, 1); d != 0 || err != nil {
		t.Error(d, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Take(gone, r.granted(s, r.add(Token{Name: "d", Rate: "1/h"})), Publish, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestGatewaysShareARate(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server)
	proxy := server.Proxy(t)
	one, two := r.store(r.client, ""), r.store(r.client, "")
	away := r.store(proxy.Client(t, func(o *rueidis.ClientOption) { o.DisableRetry = true }), "")
	secret := r.add(Token{Name: "a", Rate: "1/h", Burst: 3})
	take := func(s *Store, n int) bool {
		t.Helper()
		wait, err := s.Take(t.Context(), r.granted(s, secret), Publish, n)
		if err != nil || wait > 3*time.Hour {
			t.Fatal(wait, err)
		}
		return wait == 0
	}
	redistest.Want(t, "one of three", take(one, 1), true)
	redistest.Want(t, "two of three", take(two, 1), true)
	redistest.Want(t, "four of three", take(one, 2), false)
	redistest.Want(t, "three of three: what was refused was given back", take(one, 1), true)
	redistest.Want(t, "four of three", take(two, 1), false)
	r.granted(away, secret)
	proxy.Refuse(true)
	proxy.CutAll()
	for range 3 { // it does not know what others took,
		redistest.Want(t, "without Redis", take(away, 1), true)
	}
	redistest.Want(t, "without Redis, four of three", take(away, 1), false) // but counts its own
	redistest.Want(t, "lines", strings.Count(r.log(), "rates of tokens are counted by this process alone"), 1)
	d, _ := digestOf(secret)
	r.do("DEL", one.bucket(d))
	r.do("HSET", one.bucket(d), "a", "b")
	redistest.Want(t, "a key of another type lets pass", take(two, 1), true)
}

// GiveBack returns unused ones to all Stores, and never more than were taken.
func TestWhatIsGivenBackIsThereForAll(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	one, two := r.store(r.client, ""), r.store(r.client, "")
	secret := r.add(Token{Name: "a", Limits: &Limits{Consume: 2, Publish: 3600, Interval: 3600}, Verbs: Verbs()})
	g := r.granted(one, secret)
	take := func(s *Store) bool {
		t.Helper()
		wait, err := s.Take(t.Context(), r.granted(s, secret), Consume, 1)
		if err != nil {
			t.Fatal(err)
		}
		return wait == 0
	}
	for range 3 {
		redistest.Want(t, "one of two", take(one), true)
		redistest.Want(t, "two of two", take(one), true)
		redistest.Want(t, "three of two", take(two), false)
		for _, n := range []int{0, -1, 2, 1000} { // also more than were taken
			one.GiveBack(t.Context(), g, Consume, n)
		}
	}
	one.GiveBack(t.Context(), nil, Consume, 1)
	redistest.Want(t, "a part of what has no rate", g.Part(Operate, 500), 500)
	redistest.Want(t, "a part of one in half an hour", g.Part(Consume, 500), 1)
	redistest.Want(t, "a part of one a second", g.Part(Publish, 500), 1)
	for _, c := range []struct {
		rate        lua.Rate
		burst, want int
	}{{"100/s", 0, 10}, {"100/s", 50, 50}, {"100/s", 400, 100}, {"100/s", 1000, 100}, {"100000/s", 0, 500}, {"1/h", 10, 1}} {
		g := newGrant(digest{}, &Token{Rate: c.rate, Burst: c.burst})
		redistest.Want(t, fmt.Sprint("a part of ", c), g.Part(Publish, 500), c.want)
	}
}
