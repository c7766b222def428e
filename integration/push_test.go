package integration

import (
	"bytes"
	"encoding/json"
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
	"github.com/duestream/duestream/integration/redistest"
)

// Two programs in Node.js verify the signatures of posted messages: the library of the Standard Webhooks specification,
// and the code that docs/guides/callbacks.md shows. Both accept the requests and refuse a changed body. The code also
// refuses an old request.
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
	// verify.js prints a line for each request: the results of the library and of the code, first for the request, then
	// for a changed body, and at last the result of the code for an old request.
	if want := strings.Repeat("true true false false false\n", len(payloads)); err != nil || string(out) != want {
		t.Errorf("%v\n%s, want\n%s", err, out, want)
	}
}
