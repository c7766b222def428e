package access

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A token with the verb inspect may look and not operate. A token with operate may also inspect. Neither may do this on
// other queues.
func TestAnOperatorMayInspectAndAnInspectorMayNotOperate(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	s := r.store(r.client, "")
	for verb, mayOperate := range map[Verb]bool{Inspect: false, Operate: true} {
		g := r.granted(s, r.add(Token{Name: string(verb), Verbs: []Verb{verb}, Queues: []string{"orders.*"}}))
		redistest.Want(t, string(verb)+": inspect", g.May(Inspect, "orders.new"), true)
		redistest.Want(t, string(verb)+": operate", g.May(Operate, "orders.new"), mayOperate)
		redistest.Want(t, string(verb)+": inspect anywhere", g.MayAnywhere(Inspect), true)
		redistest.Want(t, string(verb)+": operate anywhere", g.MayAnywhere(Operate), mayOperate)
		redistest.Want(t, string(verb)+": publish anywhere", g.MayAnywhere(Publish), false)
		for _, queue := range []string{"mail", "", "orders.{a}"} {
			redistest.Want(t, string(verb)+": inspect "+queue, g.May(Inspect, queue), false)
		}
		for _, other := range []Verb{Publish, Consume} {
			redistest.Want(t, string(verb)+": "+string(other), g.May(other, "orders.new"), false)
		}
	}
}

// A rate limits all requests of a token, also those that inspect. Limits limit publishing and consuming alone.
func TestInspectingIsLimitedAsOperatingIs(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	s := r.store(r.client, "")
	take := func(secret string, verb Verb) time.Duration {
		t.Helper()
		wait, err := s.Take(t.Context(), r.granted(s, secret), verb, 1)
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	rated := r.add(Token{Name: "rated", Verbs: Verbs(), Rate: "60/h"})
	redistest.Want(t, "the first", take(rated, Operate), 0)
	redistest.Want(t, "the second", take(rated, Inspect), time.Minute)
	limited := r.add(Token{Name: "limited", Verbs: Verbs(), Limits: &Limits{Consume: 1, Publish: 1, Interval: 3600}})
	for range 3 {
		redistest.Want(t, "limits of other verbs", take(limited, Inspect), 0)
		redistest.Want(t, "limits of other verbs", take(limited, Operate), 0)
	}
}

// A token allows its verbs on the queues that its patterns match. It allows no other verb and no other queue, also when
// the name of the queue is invalid.
func TestATokenMayWhatItSaysAndNothingElse(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		r := newRig(t, server)
		s := r.store(r.client, "")
		secret := r.add(Token{Name: "shop", Verbs: []Verb{Publish, Consume}, Queues: []string{"orders.*", "mail"}})
		g := r.granted(s, secret)
		redistest.Want(t, "name", g.Name(), "shop")
		for queue, want := range map[string]bool{
			"orders.new": true, "orders.": true, "mail": true, "": false, "orders": false, "mails": false, "xorders.new": false,
			"orders.a/1": false, "orders.{a}": false, "orders.\x00": false, "mail\n": false, "orders.%2f": false, "*": false,
			"orders.*": false, "orders." + strings.Repeat("a", 10<<20): false, "orders..": true,
		} {
			if g.May(Publish, queue) != want || g.May(Consume, queue) != want {
				t.Errorf("%.40q: want %v", queue, want)
			}
			if g.May(Operate, queue) || g.May(Inspect, queue) || g.May("", queue) || g.May("PUBLISH", queue) {
				t.Errorf("%.40q: the token allows a verb that it does not have", queue)
			}
		}
		if g := r.granted(s, r.add(Token{Name: "all"})); !g.May(Publish, "") || !g.May(Publish, "any") || g.May(Consume, "") {
			t.Error("a token for * must also allow its verb on no queue, and no other verb")
		}
	})
}

// Only the exact secret of a token is accepted: no part of it, no variant of it, and not its digest. It is accepted
// until it expires by the gateway's clock.
func TestWhatIsNoTokenIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	s := r.store(r.client, "")
	secret := r.add(Token{Name: "a", Expires: time.Now().Add(time.Hour)})
	_, d, _ := strings.Cut(secret, SecretPrefix)
	digest, _ := digestOf(secret)
	other, _ := newSecret()
	for _, wrong := range []string{"", SecretPrefix, d, other, digest.String(), secret + "a", secret[:len(secret)-1],
		secret + "\x00", " " + secret, strings.ToUpper(secret), "../" + secret[3:], strings.Repeat("{", len(secret)),
		SecretPrefix + strings.Repeat("\x00", 43), strings.Repeat("a", 10<<20)} {
		r.refused(s, wrong, ErrRefused)
	}
	r.granted(s, secret)
	r.pass(2 * time.Hour)
	r.refused(s, secret, ErrRefused) // expired by now
}

// A revoked token is refused within a second by every gateway. That costs each gateway one lookup a second.
func TestATokenIsRevokedForAllWithinASecond(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	one, two := r.store(r.client, ""), r.store(r.client, "")
	secret := r.add(Token{Name: "a"})
	stays := r.add(Token{Name: "b"})
	g := r.granted(one, secret)
	r.granted(two, secret)
	r.pass(FreshFor)
	if r.granted(one, secret) != g {
		t.Error("a token that did not change was parsed again")
	}
	if err := Remove(t.Context(), r.client, r.prefix, "a"); err != nil {
		t.Fatal(err)
	}
	r.pass(FreshFor)
	r.refused(one, secret, ErrRefused)
	r.refused(two, secret, ErrRefused)
	r.granted(two, stays)
	if err := Remove(t.Context(), r.client, r.prefix, "a"); !errors.Is(err, ErrNoToken) {
		t.Error(err)
	}
}

// countingClient counts its commands.
type countingClient struct {
	rueidis.Client
	mu       sync.Mutex
	commands int
}

func (c *countingClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c.mu.Lock()
	c.commands++
	c.mu.Unlock()
	return c.Client.Do(ctx, cmd)
}

// Concurrent callers with one secret share one lookup in Redis, whether the secret is right or wrong.
func TestManyCallersAskRedisOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	counted := &countingClient{Client: r.client}
	s := r.store(counted, "")
	secret, wrong := r.add(Token{Name: "a"}), SecretPrefix+strings.Repeat("a", secretBytes-len(SecretPrefix))
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() { r.refused(s, wrong, ErrRefused) })
		all.Go(func() {
			if _, err := s.Authenticate(t.Context(), secret); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	redistest.Want(t, "lookups of the two secrets", counted.commands, 2)
}

// Any number of wrong tokens takes a bounded amount of memory, and evicts no right token from the cache.
func TestWrongTokensAreForgottenFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	s := r.store(r.client, "")
	secret := r.add(Token{Name: "a"})
	r.granted(s, secret)
	s.mu.Lock()
	for i := range 3 * maxCached {
		s.cached(digest{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	d, _ := digestOf(secret)
	if n := len(s.cache); n > maxCached || s.cache[d] == nil || s.cache[d].grant == nil {
		t.Error("entries in the cache:", n, "entry of the right token:", s.cache[d])
	}
	s.mu.Unlock()
}

// While Redis is away, a Store accepts the tokens in its cache for Grace, but not beyond the expiry of a token. A token
// that is not in the cache gets ErrUnavailable. When Redis answers again, the tokens are accepted again.
func TestWhatIsKnownHoldsForAWhileWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server)
	proxy := server.Proxy(t)
	s := r.store(proxy.Client(t, func(o *rueidis.ClientOption) { o.DisableRetry = true }), "")
	secret := r.add(Token{Name: "a"})
	short := r.add(Token{Name: "b", Expires: time.Now().Add(30 * time.Second)})
	other := r.add(Token{Name: "c"})
	r.granted(s, secret)
	r.granted(s, short)
	proxy.Refuse(true)
	proxy.CutAll()
	for range 3 {
		r.pass(FreshFor)
		r.granted(s, secret)
	}
	r.refused(s, other, lua.ErrUnavailable)
	r.pass(30 * time.Second)
	r.refused(s, short, ErrRefused) // the expiry is checked without Redis
	r.granted(s, secret)
	r.pass(Grace)
	r.refused(s, secret, lua.ErrUnavailable)
	proxy.Refuse(false)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { // until the client has a connection again
		r.pass(FreshFor)
		_, err := s.Authenticate(t.Context(), secret)
		return err == nil, fmt.Sprint(err)
	})
}

// If the Redis user lacks a right, the callers get ErrDenied, and nothing is stored.
func TestAUserWithoutHGETIsTold(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRig(t, server)
	secret := r.add(Token{Name: "a"})
	r.do("ACL", "SETUSER", "gate", "on", ">pw", "~*", "resetchannels", "+@all", "-hget", "-multi")
	denied := server.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "gate", "pw" })
	r.refused(r.store(denied, ""), secret, lua.ErrDenied)
	if _, err := Add(t.Context(), denied, r.prefix, Token{Name: "b", Verbs: Verbs(), Queues: []string{"*"}}); !errors.Is(err,
		lua.ErrDenied) {
		t.Error(err)
	}
	list, err := List(t.Context(), r.client, r.prefix)
	if err != nil || len(list) != 1 {
		t.Error(list, err)
	}
}

// The rights of the user in docs/guides/tokens.md are exactly those that tokens need.
func TestTheDocumentedUserIsEnough(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/guides/tokens.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rules, _ := strings.Cut(string(text), "> ACL SETUSER tokens ")
	rules, _, _ = strings.Cut(rules, "\n")
	server := redistest.Own(t)
	r := newRig(t, server)
	r.do(append([]string{"ACL", "SETUSER", "tokens"}, aclWords(strings.ReplaceAll(rules, "~duestream:", "~"+r.prefix+":"))...)...)
	r.client = server.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "tokens", "secret9" })
	s := r.store(r.client, "")
	secret, err := s.First(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.granted(s, secret)
	g := r.granted(s, r.add(Token{Name: "a", Rate: "1/h"}))
	if wait, err := s.Take(t.Context(), g, Publish, 1); wait != 0 || err != nil || r.log() != "" {
		t.Error(wait, err, r.log())
	}
	list, err := List(t.Context(), r.client, r.prefix)
	if err != nil || len(list) != 2 {
		t.Error(list, err)
	}
	if err := Remove(t.Context(), r.client, r.prefix, "a"); err != nil {
		t.Error(err)
	}
	for _, command := range []string{"HGET other a", "HGETALL " + r.key, "DEL " + r.key, "GET a"} {
		if r.client.Do(t.Context(), r.client.B().Arbitrary(strings.Fields(command)...).Build()).Error() == nil {
			t.Error(command, "is allowed")
		}
	}
}

// aclWords splits ACL rules into words. A selector in brackets is one word.
func aclWords(rules string) (words []string) {
	for {
		before, selector, more := strings.Cut(rules, "(")
		words = append(words, strings.Fields(before)...)
		if !more {
			return words
		}
		selector, rules, _ = strings.Cut(selector, ")")
		words = append(words, "("+selector+")")
	}
}

// If the key of the tokens holds a value of another type, every call returns ErrWrongType.
func TestAKeyOfAnotherTypeIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.do("SET", r.key, "mine")
	s, token := r.store(r.client, ""), Token{Name: "a", Verbs: Verbs(), Queues: []string{"*"}}
	secret, _ := newSecret()
	r.refused(s, secret, lua.ErrWrongType)
	_, first := s.First(t.Context())
	_, add := Add(t.Context(), r.client, r.prefix, token)
	_, list := List(t.Context(), r.client, r.prefix)
	for _, err := range []error{first, add, list, Remove(t.Context(), r.client, r.prefix, "a")} {
		if !errors.Is(err, lua.ErrWrongType) {
			t.Error(err)
		}
	}
}

// A value that another program or a newer version wrote refuses only its own token. List shows the token with a
// problem, and Remove removes it by its digest.
func TestAForeignValueRefusesThatTokenAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	s := r.store(r.client, "")
	good := r.add(Token{Name: "good"})
	for i, value := range []string{"", "null", "{}", "[]", "1", "\xff\x00", `{"name":"x"}`, strings.Repeat("[", 20<<10),
		// As a newer version may write it: an unknown restriction must not be ignored.
		`{"name":"x","verbs":["publish"],"queues":["*"],"only_at_night":true}`,
		`{"name":"x","verbs":["publish"],"queues":["*"]} {"verbs":["operate"]}`, // two values
		`{"name":"x","verbs":["everything"],"queues":["*"]}`,
		`{"name":"x","verbs":["publish"],"queues":["{a}"]}`,
		`{"name":"x","verbs":["publish"],"queues":["*"],"expires":"tomorrow"}`,
	} {
		secret, d := newSecret()
		r.do("HSET", r.key, d.String(), value)
		r.refused(s, secret, ErrRefused)
		list, err := List(t.Context(), r.client, r.prefix)
		if err != nil || len(list) != i+2 || list[0].Digest != d.String() && list[0].Problem == "" {
			t.Fatalf("%q: %+v, %v", value, list, err)
		}
	}
	r.do("HSET", r.key, "../../etc", `{"name":"x","verbs":["publish"],"queues":["*"]}`)
	r.granted(s, good)
	list, err := List(t.Context(), r.client, r.prefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list {
		if one.Name == "good" {
			continue
		}
		if one.Problem == "" {
			t.Errorf("%+v", one)
		}
		if err := Remove(t.Context(), r.client, r.prefix, one.Digest); err != nil {
			t.Error(err)
		}
	}
	if list, _ = List(t.Context(), r.client, r.prefix); len(list) != 1 || list[0].Name != "good" {
		t.Errorf("%+v", list)
	}
}
