package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "messages.ndjson")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func (c *cli) scheduled(queue string) int64 {
	c.t.Helper()
	var all []admin.QueueStats
	if c.json(&all, "stats"); len(all) == 0 { // the queue is unknown yet
		return 0
	}
	at := slices.IndexFunc(all, func(s admin.QueueStats) bool { return s.Queue == queue })
	return all[max(0, at)].Scheduled
}

func TestFileIsScheduledAndItsBadLinesAreReported(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := writeFile(t,
		"\ufeff"+`{"id":"text","payload":"h\u00e9llo","in_ms":3600000,"headers":{"a":"b"},"max_attempts":3,"expires_ms":4102444800000}
{"id":"json","payload":{"a": [1, 2.50]},"at_ms":4102444800000}

{"id":"bytes","payload_base64":"AP8=","in_ms":3600000}`+"\r\n"+`{"id":"empty","in_ms":3600000}
{"id":"wrong","paylod":"x"}
not json
{"id":"bad\u0007","in_ms":3600000}
{"in_ms":3600000,"payload":"no id"}
{"id":"text","in_ms":1}
{"id":"past","at_ms":12}
`)
	r := c.run("schedule", "q", "--file", file)
	if r.code != exitPartly || r.out != "scheduled 5, duplicates 1, refused 4 of 10\n" {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	for _, text := range []string{
		"line 6: unknown field \"paylod\"\n", "line 7: is not JSON: ", "line 8: id \"bad\\a\": must not hold control characters\n",
		"line 11: at \"1970-01-01T00:00:00Z\": must be between 2001", "duestream: partly done: refused: 4 lines",
	} {
		if !strings.Contains(r.err, text) {
			t.Errorf("stderr does not say %q:\n%s", text, r.err)
		}
	}
	for id, payload := range map[string]string{"text": "héllo", "json": `{"a":[1,2.50]}`, "bytes": "\x00\xff", "empty": ""} {
		var places []admin.Place
		c.json(&places, "show", "q", id)
		if string(places[0].Payload) != payload {
			t.Errorf("%s: payload %q, want %q", id, places[0].Payload, payload)
		}
		if p := places[0]; id == "text" && (p.Headers["a"] != "b" || p.MaxAttempts != 3 ||
			p.Expires.UnixMilli() != 4102444800000) {
			t.Errorf("%+v", p)
		}
	}
}

func TestFileAgainSchedulesNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	var text strings.Builder
	for i := range 2500 {
		fmt.Fprintf(&text, `{"id":"m-%d","payload":%d,"in_ms":3600000}`+"\n", i, i)
		fmt.Fprintf(&text, `{"payload":"no id","in_ms":3600000}`+"\n")
	}
	text.WriteString("broken\n")
	file := writeFile(t, text.String())
	want := fileTally{Queue: "q", Lines: 5001, Scheduled: 5000, Refused: 1}
	for range 2 {
		var got fileTally
		r := c.run("schedule", "q", "--file", file, "--json")
		decode(t, r.out, &got)
		if r.code != exitPartly || got != want {
			t.Errorf("exit code %d, %+v, want %+v", r.code, got, want)
		}
		if n := c.scheduled("q"); n != 5000 {
			t.Errorf("%d are scheduled", n)
		}
		want.Scheduled, want.Duplicates = 0, 5000
	}
}

func TestFileWithOnlyDuplicatesSucceeds(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := writeFile(t, `{"id":"a"}`) // ready at once, so only the dedup window knows the ID
	c.ok("schedule", "q", "-f", file)
	if out := c.ok("schedule", "q", "-f", file); out != "scheduled 0, duplicates 1, refused 0 of 1\n" {
		t.Error(out)
	}
	if out := c.ok("schedule", "q2", "-f", file, "--dedup", "0s"); !strings.HasPrefix(out, "scheduled 1,") {
		t.Error(out)
	}
	if out := c.ok("schedule", "q2", "-f", file, "--dedup", "0s"); !strings.HasPrefix(out, "scheduled 1,") {
		t.Errorf("without a window an ID is free once its message is ready: %s", out)
	}
}

func TestFromLineSkipsLinesAndKeepsTheirNumbers(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := writeFile(t, "{\"in_ms\":3600000}\n{\"in_ms\":3600000}\nbroken\n{\"in_ms\":3600000}\n")
	r := c.run("schedule", "q", "-f", file, "--from-line", "2")
	if r.out != "scheduled 2, duplicates 0, refused 1 of 3\n" || !strings.Contains(r.err, "line 3: ") {
		t.Errorf("%+v", r)
	}
	if r = c.run("schedule", "q", "-f", file); r.out != "scheduled 1, duplicates 2, refused 1 of 4\n" {
		t.Errorf("%+v", r)
	}
}

// A line that arrives slowly does not wait for a full batch.
func TestLinesOfASlowPipeAreScheduledAsTheyCome(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	in, feed := io.Pipe()
	out, code := new(buffer), make(chan int, 1)
	go func() {
		code <- run(context.Background(), testVersion, c.args([]string{"schedule", "q", "--file", "-"}), in, out, out)
	}()
	for i := range 3 {
		fmt.Fprintf(feed, `{"id":"m-%d","in_ms":3600000}`+"\n"+`{"id":`, i)
		redistest.Eventually(t, patience, func() (bool, string) {
			r := c.run("show", "q", fmt.Sprintf("m-%d", i))
			return r.code == exitOK, r.err + out.String()
		})
		fmt.Fprintf(feed, `"x-%d","in_ms":3600000}`+"\n", i)
	}
	feed.Close()
	if got := <-code; got != exitOK || out.String() != "scheduled 6, duplicates 0, refused 0 of 6\n" {
		t.Errorf("exit code %d: %s", got, out)
	}
}

func TestInterruptedFileSaysWhatWasTaken(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	in, feed := io.Pipe()
	defer feed.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	out, code := new(buffer), make(chan int, 1)
	go func() { code <- run(ctx, testVersion, c.args([]string{"schedule", "q", "-f", "-"}), in, out, out) }()
	fmt.Fprintf(feed, `{"id":"a","in_ms":3600000}`+"\n"+`{`)
	redistest.Eventually(t, patience, func() (bool, string) { return c.run("show", "q", "a").code == exitOK, out.String() })
	interrupt()
	if got := <-code; got != exitInterrupted || !strings.HasPrefix(out.String(), "scheduled 1, ") {
		t.Errorf("exit code %d: %s", got, out)
	}
}

func TestRedisGoneInTheMiddleOfAFileLosesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	c := newCLIOn(t, s)
	var text strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&text, `{"id":"m-%d","in_ms":3600000}`+"\n", i)
	}
	file := writeFile(t, text.String())
	first := c.start("schedule", "q", "-f", file, "--json")
	redistest.Eventually(t, patience, func() (bool, string) { return c.scheduled("q") > 1000, "nothing yet" })
	s.Kill()
	code := first.wait()
	var tally fileTally
	decode(t, first.out.String(), &tally)
	if code != exitUnavailable || tally.GoOnFrom == 0 ||
		!strings.Contains(first.err.String(), fmt.Sprintf("--from-line %d", tally.GoOnFrom)) {
		t.Fatalf("exit code %d, %+v: %s", code, tally, first.err)
	}
	s.Start()
	c.ok("schedule", "q", "-f", file, "--from-line", fmt.Sprint(tally.GoOnFrom))
	if n := c.scheduled("q"); n != 20_000 {
		t.Errorf("%d of 20000 are scheduled, after the rest from line %d", n, tally.GoOnFrom)
	}
}

func TestLargestPayloadFitsALine(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	payload := strings.Repeat("/", admin.MaxPayloadBytes)
	line := `{"id":"big","in_ms":3600000,"payload":"` + payload + `"}` + "\n" +
		`{"id":"bigger","in_ms":3600000,"payload":"` + payload + `x"}`
	r := c.runIn(line, "schedule", "q", "-f", "-")
	if r.code != exitPartly || !strings.Contains(r.err, "line 2: payload of 16777217 bytes: must be at most 16777216 bytes") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
}

func TestLineErrorsNameTheField(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		`[1]`:                               "is a JSON array: must be an object",
		`{"id":7}`:                          "id: is a JSON number: must be a string",
		`{"in_ms":1.5}`:                     "in_ms: is a JSON number 1.5: must be a whole number",
		`{"in_ms":"1"}`:                     "in_ms: is a JSON string: must be a whole number",
		`{"in_ms":-1}`:                      `in_ms "-1ms": must be between 0 and`,
		`{"in_ms":9223372036854775807}`:     "in_ms 9223372036854775807: is out of range",
		`{"in_ms":1,"at_ms":1}`:             "in_ms and at_ms: only one may be given",
		`{"headers":[]}`:                    "headers: here is a JSON array: must be an object of strings",
		`{"headers":{"a":1}}`:               "headers: here is a JSON number: must be an object of strings",
		`{"max_attempts":0}`:                `max_attempts "0": must be between`,
		`{"payload":1,"payload_base64":""}`: "payload and payload_base64: only one may be given",
		`{"payload_base64":"*"}`:            "payload_base64: is not base64",
		`{"payload":"x"} x`:                 "there is more behind the JSON object",
		`{"payload":"x"`:                    "is not JSON: unexpected EOF",
		"{\"payload\":\"\xff\"}":            "is not UTF-8",
	} {
		_, err := parseLine([]byte(line), 1, bridge.NewMessage{Dedup: time.Hour})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, want %q", line, err, says)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"id":"a","payload":{"a":1},"in_ms":5,"headers":{"x":"y"}}`))
	f.Add([]byte(`{"payload":"\ud800","at_ms":-9223372036854775808}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parseLine(line, 1, bridge.NewMessage{Dedup: time.Hour})
		again, errAgain := parseLine(line, 1, bridge.NewMessage{Dedup: time.Hour})
		if (err == nil) != (errAgain == nil) || m.ID != again.ID || !bytes.Equal(m.Payload, again.Payload) {
			t.Errorf("the same line is two messages: %+v %v, %+v %v", m, err, again, errAgain)
		}
		if err == nil && m.ID == "" {
			t.Errorf("a message without an ID: %+v", m)
		}
	})
}

// The bug: null became an empty message, and of two values with one name the last one won.
func TestLinesThatSayTwoThingsOrNoneAreRefused(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`null`: "is not a JSON object", `{"id":null}`: "id: is null", `{"in_ms":null}`: "in_ms: is null", `{"headers":null}`: "headers: is null",
		`{"headers":{"a":null}}`: "headers: a: is null", `{"payload_base64":null}`: "payload_base64: is null",
		`{"id":"a","id":"b"}`: "id: is given twice", `{"payload":"a","payload":"b"}`: "payload: is given twice",
		`{"headers":{"a":"1","a":"2"}}`: "headers: a: is given twice", `{"id":"a","ID":"b"}`: `unknown field "ID"`, `{"Payload":"x"}`: `unknown field "Payload"`,
		`{"id":"\ud800"}`: "half a character", `{"payload":"x\udc00"}`: "half a character", `{"payload":"\ud83d\ud83d\ude00"}`: "half a character",
		`{"headers":{"a":"\uD83D"}}`: "half a character",
	} {
		if m, err := parseLine([]byte(line), 1, bridge.NewMessage{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %q", line, m, err, want)
		}
	}
	for line, want := range map[string]bridge.NewMessage{
		`{"id":"a","payload":null}`:                      {ID: "a", Payload: []byte("null")},
		`{"id":"a","payload":{"b":null,"b":1}}`:          {ID: "a", Payload: []byte(`{"b":null,"b":1}`)},
		`{"id":"a","payload":"\ud83d\ude00 \\ud800 \n"}`: {ID: "a", Payload: []byte("😀 \\ud800 \n")},
		`{"id":"a","headers":{"Upper":"\u00e9"}}`:        {ID: "a", Headers: map[string]string{"Upper": "é"}},
	} {
		m, err := parseLine([]byte(line), 1, bridge.NewMessage{})
		if err != nil || m.ID != want.ID || !bytes.Equal(m.Payload, want.Payload) || m.Headers["Upper"] != want.Headers["Upper"] {
			t.Errorf("%s: %+v, %v", line, m, err)
		}
	}
}

// Flags apply to lines that do not set the value themselves. At most ten refusals are printed. Duplicates can be
// listed.
func TestFileTakesFlagsForAllLines(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := writeFile(t, `{"id":"a"}`+"\n"+`{"id":"b","in_ms":7200000,"headers":{"k":"own"}}`+"\n"+strings.Repeat("nonsense\n",
		30)+`{"id":"a"}`+"\n")
	r := c.run("schedule", "q", "--file", file, "--in", "1h", "--header", "k=all", "--header", "l=all",
		"--max-attempts", "7", "--duplicates")
	if r.code != exitPartly || strings.Count(r.err, "is not JSON") != mostRefusals ||
		!strings.Contains(r.err, "refused: 30 lines, see above") ||
		!strings.Contains(r.err, "line 33: duplicate: a is scheduled") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	for id, want := range map[string]struct {
		k  string
		in time.Duration
	}{"a": {"all", time.Hour}, "b": {"own", 2 * time.Hour}} {
		var places []admin.Place
		c.json(&places, "show", "q", id)
		if p := places[0]; p.Headers["k"] != want.k || p.Headers["l"] != "all" || p.MaxAttempts != 7 ||
			time.Until(p.Due) > want.in || time.Until(p.Due) < want.in-30*time.Minute {
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
		ended <- run(ctx, testVersion, c.args([]string{"schedule", "q", "--file", "-", "--in", "1h"}), in, out, errOut)
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

// --spread, or the field of a line, which wins, spreads a burst of one due time. Each ID has its own delay.
func TestSpreadIsByTheID(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	at := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	line := fmt.Sprintf(`{"id":"order-42","at_ms":%d}
{"id":"order-43","at_ms":%d,"spread_ms":1000}
`, at.UnixMilli(), at.UnixMilli())
	if r := c.runIn(line, "schedule", "q", "--file", "-", "--spread", "10m"); r.code != exitOK {
		t.Fatal(r.err)
	}
	c.ok("schedule", "q", "--id", "one", "--at", at.Format(time.RFC3339), "--spread", "10m", "x")
	for id, spread := range map[string]time.Duration{"order-42": 10 * time.Minute, "order-43": time.Second,
		"one": 10 * time.Minute} {
		if due, want := c.place(id).Due, at.Add(lua.SpreadOf(id, spread)); !due.Equal(want) {
			t.Errorf("%s is due %s, want %s", id, due, want)
		}
	}
	c.fails(exitInvalid, nil, "schedule", "q", "--in", "1h", "--spread", "-1s", "x")
	c.fails(exitInvalid, nil, "schedule", "q", "--in", "1h", "--spread", "1h", "--expires-in", "90m", "x")
	r := c.runIn(`{"spread_ms":-1}`, "schedule", "q", "--file", "-")
	if r.code != exitPartly || !strings.Contains(r.err, "spread_ms") {
		t.Error(r.code, r.err)
	}
}
