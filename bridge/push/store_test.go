package push

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// A key is generated once and returned once, and stays when a target changes. After a rotation requests verify with
// the old and the new key. After the old key is dropped they verify only with the new one.
func TestKeysAreRotatedWithoutAGap(t *testing.T) {
	t.Parallel()
	g, v := newRig(t), newReceiver(t, nil)
	target := to(v.URL)
	target.Keys = nil
	added := g.set(target)
	redistest.Want(t, "added", added.Added && CheckKey(added.Key) == nil, true)
	target.Concurrency = 3
	changed := g.set(target)
	redistest.Want(t, "changed", changed, Change{Changed: true})
	redistest.Want(t, "set again", g.set(target), Change{})

	// verifies posts a message to the stored target, and checks that it is signed with exactly these keys.
	verifies := func(want ...string) {
		t.Helper()
		found := g.store.all(t.Context(), []string{"q"}, nil)
		if err := found.err(); err != nil {
			t.Fatal(err)
		}
		now, err := parseTarget("q", "g", found.texts[targetID{"q", "g"}])
		if err != nil {
			t.Fatal(err)
		}
		p := newPoster(now, nil, nil)
		defer p.close()
		if _, err := p.deliver(t.Context(), message("m", "x")); err != nil {
			t.Fatal(err)
		}
		all := v.requests()
		got := all[len(all)-1]
		redistest.Want(t, "signatures", len(strings.Fields(got.Get(HeaderSignature))), len(want))
		for _, key := range want {
			verifier, err := standard.NewWebhook(key)
			if err == nil {
				err = verifier.Verify(got.body, got.Header)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	verifies(added.Key)
	if err := g.store.DropOldKey(t.Context(), "q", "g"); !errors.Is(err, ErrOneKey) {
		t.Error(err)
	}
	second, err := g.store.Rotate(t.Context(), "q", "g", "")
	if err != nil {
		t.Fatal(err)
	}
	verifies(second, added.Key)
	for range 2 { // the second call repeats the first, as after an error
		if third, err := g.store.Rotate(t.Context(), "q", "g", testKey); err != nil || third != testKey {
			t.Fatal(third, err)
		}
		verifies(testKey, second)
	}
	if err := g.store.DropOldKey(t.Context(), "q", "g"); err != nil {
		t.Fatal(err)
	}
	verifies(testKey)
	if _, err := g.store.Rotate(t.Context(), "q", "other", ""); !errors.Is(err, ErrNoTarget) {
		t.Error(err)
	}
	if _, err := g.store.Rotate(t.Context(), "q", "g", "short"); !errors.Is(err, lua.ErrInvalid) {
		t.Error(err)
	}
}

// On a full server targets can be added, rotated and removed. Regression: a full server refused to add a target, and to
// rotate a key that may have leaked.
func TestAFullServerHasTargetsAddedRotatedAndRemoved(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	client := s.Client(t)
	store := NewStore(client, s.Prefix(t))
	queuetest.Do(t, client, "CONFIG", "SET", "maxmemory", "1")
	added, err := store.Set(t.Context(), Target{Queue: "q", Group: "g", URL: "https://example.com/hook"})
	redistest.Want(t, "added", fmt.Sprint(added.Added, err), "true <nil>")
	rotated, err := store.Rotate(t.Context(), "q", "g", "")
	if err != nil || rotated == added.Key {
		t.Errorf("rotate: %v", err)
	}
	if err := store.DropOldKey(t.Context(), "q", "g"); err != nil {
		t.Errorf("drop the old key: %v", err)
	}
	all, err := store.List(t.Context(), "q")
	redistest.Want(t, "targets", fmt.Sprint(len(all), err), "1 <nil>")
	if err := store.Remove(t.Context(), "q", "g"); err != nil {
		t.Errorf("remove: %v", err)
	}
	all, err = store.List(t.Context(), "q")
	redistest.Want(t, "targets left", fmt.Sprint(len(all), err), "0 <nil>")
}

// A list of targets holds no secret: neither keys nor header values.
func TestListsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	target := to("https://example.com/hook?token=secret")
	target.Headers = map[string]string{"Authorization": "secret"}
	g.set(target)
	queuetest.Do(t, g.r.Client, "HSET", lua.NewKeys(g.prefix, "q").Push, "wrong",
		`{"url":"https://example.com?secret","keys":["secret"]}`)
	all, err := g.store.List(t.Context(), "q")
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if text := fmt.Sprintf("%+v", all); strings.Contains(text, "secret") || strings.Contains(text, testKey[6:]) {
		t.Error(text)
	}
	redistest.Want(t, "keys", all[0].KeyCount, 1)
	redistest.Want(t, "right", all[0].Problem, "")
	redistest.Want(t, "wrong", strings.HasPrefix(all[1].Problem, "key of 6 characters: must be whsec_"), true)
	for name, value := range all[0].Headers {
		redistest.Want(t, "header", name+value, "Authorization")
	}
}

// Concurrent changes of targets of one queue do not undo each other, and keep within the limit of targets.
func TestChangesAtTheSameTimeAreAllKept(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			target := to("https://example.com/")
			target.Group = fmt.Sprint("g", i)
			if _, err := g.store.Set(t.Context(), target); err != nil {
				t.Error(err)
			}
			if _, err := g.store.Rotate(t.Context(), "q", "g0", ""); err != nil && !errors.Is(err, ErrNoTarget) {
				t.Error(err)
			}
		})
	}
	running.Wait()
	all, err := g.store.List(t.Context(), "q")
	if err != nil || len(all) != 8 {
		t.Fatal(len(all), err)
	}
	seen, other := []string{}, to("https://example.com/other")
	other.Group = "g1"
	err = g.store.edit(t.Context(), "q", "g1", func(before string, _ bool, _ int64) (string, error) {
		seen = append(seen, before)
		if len(seen) == 1 {
			g.set(other) // another operator is faster
		}
		return strings.Replace(before, "https://", "http://", 1), nil
	})
	if err != nil || len(seen) != 2 || !strings.Contains(seen[1], "/other") {
		t.Errorf("the target that another operator wrote meanwhile was not read: %q, %v", seen, err)
	}
	for i := range MaxTargets {
		queuetest.Do(t, g.r.Client, "HSET", lua.NewKeys(g.prefix, "full").Push, fmt.Sprint(i), "x")
	}
	target := to("https://example.com/")
	target.Queue = "full"
	if _, err := g.store.Set(t.Context(), target); !errors.Is(err, lua.ErrInvalid) {
		t.Error(err)
	}
}

// A user who lacks a right changes nothing, and gets an error.
func TestAUserWithoutARightChangesNoTarget(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.set(to("https://example.com/"))
	read := func() string {
		t.Helper()
		key := lua.NewKeys(g.prefix, "q").Push
		text, err := g.r.Client.Do(t.Context(), g.r.Client.B().Hget().Key(key).Field("g").Build()).ToString()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := read()
	for _, lacks := range []string{"hset", "hdel", "evalsha"} {
		user := "push-" + lacks + "-" + g.prefix
		queuetest.Do(t, g.r.Client, "ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all", "-"+lacks)
		t.Cleanup(func() {
			c := g.r.Client
			_ = c.Do(context.Background(), c.B().Arbitrary("ACL", "DELUSER", user).Build()).Error()
		})
		c := redistest.Shared(t).Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = user, "pw" })
		if _, err := NewStore(c, g.prefix).Rotate(t.Context(), "q", "g", ""); !errors.Is(err, lua.ErrDenied) {
			t.Errorf("without %s: %v", lacks, err)
		}
		redistest.Want(t, "the target after a rotation without "+lacks, read(), before)
	}
}

// When the reply of a write is lost, Set and Rotate find out what was written and return the key. Regression: the
// target signed with a new key that the caller of Set never got.
func TestAKeyWhoseReplyIsLostIsTold(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	proxy, prefix := server.Proxy(t), server.Prefix(t)
	store := NewStore(proxy.Client(t), prefix)
	client := server.Client(t)
	// cutWrite makes the proxy drop the reply of the next write. The proxy drops the reply of the next EVAL, so all
	// scripts but the one that writes must be in the server's cache and be called by EVALSHA.
	cutWrite := func() {
		t.Helper()
		queuetest.Do(t, client, "SCRIPT", "FLUSH")
		_, err := lua.Register(t.Context(), client, lua.NewGlobals(prefix), []string{"q"})
		_, failed := stream.EnsureGroup(t.Context(), client, prefix, "q", "g")
		if err := errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		proxy.CutAfterForward(1, "EVAL")
	}
	cutWrite()
	target := to("https://example.com/")
	target.Keys = nil
	c, err := store.Set(t.Context(), target)
	redistest.Want(t, "set", fmt.Sprint(c.Added, c.Changed, err), "true false <nil>")
	keys := func() []string {
		text := queuetest.Text(t, client, "HGET", lua.NewKeys(prefix, "q").Push, "g")
		found, err := parseTarget("q", "g", text)
		if err != nil {
			t.Fatal(err)
		}
		return found.Keys
	}
	redistest.Want(t, "keys", fmt.Sprint(keys()), fmt.Sprint([]string{c.Key}))
	cutWrite()
	key, err := store.Rotate(t.Context(), "q", "g", "")
	redistest.Want(t, "rotated", err, nil)
	redistest.Want(t, "keys", fmt.Sprint(keys()), fmt.Sprint([]string{key, c.Key}))
	cutWrite()
	target.Concurrency = 3
	c, err = store.Set(t.Context(), target)
	redistest.Want(t, "set again", fmt.Sprintf("%v %v %q %v", c.Added, c.Changed, c.Key, err), `false true "" <nil>`)
	cutWrite()
	redistest.Want(t, "dropped", store.DropOldKey(t.Context(), "q", "g"), nil)
	redistest.Want(t, "keys", fmt.Sprint(keys()), fmt.Sprint([]string{key}))
	redistest.Want(t, "dropped again", errors.Is(store.DropOldKey(t.Context(), "q", "g"), ErrOneKey), true)
	redistest.Want(t, "cuts", proxy.Cuts(), 4)
}

// Of two callers who have read the same target only the first may change it. Regression: two new keys in a row dropped
// the key that the receiver still needed.
func TestATargetIsNotChangedOverAChangeThatTheCallerHasNotSeen(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	version := func() string {
		t.Helper()
		all, err := g.store.List(t.Context(), "q")
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		return all[0].Version
	}
	target := to("https://example.com/hook")
	target.Keys = nil
	added, err := g.store.Replace(t.Context(), target, "")
	if err != nil || added.Key == "" {
		t.Fatal(added, err)
	}
	if _, err := g.store.Replace(t.Context(), target, ""); err != nil {
		t.Errorf("the same target again: %v", err)
	}
	first := version()
	target.Concurrency = 3
	if _, err := g.store.Replace(t.Context(), target, ""); !errors.Is(err, ErrChanged) {
		t.Errorf("a target that must be new: %v", err)
	}
	if c, err := g.store.Replace(t.Context(), target, first); err != nil || !c.Changed {
		t.Errorf("the version that is stored: %+v, %v", c, err)
	}
	target.Concurrency = 4
	if _, err := g.store.Replace(t.Context(), target, first); !errors.Is(err, ErrChanged) {
		t.Errorf("a version that was replaced: %v", err)
	}
	second := version()
	if _, err := g.store.RotateVersion(t.Context(), "q", "g", second); err != nil {
		t.Fatal(err)
	}
	if _, err := g.store.RotateVersion(t.Context(), "q", "g", second); !errors.Is(err, ErrChanged) {
		t.Errorf("a second rotation of the same version: %v", err)
	}
	if third := version(); third == second || third == first {
		t.Error("the version does not tell the keys apart")
	}
}
