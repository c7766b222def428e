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

// FuzzToken: no text of a token or of a file of tokens makes parsing panic, and neither does asking a parsed token for
// a right.
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

// A bucket of 10/s with burst 5 grants its burst and then its rate. A request for more than the burst passes on a full
// bucket, and the later requests wait for what it took too much. No number of units or hours overflows.
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
	if took < 104 || took > 105 { // the burst of 5 and 10/s for ten seconds, less a rounding
		t.Error("took", took)
	}
	now = now.Add(time.Hour)
	redistest.Want(t, "wait for 50 units from a full bucket of 5", b.take(50, now), 0)
	const owed = 4600 * time.Millisecond // the bucket owes 45 units; the next one comes after 46 units at 10/s
	redistest.Want(t, "wait of the next unit", b.take(1, now), owed)
	redistest.Want(t, "wait of a unit that comes so late", b.take(1, now.Add(owed)), 0)
	redistest.Want(t, "wait for 0 units", newBucket("1/h", 0).take(0, now), 0)
	slow := newBucket("1/h", 0)
	redistest.Want(t, "wait for 2^40 units from a full bucket", slow.take(1<<40, now), 0)
	if wait := slow.take(1, now); wait < time.Hour {
		t.Error("the wait overflowed: ", wait)
	}
	redistest.Want(t, "wait for -5 units", slow.take(-5, now.Add(200*365*24*time.Hour)), 0)
}

// Tokens do not share their rates. A bucket keeps its level when the token is read again. A request for no units or
// without a token never waits. A cancelled request gets the error of its context.
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
	redistest.Want(t, "the second", wait(limited), time.Minute) // 60/h is one a minute
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
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	fresh := r.granted(s, r.add(Token{Name: "d", Rate: "1/h"}))
	if _, err := s.Take(cancelled, fresh, Publish, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Two gateways together grant no more than the rate. A gateway without Redis counts only its own requests, and logs
// that once. If the key of a bucket has another type, requests pass.
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
	redistest.Want(t, "1 of 3", take(one, 1), true)
	redistest.Want(t, "2 of 3", take(two, 1), true)
	redistest.Want(t, "4 of 3", take(one, 2), false)
	redistest.Want(t, "3 of 3: the refused request took nothing", take(one, 1), true)
	redistest.Want(t, "4 of 3", take(two, 1), false)
	r.granted(away, secret)
	proxy.Refuse(true)
	proxy.CutAll()
	for range 3 { // without Redis a gateway does not know what the others took, so it grants the burst of 3 itself
		redistest.Want(t, "without Redis", take(away, 1), true)
	}
	redistest.Want(t, "without Redis, 4 of 3", take(away, 1), false)
	redistest.Want(t, "lines", strings.Count(r.log(), "rates of tokens are counted by this process alone"), 1)
	d, _ := digestOf(secret)
	r.do("DEL", one.bucketKey(d, &bucket{}))
	r.do("HSET", one.bucketKey(d, &bucket{}), "a", "b")
	redistest.Want(t, "a key of another type lets pass", take(two, 1), true)
}

// Units that one Store gives back can be taken from every Store, and the bucket never gets more than it holds when
// full. Part returns into how large parts a large request is divided: as many units as the rate gives in a second.
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
		redistest.Want(t, "1 of 2", take(one), true)
		redistest.Want(t, "2 of 2", take(one), true)
		redistest.Want(t, "3 of 2", take(two), false)
		for _, n := range []int{0, -1, 2, 1000} { // also more than were taken
			one.GiveBack(t.Context(), g, Consume, n)
		}
	}
	one.GiveBack(t.Context(), nil, Consume, 1)
	redistest.Want(t, "part of 500 without a rate", g.Part(Operate, 500), 500)
	redistest.Want(t, "part of 500 at one in half an hour", g.Part(Consume, 500), 1)
	redistest.Want(t, "part of 500 at one a second", g.Part(Publish, 500), 1)
	for _, c := range []struct {
		rate        lua.Rate
		burst, want int
	}{{"100/s", 0, 10}, {"100/s", 50, 50}, {"100/s", 400, 100}, {"100/s", 1000, 100}, {"100000/s", 0, 500}, {"1/h", 10, 1}} {
		g := newGrant(digest{}, &Token{Rate: c.rate, Burst: c.burst})
		redistest.Want(t, fmt.Sprint("part of 500 with rate, burst and want ", c), g.Part(Publish, 500), c.want)
	}
}
