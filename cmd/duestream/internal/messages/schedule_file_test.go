package messages_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/linefile"
	"github.com/duestream/duestream/cmd/duestream/internal/messages"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// writeFile writes a file of messages, and returns its name.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "messages.ndjson")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// The good lines of a file are scheduled, and each bad line is reported with its number. A byte order mark, empty lines
// and line ends of Windows are no errors; empty lines count in the numbers, but not as lines.
func TestFileIsScheduledAndItsBadLinesAreReported(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	// 4102444800000 is the beginning of the year 2100.
	file := writeFile(t,
		"\ufeff"+`{"id":"text","payload":"h\u00e9llo","in_ms":3600000,"headers":{"a":"b"},"max_attempts":3,`+
			`"expires_ms":4102444800000}
{"id":"json","payload":{"a": [1, 2.50]},"at_ms":4102444800000}

{"id":"bytes","payload_base64":"AP8=","in_ms":3600000}`+"\r\n"+`{"id":"empty","in_ms":3600000}
{"id":"wrong","paylod":"x"}
not json
{"id":"bad\u0007","in_ms":3600000}
{"in_ms":3600000,"payload":"no id"}
{"id":"text","in_ms":1}
{"id":"past","at_ms":12}
`)
	r := c.Run("schedule", "q", "--file", file)
	if r.Code != exit.Partly || r.Out != "scheduled 5, duplicates 1, refused 4 of 10\n" {
		t.Errorf("exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	for _, text := range []string{
		"line 6: unknown field \"paylod\"\n", "line 7: is not a JSON object",
		"line 8: id \"bad\\a\": must not hold control characters\n",
		"line 11: at_ms \"1970-01-01T00:00:00Z\": must be between 2001", "duestream: partly done: refused: 4 lines",
	} {
		if !strings.Contains(r.Err, text) {
			t.Errorf("stderr does not say %q:\n%s", text, r.Err)
		}
	}
	for id, payload := range map[string]string{"text": "héllo", "json": `{"a":[1,2.50]}`, "bytes": "\x00\xff",
		"empty": ""} {
		var places []admin.Place
		c.JSON(&places, "show", "q", id)
		if string(places[0].Payload) != payload {
			t.Errorf("%s: payload %q, want %q", id, places[0].Payload, payload)
		}
		if p := places[0]; id == "text" && (p.Headers["a"] != "b" || p.MaxAttempts != 3 ||
			p.Expires.UnixMilli() != 4102444800000) {
			t.Errorf("%+v", p)
		}
	}
}

// A file that is scheduled twice schedules each message once. This holds for lines without an ID, too: a line's ID
// follows from its number and text.
func TestFileAgainSchedulesNothing(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	var text strings.Builder
	for i := range 2500 {
		fmt.Fprintf(&text, `{"id":"m-%d","payload":%d,"in_ms":3600000}`+"\n", i, i)
		fmt.Fprintf(&text, `{"payload":"no id","in_ms":3600000}`+"\n")
	}
	text.WriteString("broken\n")
	file := writeFile(t, text.String())
	want := messages.FileTally{Queue: "q", Lines: 5001, Scheduled: 5000, Refused: 1}
	for range 2 {
		var got messages.FileTally
		r := c.Run("schedule", "q", "--file", file, "--json")
		clitest.Decode(t, r.Out, &got)
		if r.Code != exit.Partly || got != want {
			t.Errorf("exit code %d, %+v, want %+v", r.Code, got, want)
		}
		if n := c.Scheduled("q"); n != 5000 {
			t.Errorf("%d are scheduled", n)
		}
		want.Scheduled, want.Duplicates = 0, 5000
	}
}

// A second run of a file finds only duplicates, and this is a success. Without a dedup window, the ID of a message that
// is ready already is free again.
func TestFileWithOnlyDuplicatesSucceeds(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	file := writeFile(t, `{"id":"a"}`) // ready at once, so only the dedup window knows the ID
	c.OK("schedule", "q", "-f", file)
	if out := c.OK("schedule", "q", "-f", file); out != "scheduled 0, duplicates 1, refused 0 of 1\n" {
		t.Error(out)
	}
	if out := c.OK("schedule", "q2", "-f", file, "--dedup", "0s"); !strings.HasPrefix(out, "scheduled 1,") {
		t.Error(out)
	}
	if out := c.OK("schedule", "q2", "-f", file, "--dedup", "0s"); !strings.HasPrefix(out, "scheduled 1,") {
		t.Errorf("without a window an ID is free once its message is ready: %s", out)
	}
}

// --from-line counts the skipped lines, so errors name the right line, and a line without an ID gets the same ID as in
// a run of the whole file.
func TestFromLineSkipsLinesAndKeepsTheirNumbers(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	file := writeFile(t, "{\"in_ms\":3600000}\n{\"in_ms\":3600000}\nbroken\n{\"in_ms\":3600000}\n")
	r := c.Run("schedule", "q", "-f", file, "--from-line", "2")
	if r.Out != "scheduled 2, duplicates 0, refused 1 of 3\n" || !strings.Contains(r.Err, "line 3: ") {
		t.Errorf("%+v", r)
	}
	if r = c.Run("schedule", "q", "-f", file); r.Out != "scheduled 1, duplicates 2, refused 1 of 4\n" {
		t.Errorf("%+v", r)
	}
}

// A line that arrives slowly does not wait for a full batch. The pipe has half of the next line when the message must
// be there.
func TestLinesOfASlowPipeAreScheduledAsTheyCome(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	in, feed := io.Pipe()
	out, code := new(clitest.Buffer), make(chan int, 1)
	go func() {
		code <- command.Run(context.Background(), clitest.Version, c.Args([]string{"schedule", "q", "--file", "-"}), in,
			out, out)
	}()
	for i := range 3 {
		fmt.Fprintf(feed, `{"id":"m-%d","in_ms":3600000}`+"\n"+`{"id":`, i)
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			r := c.Run("show", "q", fmt.Sprintf("m-%d", i))
			return r.Code == exit.OK, r.Err + out.String()
		})
		fmt.Fprintf(feed, `"x-%d","in_ms":3600000}`+"\n", i)
	}
	feed.Close()
	if got := <-code; got != exit.OK || out.String() != "scheduled 6, duplicates 0, refused 0 of 6\n" {
		t.Errorf("exit code %d: %s", got, out)
	}
}

// After an interrupt, schedule says how many messages it has scheduled, even while half a line has arrived.
func TestInterruptedFileSaysWhatWasTaken(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	in, feed := io.Pipe()
	defer feed.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	out, code := new(clitest.Buffer), make(chan int, 1)
	go func() {
		code <- command.Run(ctx, clitest.Version, c.Args([]string{"schedule", "q", "-f", "-"}), in, out, out)
	}()
	fmt.Fprintf(feed, `{"id":"a","in_ms":3600000}`+"\n"+`{`)
	redistest.Eventually(t, clitest.Patience,
		func() (bool, string) { return c.Run("show", "q", "a").Code == exit.OK, out.String() })
	interrupt()
	if got := <-code; got != exit.Interrupted || !strings.HasPrefix(out.String(), "scheduled 1, ") {
		t.Errorf("exit code %d: %s", got, out)
	}
}

// The server is killed in the middle of a file. The error says from which line to continue, and a run from that line
// schedules all other messages. The server writes each command to disk, so a kill loses none.
func TestRedisGoneInTheMiddleOfAFileLosesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	c := clitest.NewOn(t, s)
	var text strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&text, `{"id":"m-%d","in_ms":3600000}`+"\n", i)
	}
	file := writeFile(t, text.String())
	first := c.Start("schedule", "q", "-f", file, "--json")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) { return c.Scheduled("q") > 1000, "nothing yet" })
	s.Kill()
	code := first.Wait()
	var tally messages.FileTally
	clitest.Decode(t, first.Out.String(), &tally)
	if code != exit.Unavailable || tally.GoOnFrom == 0 ||
		!strings.Contains(first.Err.String(), fmt.Sprintf("--from-line %d", tally.GoOnFrom)) {
		t.Fatalf("exit code %d, %+v: %s", code, tally, first.Err)
	}
	s.Start()
	c.OK("schedule", "q", "-f", file, "--from-line", fmt.Sprint(tally.GoOnFrom))
	if n := c.Scheduled("q"); n != 20_000 {
		t.Errorf("%d of 20000 are scheduled, after the rest from line %d", n, tally.GoOnFrom)
	}
}

// A line can hold the largest payload that is allowed. One byte more is an error of the payload, not of the length of
// the line.
func TestLargestPayloadFitsALine(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	payload := strings.Repeat("/", admin.MaxPayloadBytes)
	line := `{"id":"big","in_ms":3600000,"payload":"` + payload + `"}` + "\n" +
		`{"id":"bigger","in_ms":3600000,"payload":"` + payload + `x"}`
	r := c.RunIn(line, "schedule", "q", "-f", "-")
	if r.Code != exit.Partly || !strings.Contains(r.Err,
		"line 2: payload of 16777217 bytes: must be at most 16777216 bytes") {
		t.Errorf("exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// Flags apply to lines that do not set the value themselves. At most linefile.MostRefusals refusals are printed.
// --duplicates lists duplicates.
func TestFileTakesFlagsForAllLines(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	file := writeFile(t, `{"id":"a"}`+"\n"+`{"id":"b","in_ms":7200000,"headers":{"k":"own"}}`+"\n"+
		strings.Repeat("nonsense\n",
			30)+`{"id":"a"}`+"\n")
	r := c.Run("schedule", "q", "--file", file, "--in", "1h", "--header", "k=all", "--header", "l=all",
		"--max-attempts", "7", "--duplicates")
	if r.Code != exit.Partly || strings.Count(r.Err, "is not a JSON object") != linefile.MostRefusals ||
		!strings.Contains(r.Err, "refused: 30 lines, see above") ||
		!strings.Contains(r.Err, "line 33: duplicate: a is scheduled") {
		t.Errorf("exit code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	for id, want := range map[string]struct {
		k  string
		in time.Duration
	}{"a": {"all", time.Hour}, "b": {"own", 2 * time.Hour}} {
		var places []admin.Place
		c.JSON(&places, "show", "q", id)
		if p := places[0]; p.Headers["k"] != want.k || p.Headers["l"] != "all" || p.MaxAttempts != 7 ||
			time.Until(p.Due) > want.in || time.Until(p.Due) < want.in-30*time.Minute {
			t.Errorf("%s: %+v", id, p)
		}
	}
}

// After an interrupt, schedule says from which line to continue, although it waits for the next line of a pipe.
func TestFileThatIsInterruptedSaysWhereToGoOn(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	in, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer write.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errOut, ended := new(clitest.Buffer), new(clitest.Buffer), make(chan int, 1)
	go func() {
		ended <- command.Run(ctx, clitest.Version, c.Args([]string{"schedule", "q", "--file", "-", "--in", "1h"}), in, out,
			errOut)
	}()
	if _, err := write.WriteString("{\"id\":\"a\"}\n{\"id\":\"b\"}\n"); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, clitest.Patience,
		func() (bool, string) { return c.Scheduled("q") == 2, out.String() + errOut.String() })
	cancel()
	if code := <-ended; code != exit.Interrupted || !strings.Contains(errOut.String(), "go on with --from-line ") {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
}

// --spread delays each message by up to that time, chosen by its ID, so that a burst of one due time is spread. The
// field of a line wins over the flag.
func TestSpreadIsByTheID(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	at := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	line := fmt.Sprintf(`{"id":"order-42","at_ms":%d}
{"id":"order-43","at_ms":%d,"spread_ms":1000}
`, at.UnixMilli(), at.UnixMilli())
	if r := c.RunIn(line, "schedule", "q", "--file", "-", "--spread", "10m"); r.Code != exit.OK {
		t.Fatal(r.Err)
	}
	c.OK("schedule", "q", "--id", "one", "--at", at.Format(time.RFC3339), "--spread", "10m", "x")
	for id, spread := range map[string]time.Duration{"order-42": 10 * time.Minute, "order-43": time.Second,
		"one": 10 * time.Minute} {
		if due, want := c.Place(id).Due, at.Add(lua.SpreadOf(id, spread)); !due.Equal(want) {
			t.Errorf("%s is due %s, want %s", id, due, want)
		}
	}
	c.Fails(exit.Invalid, nil, "schedule", "q", "--in", "1h", "--spread", "-1s", "x")
	c.Fails(exit.Invalid, nil, "schedule", "q", "--in", "1h", "--spread", "1h", "--expires-in", "90m", "x")
	r := c.RunIn(`{"spread_ms":-1}`, "schedule", "q", "--file", "-")
	if r.Code != exit.Partly || !strings.Contains(r.Err, "spread_ms") {
		t.Error(r.Code, r.Err)
	}
}
