package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The permissions that docs/operations/users.md gives a worker for callbacks are enough to post. Without them, only
// operators, bridges and the doctor can see a target's URL and its signing keys.
func TestADocumentedWorkerPostsCallbacks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		queue := redistest.Queue(t)
		arrived := make(chan string, 10)
		target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			arrived <- string(body)
		}))
		t.Cleanup(target.Close)
		operator := push.NewStore(g.dial("operator").Client, g.prefix)
		change, err := operator.Set(t.Context(), push.Target{Queue: queue, Group: "g", URL: target.URL, AllowHTTP: true,
			Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}})
		if err == nil {
			_, err = operator.Rotate(t.Context(), queue, "g", "")
		}
		if err != nil || !change.Added {
			t.Fatal(change, err)
		}
		for _, user := range []string{"producer", "plain-producer", "worker", "plain-worker"} {
			r := g.dial(user)
			if _, err := push.NewStore(r.Client, g.prefix).List(t.Context(), queue); !errors.Is(err, bridge.ErrDenied) {
				t.Errorf("%s reads targets: %v", user, err)
			}
			key := lua.NewKeys(g.prefix, queue).Push
			set := r.Client.B().Hset().Key(key).FieldValue().FieldValue("g", "x").Build()
			if err := r.Client.Do(t.Context(), set).Error(); err == nil {
				t.Errorf("%s writes targets", user)
			}
		}
		text, err := os.ReadFile("../docs/operations/users.md")
		if err != nil {
			t.Fatal(err)
		}
		rules := acl.Also(string(text), "`duestream push run`")
		words := append([]string{"ACL", "SETUSER", "worker" + g.suffix},
			strings.Fields(strings.ReplaceAll(strings.Join(rules, " "), "~duestream:", "~"+g.prefix+":"))...)
		if err := g.do(words...).Error(); err != nil || len(rules) == 0 {
			t.Fatal(rules, err)
		}
		runner, err := push.NewRunner(push.Config{Redis: g.dial("worker"), Prefix: g.prefix, LookInterval: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		s := &stack{t: t}
		s.run("runner", runner.Run)
		client, err := bridge.NewClient(bridge.ClientConfig{Redis: g.dial("producer"), Prefix: g.prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if _, err := client.Schedule(t.Context(), queue, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-arrived:
			redistest.Want(t, "body", got, "hello")
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is posted: ", runner.Ready())
		}
	})
}

// Posted messages are verified in Node.js by the library of the specification, which is not ours, and by the code
// that docs/guides/callbacks.md shows. Both refuse a changed body, and the code also refuses an old request.
func TestCallbacksAreVerifiedInNode(t *testing.T) {
	t.Parallel()
	const dir = "testdata/webhooks"
	node := redistest.NodeWith(t, dir, "standardwebhooks")
	text, err := os.ReadFile("../docs/guides/callbacks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(text), "```js\n")
	code, _, _ = strings.Cut(code, "```")
	shown := filepath.Join(t.TempDir(), "shown.mjs")
	if err := os.WriteFile(shown, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	type request struct {
		Headers map[string]string `json:"headers"`
		Body    []byte            `json:"body"`
	}
	arrived := make(chan request, 10)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		one := request{Headers: map[string]string{}}
		for name := range r.Header {
			one.Headers[strings.ToLower(name)] = r.Header.Get(name)
		}
		one.Body, _ = io.ReadAll(r.Body)
		arrived <- one
	}))
	t.Cleanup(target.Close)
	s := newStack(t, redistest.Shared(t))
	store := push.NewStore(s.dial(s.server.URL()).Client, s.prefix)
	change, err := store.Set(t.Context(), push.Target{Queue: s.queue, Group: "g", URL: target.URL, AllowHTTP: true,
		Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err == nil {
		_, err = store.Rotate(t.Context(), s.queue, "g", "") // both keys sign
	}
	if err != nil {
		t.Fatal(err)
	}
	runner, err := push.NewRunner(push.Config{Redis: s.dial(s.server.URL()), Prefix: s.prefix})
	if err != nil {
		t.Fatal(err)
	}
	s.run("runner", runner.Run)
	payloads := []string{`{"a":1}`, "wörds\n", "\xff\x00", ""}
	var batch []bridge.NewMessage
	for i, payload := range payloads {
		batch = append(batch, bridge.NewMessage{ID: fmt.Sprint("m.", i), Payload: []byte(payload)})
	}
	s.send(batch)
	var all []request
	for range payloads {
		select {
		case one := <-arrived:
			all = append(all, one)
		case <-time.After(30 * time.Second):
			t.Fatal("not all arrive")
		}
	}
	in, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, "verify.js", shown, change.Key)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(in)
	out, err := cmd.CombinedOutput()
	if want := strings.Repeat("true true false false false\n", len(payloads)); err != nil || string(out) != want {
		t.Errorf("%v\n%s, want\n%s", err, out, want)
	}
}
