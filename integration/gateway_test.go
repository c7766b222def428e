package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// asker is a client of a gateway.
type asker struct {
	t           *testing.T
	base, token string
}

// ask sends a request that must get this status, and returns the body.
func (a *asker) ask(status int, method, path, body string) string {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.base+"/v1"+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	if strings.HasSuffix(path, "/batch") {
		req.Header.Set("Content-Type", "application/x-ndjson")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	if path == "/events/stats" { // endless
		return ""
	}
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		a.t.Errorf("%s %s: %d, want %d (%v)\n%s", method, path, res.StatusCode, status, err, text)
	}
	return string(text)
}

// takes receives deliveries, and returns their tokens.
func (a *asker) takes(count int) (tokens []any) {
	a.t.Helper()
	text := a.ask(http.StatusOK, "POST", fmt.Sprint("/queues/q/deliveries?group=g&wait_ms=1000&count=", count), "")
	var all struct{ Deliveries []struct{ Token string } }
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all.Deliveries) != count {
		a.t.Fatalf("%d deliveries, want %d: %s", len(all.Deliveries), count, text)
	}
	for _, one := range all.Deliveries {
		tokens = append(tokens, one.Token)
	}
	return tokens
}

// The documented user of a gateway (docs/operations/users.md) has the rights for every request, on every server, and
// for the first token.
func TestADocumentedGatewayDoesItsWork(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		users := newGuests(t, server, false)
		r := users.dial("gateway")
		store, err := access.Open(access.Config{Client: r.Client, Prefix: users.prefix})
		if err != nil {
			t.Fatal(err)
		}
		a := &asker{t: t}
		if a.token, err = store.First(t.Context()); err != nil || a.token == "" {
			t.Fatal(a.token, err)
		}
		g, err := gateway.New(gateway.Config{Redis: r, Prefix: users.prefix, Access: store})
		if err != nil {
			t.Fatal(err)
		}
		listening := httptest.NewServer(g.Handler())
		t.Cleanup(func() {
			listening.Close()
			_ = g.Close()
		})
		a.base = listening.URL
		const ok, made, none = http.StatusOK, http.StatusCreated, http.StatusNoContent

		a.ask(made, "POST", "/queues/q/messages?id=later&in_ms=3600000&key=k&dedup_ms=60000", "x")
		a.ask(http.StatusConflict, "POST", "/queues/q/messages?id=later", "x")
		a.ask(made, "POST", "/queues/q/messages?id=later&replace=always&in_ms=3600000", "y")
		a.ask(ok, "PATCH", "/queues/q/messages/later?in_ms=7200000", "")
		a.ask(ok, "GET", "/queues/q/messages/later", "")
		a.ask(ok, "GET", "/messages/later", "")
		a.ask(ok, "POST", "/queues/q/batch", `{"id":"a"}
{"id":"b"}
{"id":"c"}
{"id":"d"}
{"id":"e","headers":{"x":"y"}}
{"id":"f"}
`)
		queuetest.EventuallyRegistered(t, users.admin, users.prefix, "q", "1") // a client may register after its answer
		list := a.takes(6)
		settled := a.ask(ok, "POST", "/settlements", fmt.Sprintf(`[{"token":%q},
			{"token":%q,"outcome":"retry","in_ms":3600000,"error":"no"},
			{"token":%q,"outcome":"dead","error":"never"},{"token":%q,"outcome":"dead"},{"token":%q,"outcome":"extend"}]`, list[:5]...))
		redistest.Want(t, "settled", strings.TrimSpace(settled), `{"settled":[{"outcome":"acknowledged"},{"outcome":"retried"},`+
			`{"outcome":"dead"},{"outcome":"dead"},{"outcome":"extended"}]}`)
		a.ask(ok, "POST", "/settlements", fmt.Sprintf(`[{"token":%q,"outcome":"release"}]`, list[4]))
		a.ask(none, "DELETE", "/queues/q/messages/later", "")
		for _, path := range []string{"", "/q/stats", "/q/schedule?payloads=true", "/q/pending?group=g", "/q/consumers",
			"/q/policy",
			"/q/policy?group=g", "/q/dead", "/q/dead?error=never", "/q/recurrences"} {
			a.ask(ok, "GET", "/queues"+path, "")
		}
		a.ask(ok, "GET", "/events/stats", "")
		for _, deed := range []string{"pause", "pause?workers=true", "resume"} {
			a.ask(ok, "POST", "/queues/q/"+deed, "")
		}
		a.ask(ok, "PATCH", "/queues/q/policy", `{"max_attempts":3,"rate":"50/s","history":100,"history_ms":60000}`)
		a.ask(ok, "PATCH", "/queues/q/policy", `{"rate":null,"history":null,"history_ms":null}`)
		a.ask(ok, "PATCH", "/queues/q/policy?group=g", `{"max_attempts":3}`)

		var dead struct{ Letters []struct{ Letter string } }
		text := a.ask(ok, "GET", "/queues/q/dead", "")
		if err := json.Unmarshal([]byte(text), &dead); err != nil || len(dead.Letters) != 2 {
			t.Fatal(err, text)
		}
		letter := "/queues/q/dead/" + url.PathEscape(dead.Letters[1].Letter)
		a.ask(ok, "GET", letter, "")
		a.ask(ok, "POST", letter+"/redrive?replace_payload=true&in_ms=3600000", "z")
		a.ask(ok, "POST", "/queues/q/dead/redrive?all=true&in_ms=3600000&dry_run=true", "")
		a.ask(ok, "POST", "/queues/q/dead/redrive?error=never&in_ms=3600000", "")
		a.ask(ok, "POST", "/settlements", fmt.Sprintf(`[{"token":%q,"outcome":"dead"}]`, list[5]))
		text = a.ask(ok, "GET", "/queues/q/dead", "")
		if err := json.Unmarshal([]byte(text), &dead); err != nil || len(dead.Letters) != 1 {
			t.Fatal(err, text)
		}
		a.ask(none, "DELETE", "/queues/q/dead/"+url.PathEscape(dead.Letters[0].Letter), "")
		a.ask(ok, "DELETE", "/queues/q/dead?all=true", "")

		a.ask(made, "PUT", "/queues/q/recurrences/nightly", `{"cron":"@daily","payload":"x","overlap":"skip"}`)
		for deed, status := range map[string]int{"pause": ok, "resume": ok, "run": made} {
			a.ask(status, "POST", "/queues/q/recurrences/nightly/"+deed, "")
		}
		a.ask(ok, "GET", "/queues/q/recurrences/nightly", "")
		a.ask(ok, "DELETE", "/queues/q/recurrences/nightly", "")

		slow, err := access.Add(t.Context(), users.admin, users.prefix, access.Token{Name: "slow", Verbs: access.Verbs(),
			Queues: []string{"*"}, Rate: "1/h"})
		if err != nil {
			t.Fatal(err)
		}
		a.token = slow
		a.ask(ok, "GET", "/queues", "")
		a.ask(http.StatusTooManyRequests, "GET", "/queues", "")
		users.deniedNothing("gateway")
	})
}
