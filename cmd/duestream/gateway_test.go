package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// A gateway writes the first token into a file that nobody else can read. The bug: it printed the secret, which may
// do everything, to its output, the log of a service.
func TestGatewayAnswersAndStopsCleanly(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := filepath.Join(t.TempDir(), "token")
	bare := c.start("gateway", "--http", "127.0.0.1:0")
	bare.address()
	out := bare.out.String() + bare.err.String()
	if strings.Contains(out, "dst_") || !strings.Contains(out, "there is no token") {
		t.Fatalf("without tokens it says\n%s", out)
	}
	first := c.start("gateway", "--http", "127.0.0.1:0", "--first-token-file", file)
	at := first.address()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	if out := first.out.String() + first.err.String(); !strings.HasPrefix(token, "dst_") || strings.Contains(out, "dst_") {
		t.Fatalf("the file holds %q, and it says\n%s", token, out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal("mode of the file", info, err)
	}
	second := c.start("gateway", "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Contains(second.err.String(), "listens for requests"), second.err.String()
	})
	for _, base := range []string{at, second.address()} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+base+"/v1/queues/q/messages?in_ms=3600000",
			strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		redistest.Want(t, "status", res.StatusCode, http.StatusCreated)
		if !strings.Contains(string(body), `"id":`) {
			t.Errorf("the answer is %s", body)
		}
	}
	if out := c.ok("peek", "q", "--json"); strings.Count(out, `"id"`) != 2 {
		t.Errorf("two messages were published:\n%s", out)
	}
	_, looked, _ := strings.Cut(second.err.String(), `"listens for metrics and health","address":"`)
	looked, _, _ = strings.Cut(looked, `"`)
	becomes(t, "http://"+looked+"/readyz", http.StatusOK, "ok\n")
	becomes(t, "http://"+looked+"/metrics", http.StatusOK, `duestream_enqueued_total{queue="q"} 1`)
	for _, one := range []*running{first, second} {
		one.stop()
		redistest.Want(t, "exit code", one.wait(), exitOK)
		if !strings.Contains(one.err.String(), "gateway stopped") {
			t.Errorf("it does not say that it stopped:\n%s", one.err)
		}
	}
	redistest.Want(t, "printed by the second", second.out.String(), "")
}

func TestGatewayRefusesWhatItCannotListenOn(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for args, want := range map[string]string{"--http nowhere": `http "nowhere"`, "--max-payload 0": "max-payload 0",
		"--max-payload 16777217": "max-payload 16777217", "--tokens-file /nowhere/tokens": "no such file"} {
		if r := c.run(append([]string{"gateway"}, strings.Fields(args)...)...); r.code == exitOK ||
			!strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d, stderr without %q:\n%s", args, r.code, want, r.err)
		}
	}
}
