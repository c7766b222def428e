package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// hostile does to a terminal what nobody asked for: clears it, sets its title, turns the direction of writing, in seven and in eight bits.
const hostile = "x\x1b[2J\x1b]0;title\x07\r\b\x7f\u009b31m\u202egnp\u2066\u2028\xff\x9b2J"

// orders reports the characters of a text that a terminal, or an eye, takes for something else.
func orders(text string) (found []string) {
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		if r != '\n' && r != '\t' && (isOrder(r) || r == utf8.RuneError && size == 1) {
			found = append(found, text[max(0, i-10):i+size])
		}
	}
	return found
}

// A reason that FCALL had taken printed escapes in the lists of dead letters. Whatever a foreign client put anywhere, no command prints
// an order to the terminal, neither as text nor as JSON, nor in an error.
func TestNoTextFromRedisGivesATerminalOrders(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	do := func(args ...string) {
		t.Helper()
		if err := c.redis().Do(t.Context(), c.redis().B().Arbitrary(args...).Build()).Error(); err != nil {
			t.Fatal(args, err)
		}
	}
	do("HSET", c.prefix+":queues", "q", "1", hostile, "1")
	do("XGROUP", "CREATE", c.key("q", "stream"), hostile, "0", "MKSTREAM")
	do("XADD", c.key("q", "stream"), "1-1", "id", hostile, "payload", hostile, "attempt", "1", "h:"+hostile, hostile, "error", hostile, "for", hostile)
	do("XREADGROUP", "GROUP", hostile, hostile, "COUNT", "1", "STREAMS", c.key("q", "stream"), ">")
	do("XADD", c.key("q", "dead"), "1-1", "id", hostile, "payload", hostile, "group", hostile, "reason", hostile, "error", hostile, "attempt", hostile,
		"h:"+hostile, hostile, hostile, hostile, "dead_ms", "1", "entry", hostile)
	do("ZADD", c.key("q", "due"), "4102444800000", hostile)
	do("HSET", c.key("q", "payload"), hostile, hostile)
	do("HSET", c.key("q", "meta"), hostile, `{"h:`+"\u009b"+`":"`+"\u202e"+`"}`)
	do("HSET", c.key("q", "policy"), "max_attempts", hostile)
	do("ZADD", c.prefix+":bridges", "1", hostile)
	for _, line := range []string{
		"stats", "stats q", "peek q --payload", "queue show", "queue show q", "consumers q", "dead list q", "dead list q --summary", "dead show q 1-1", "find x",
		"health", "top --once --interval 100ms", "doctor --quick", "export q", "dead redrive q --all --dry-run", "dead purge q --all --dry-run", "functions show",
		"show q x", "dead show q 2-2", "cancel q x", "pending q x",
	} {
		var three sync.WaitGroup
		for _, with := range []string{"", " --json", " --color always"} {
			if with == " --json" && line == "export q" {
				continue
			}
			three.Go(func() {
				r := c.run(strings.Fields(line + with)...)
				for _, text := range []string{r.out, r.err} {
					if with == " --color always" {
						text = controls.ReplaceAllString(text, "")
					}
					if bad := orders(text); len(bad) > 0 {
						t.Errorf("%s%s prints %q", line, with, bad)
					}
				}
			})
		}
		three.Wait()
	}
}

func FuzzHarmless(f *testing.F) {
	f.Add(hostile, true, 3)
	f.Add("plain \x1b[31mred\x1b[0m é 😀", false, 1)
	f.Fuzz(func(t *testing.T, text string, inJSON bool, cut int) {
		var out bytes.Buffer
		a := &app{json: inJSON, color: "never"}
		o := a.outlet(&out)
		whole := text
		if inJSON {
			line, _ := plainJSON(text)
			whole = string(line)
		}
		cut = min(max(0, cut), len(whole))
		_, _ = o.Write([]byte(whole[:cut]))
		_, _ = o.Write([]byte(whole[cut:]))
		_ = o.end()
		if bad := orders(out.String()); len(bad) > 0 {
			t.Errorf("%q gives %q", whole, bad)
		}
		var back string
		if inJSON && (json.Unmarshal(out.Bytes(), &back) != nil || back != strings.ToValidUTF8(text, "\ufffd") && utf8.ValidString(text)) {
			t.Errorf("%q became %q", text, back)
		}
	})
}

func TestPasswordsMayComeFromFilesAndVariables(t *testing.T) {
	s := redistest.Own(t)
	c := newCLIOn(t, s)
	s.Do(t, "ACL", "SETUSER", "low", "on", ">secret", "~*", "&*", "+@all")
	c.url = "redis://low@" + s.Addr()
	c.fails(exitFailure, []string{"denies access", "hint: check user and password in the URL"}, "stats")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DUESTREAM_REDIS_PASSWORD_FILE", file)
	c.ok("stats")
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The hint sent its reader to the URL, which has no password.
	t.Setenv("DUESTREAM_REDIS_PASSWORD_FILE", wrong)
	c.fails(exitFailure, []string{"denies access", "hint: check the password in " + wrong + " (DUESTREAM_REDIS_PASSWORD_FILE), the user in the URL"}, "stats")
	c.fails(exitFailure, []string{"denies access", wrong}, "health")
	t.Setenv("DUESTREAM_REDIS_PASSWORD_FILE", file)
	inURL := newCLIOn(t, s)
	inURL.url = "redis://low:wrong@" + s.Addr()
	inURL.fails(exitFailure, []string{"hint: check user and password in the URL"}, "stats")
	t.Setenv("DUESTREAM_REDIS_PASSWORD", "other")
	if r := c.fails(exitInvalid, []string{"only one may be"}, "stats"); strings.Contains(r.err, "other") {
		t.Error(r.err)
	}
	os.Unsetenv("DUESTREAM_REDIS_PASSWORD_FILE")
	c.fails(exitFailure, []string{"denies access", "hint: check the password in DUESTREAM_REDIS_PASSWORD, the user"}, "stats")
	t.Setenv("DUESTREAM_REDIS_PASSWORD", "secret")
	c.ok("stats")
}

func TestShowRawPrintsThePayloadAndLargeOnesAreCutForPeople(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	payload := "\x00\x1b[2J\xff\n" + strings.Repeat("é", 5000)
	if r := c.runIn(payload, "schedule", "q", "--id", "one", "--in", "1h"); r.code != exitOK {
		t.Fatal(r)
	}
	if out := c.ok("show", "q", "one", "--raw"); out != payload {
		t.Errorf("%d bytes, want %d", len(out), len(payload))
	}
	if text := payloadText([]byte(strings.Repeat("é", 5000)), true); len(text) > 5000 || !strings.Contains(text, "… and 5,904 more bytes: --raw") {
		t.Errorf("%d bytes: %s", len(text), text[len(text)-80:])
	}
	if text := payloadText([]byte(strings.Repeat("é", 5000)), false); len(text) != 10_000 {
		t.Errorf("%d bytes", len(text))
	}
}

// Flags hold for the lines that do not say so themselves; the refused ones stop being printed at ten; duplicates can be listed.
func TestFileTakesFlagsForAllLines(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := writeFile(t, `{"id":"a"}`+"\n"+`{"id":"b","in_ms":7200000,"headers":{"k":"own"}}`+"\n"+strings.Repeat("nonsense\n", 30)+`{"id":"a"}`+"\n")
	r := c.run("schedule", "q", "--file", file, "--in", "1h", "--header", "k=all", "--header", "l=all", "--max-attempts", "7", "--duplicates")
	if r.code != exitPartly || strings.Count(r.err, "is not JSON") != mostRefusals || !strings.Contains(r.err, "refused: 30 lines, see above") ||
		!strings.Contains(r.err, "line 33: duplicate: a is scheduled") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	for id, want := range map[string]struct {
		k  string
		in time.Duration
	}{"a": {"all", time.Hour}, "b": {"own", 2 * time.Hour}} {
		var places []bridge.Place
		c.json(&places, "show", "q", id)
		if p := places[0]; p.Headers["k"] != want.k || p.Headers["l"] != "all" || p.MaxAttempts != 7 || time.Until(p.Due) > want.in || time.Until(p.Due) < want.in-30*time.Minute {
			t.Errorf("%s: %+v", id, p)
		}
	}
}

func TestFileThatIsInterruptedSaysWhereToGoOn(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	in, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer write.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errOut, ended := new(buffer), new(buffer), make(chan int, 1)
	go func() {
		ended <- run(ctx, c.args([]string{"schedule", "q", "--file", "-", "--in", "1h"}), in, out, errOut)
	}()
	if _, err := write.WriteString("{\"id\":\"a\"}\n{\"id\":\"b\"}\n"); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, patience, func() (bool, string) { return c.scheduled("q") == 2, out.String() + errOut.String() })
	cancel()
	if code := <-ended; code != exitInterrupted || !strings.Contains(errOut.String(), "go on with --from-line ") {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
}

func TestAReasonThatDoesNotExistIsRefused(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: unreachable}
	for _, command := range []string{"list", "redrive", "purge"} {
		c.fails(exitInvalid, []string{`reason "expierd": must be one of max_attempts, `}, "dead", command, "q", "--reason", "expierd", "--limit", "5")
	}
}
