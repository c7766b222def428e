package command_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Regression: commands that were refused during a rolling upgrade could not be forced. Only schedule, cancel and recur
// add had a flag for that. The flag now wins over the variable DUESTREAM_ALLOW_OLD_BRIDGES, in both directions.
func TestCommandsGoOnBesideOldBridgesWhenToldTo(t *testing.T) {
	recurrences := filepath.Join(t.TempDir(), "recurrences.yaml")
	text := "owner: billing\nrecurrences:\n  - {queue: q, name: ping, every: 1h}\n"
	if err := os.WriteFile(recurrences, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	exported := `{"kind":"header","version":1,"queue":"q","prefix":"p"}
{"kind":"scheduled","id":"keyed","due_ms":4102444800000,"payload":"x","extra":{"key":"k"}}
{"kind":"recurrence","id":"tick","payload":"{\"every_ms\":3600000}"}
{"kind":"end","count":2}
`
	commands := []struct {
		stdin string
		args  []string
	}{
		{exported, []string{"import", "q"}},
		{"", []string{"queue", "set", "q", "--create", "rate=10/s", "ready_limit=100"}},
		{"", []string{"recur", "apply", "-f", recurrences}},
	}
	for _, command := range commands {
		c := clitest.New(t)
		beatOld(c) // before each command anew, because a heartbeat expires
		r := c.RunIn(command.stdin, command.args...)
		if r.Code == exit.OK || !strings.Contains(r.Err, "a bridge is alive that does not serve this") {
			t.Errorf("%q beside an older bridge: %+v", command.args, r)
		}
		beatOld(c)
		if r := c.RunIn(command.stdin, append(command.args, "--allow-old-bridges")...); r.Code != exit.OK {
			t.Errorf("%q, told to go on: %+v", command.args, r)
		}
	}
	t.Setenv("DUESTREAM_ALLOW_OLD_BRIDGES", "true")
	for _, command := range commands {
		c := clitest.New(t)
		beatOld(c)
		if r := c.RunIn(command.stdin, append(command.args, "--allow-old-bridges=false")...); r.Code == exit.OK {
			t.Errorf("%q, told not to go on, whatever the environment says: %+v", command.args, r)
		}
		beatOld(c)
		if r := c.RunIn(command.stdin, command.args...); r.Code != exit.OK {
			t.Errorf("%q, told to go on by the environment: %+v", command.args, r)
		}
	}
}

// Regression: over HTTP, messages with a key got 503 until the last bridge of the previous release was gone. With
// --allow-old-bridges or its variable, they are now accepted. keyed is the status of the reply to a message with a key;
// recurrences and rates, which old bridges may not support either, are accepted in the same cases.
func TestGatewaysGoOnBesideOldBridgesWhenToldTo(t *testing.T) {
	for _, one := range []struct {
		args  []string
		env   string
		keyed int
	}{
		{[]string{"gateway"}, "false", http.StatusServiceUnavailable},
		{[]string{"gateway", "--allow-old-bridges"}, "false", http.StatusCreated},
		{[]string{"gateway"}, "true", http.StatusCreated},
		{[]string{"gateway", "--allow-old-bridges=false"}, "true", http.StatusServiceUnavailable},
		{[]string{"serve"}, "false", http.StatusServiceUnavailable},
		{[]string{"serve", "--allow-old-bridges"}, "false", http.StatusCreated},
	} {
		t.Run(strings.Join(one.args, " ")+" "+one.env, func(t *testing.T) {
			t.Setenv("DUESTREAM_ALLOW_OLD_BRIDGES", one.env)
			c := clitest.New(t)
			var added struct{ Secret string }
			c.JSON(&added, "token", "add", "all", "--verb", "publish,operate", "--queue", "*")
			at := c.Start(append(one.args, "--http", "127.0.0.1:0")...).Address()
			beatOld(c)
			ask := func(method, path, body string) int {
				req, err := http.NewRequestWithContext(t.Context(), method, "http://"+at+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+added.Secret)
				req.Header.Set("Content-Type", "application/json")
				client := http.Client{Timeout: 20 * time.Second}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
				return res.StatusCode
			}
			redistest.Want(t, "with a key", ask("POST", "/v1/queues/q/messages?in_ms=3600000&key=k", "x"), one.keyed)
			redistest.Want(t, "without", ask("POST", "/v1/queues/q/messages?in_ms=3600000", "x"), http.StatusCreated)
			recurs := ask("PUT", "/v1/queues/q/recurrences/tick", `{"every_ms":3600000}`)
			redistest.Want(t, "a recurrence is taken", strconv.FormatBool(recurs < 300),
				strconv.FormatBool(one.keyed < 300))
			beatOld(c)
			rate := ask("PATCH", "/v1/queues/q/policy", `{"rate":"10/s"}`)
			redistest.Want(t, "a rate is taken", strconv.FormatBool(rate < 300), strconv.FormatBool(one.keyed < 300))
		})
	}
}

// beatOld writes the heartbeat of a bridge of the previous release. It has no protocol level, so the bridge may
// support neither keys nor rates.
func beatOld(c *clitest.CLI) {
	c.T.Helper()
	client := c.Server.Client(c.T)
	clock, err := client.Do(c.T.Context(), client.B().Time().Build()).AsIntSlice()
	if err != nil {
		c.T.Fatal(err)
	}
	beat := client.B().Zadd().Key(lua.NewGlobals(c.Prefix).Bridges).ScoreMember().
		ScoreMember(float64(clock[0]*1000), "01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v1.2.3").Build()
	if err := client.Do(c.T.Context(), beat).Error(); err != nil {
		c.T.Fatal(err)
	}
}
