package queues_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// import names the line and the fault of each bad record, imports the good ones, and says if the file is not a whole
// export. A file that is no export at all is refused before the command connects.
func TestImportSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	const header = `{"kind":"header","version":1,"queue":"q","prefix":"p"}` + "\n"
	// The message is due in the year 2100, as are those below.
	good := `{"kind":"scheduled","id":"a","due_ms":4102444800000,"payload":"x"}` + "\n"
	end := func(n int) string { return fmt.Sprintf(`{"kind":"end","count":%d}`+"\n", n) }
	nowhere := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for text, says := range map[string]string{
		"":                                     "line 1: the file is empty",
		good:                                   "line 1: is not the first line of an export",
		"nonsense\n":                           "line 1: is not the first line",
		`{"kind":"header","version":2}` + "\n": "line 1: version 2: this duestream reads version 1",
		header[:len(header)-2] + `,"groups":[""]}` + "\n": "line 1: group",
	} {
		if r := nowhere.RunIn(text, "import", "q"); r.Code != exit.Invalid || !strings.Contains(r.Err, says) {
			t.Errorf("%q: %d %s", text, r.Code, r.Err)
		}
	}
	nowhere.Fails(exit.Invalid, nil, "import", "q", "/does/not/exist")
	nowhere.Fails(exit.Invalid, nil, "import", "q", "--from-line", "0")
	nowhere.Fails(exit.Invalid, nil, "import", "q/1")
	if r := nowhere.RunIn(header+good+end(1), "import", "q", "--dry-run"); r.Code != exit.OK ||
		r.Out != "would be imported 1, duplicates 0, refused 0 of 1\n" {
		t.Errorf("%+v", r)
	}
	if r := nowhere.RunIn(header+good+end(1), "import", "q"); r.Code != exit.Unavailable {
		t.Errorf("%+v", r)
	}

	bad := header + good + `{"kind":"scheduled","id":"","due_ms":5}
{"kind":"scheduled","id":"b","due_ms":5,"paylod":""}
not json
{"kind":"other","id":"x"}
{"kind":"dead","letter":"x"}
` + "\xff\n" + `{"kind":"scheduled","member_base64":"eA==","meta_base64":"W10=","due_ms":5}
` + end(8) + good
	r := c.RunIn(bad, "import", "q")
	if r.Code != exit.Partly || r.Out != "imported 1, duplicates 0, refused 8 of 8\n" {
		t.Errorf("%+v", r)
	}
	for _, text := range []string{
		"line 3: id", "line 4: unknown field \"paylod\"", "line 5: is not JSON", "line 6: kind", "line 7: letter", "line 8: is not UTF-8",
		"line 9: meta", "line 11: follows the last line", "partly done: refused: 8 lines, see above\n",
	} {
		if !strings.Contains(r.Err, text) {
			t.Errorf("stderr does not say %q:\n%s", text, r.Err)
		}
	}
	for text, says := range map[string]string{
		header + strings.ReplaceAll(good, `"a"`, `"c"`):          "the file has no last line: it was not exported to its end",
		header + strings.ReplaceAll(good, `"a"`, `"d"`) + end(2): "the last line counts 2 records, and the file has 1",
		header + good + end(1):                                   "1 were there already",
		header + `{"kind":"end","count":0,"left_out":3}`:         "3 damaged entries were left out of the export",
	} {
		if r := c.RunIn(text, "import", "q"); r.Code != exit.Partly || !strings.Contains(r.Err, says) {
			t.Errorf("%q: %d %s%s", text, r.Code, r.Out, r.Err)
		}
	}
	if r := c.RunIn(header+good+strings.ReplaceAll(good, `"a"`, `"e"`)+end(2), "import", "q",
		"--from-line", "3"); r.Code != exit.OK || !strings.HasPrefix(r.Out, "imported 1,") {
		t.Errorf("%+v", r)
	}
	// Without its group, a retry would be skipped by all other groups for ever, so the group is created.
	one := `{"kind":"scheduled","id":"r","for":"alone","entry":"17-0","attempt":2,"due_ms":4102444800000}` + "\n"
	if r := c.RunIn(header+one+end(1), "import", "q", "--no-groups"); r.Code != exit.OK ||
		!strings.HasSuffix(r.Out, "created 1 group: alone\n") {
		t.Errorf("%+v", r)
	}
}

// After an interrupt, even while it waits for the next line, all lines read so far are imported, and the line to
// continue from is reported.
func TestImportThatIsInterruptedSaysWhereToGoOn(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	in, write := io.Pipe()
	defer write.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errOut, ended := new(clitest.Buffer), new(clitest.Buffer), make(chan int, 1)
	go func() { ended <- command.Run(ctx, clitest.Version, c.Args([]string{"import", "q"}), in, out, errOut) }()
	fmt.Fprint(write, `{"kind":"header","version":1,"queue":"q","prefix":"p"}
{"kind":"scheduled","id":"a","due_ms":4102444800000,"payload":"x"}
{"kind":"scheduled","id":"b","due_ms":4102444800000,"payload":"x"}
`)
	redistest.Eventually(t, clitest.Patience,
		func() (bool, string) { return c.Scheduled("q") == 2, out.String() + errOut.String() })
	cancel()
	select {
	case code := <-ended:
		if code != exit.Interrupted || !strings.HasPrefix(out.String(), "imported 2,") ||
			!strings.Contains(errOut.String(), "go on with --from-line 4,") {
			t.Errorf("exit code %d: %s%s", code, out, errOut)
		}
	case <-time.After(clitest.Patience):
		t.Error("it did not end")
	}
}
