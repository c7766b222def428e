package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// The first gateway prints a token, once, and takes requests with it; a signal ends it in order.
func TestGatewayAnswersAndStopsCleanly(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	first := c.start("gateway", "--http", "127.0.0.1:0")
	at := first.address()
	token := strings.TrimSpace(first.out.String())
	if !strings.HasPrefix(token, "dst_") || strings.Contains(first.err.String(), token) {
		t.Fatalf("it prints %q, and logs\n%s", token, first.err)
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
