package docs

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/languages"
	"github.com/duestream/duestream/integration/redistest"
)

// recipes are the pages of docs/guides whose commands and Go code are executed. The other pages are named here.
func recipes(t *testing.T) []string {
	t.Helper()
	others := []string{"README.md", "callbacks.md", "dashboard.md", "dashboard-pictures.md", "node.md",
		"outbox.md", "python.md", "testing.md", "tracing.md"}
	files, err := filepath.Glob(filepath.Join("..", "..", "docs", "guides", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, file := range files {
		if name := filepath.Base(file); !slices.Contains(others, name) {
			pages = append(pages, "docs/guides/"+name)
		}
	}
	if len(pages) < 14 {
		t.Fatalf("%d pages: %v", len(pages), pages)
	}
	return pages
}

// withoutTranscripts are recipes that have no commands, only code.
var withoutTranscripts = []string{"docs/guides/idempotent-handlers.md", "docs/guides/results-and-progress.md",
	"docs/guides/test-a-handler.md",
	"docs/guides/typed-messages.md", "docs/guides/batches-and-rates.md",
	"docs/guides/from-asynq.md", "docs/guides/from-celery.md", "docs/guides/from-delayqueue.md",
	"docs/guides/from-sidekiq.md", "docs/guides/from-sqs.md", "docs/guides/migrate-from-bullmq.md"}

// TestGuides replays the commands of docs/guides, duestream and redis-cli alike: all pages at once, on one server with
// one bridge, and the blocks of a page in order. Transcripts of redis-cli have the form of TestDocumentedTranscripts.
// In a transcript of the command (```console)
//
//	# within 5 s        repeats the next line until its output is the documented one
//	$ COMMAND           is run by bash, with the duestream of this tree; its whole output follows
//	$ COMMAND &         runs until the page ends
//	…                   stands for any text, and on a line of its own for any lines
//
// A block ```python NAME or ```ruby NAME is written to that file before the commands run. Python can import the package
// of clients/python, and Ruby the files of examples/ruby.
func TestGuides(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	runDefaultBridge(t, server)
	op := redistest.Must(admin.New(dial(t, server), ""))
	if _, err := op.LoadFunctions(t.Context(), "", false); err != nil {
		t.Fatal(err)
	}
	languages.Ruby(t)
	path := strings.Join([]string{
		filepath.Dir(languages.Build(t)),
		filepath.Dir(redistest.PythonWithRedis(t)),
		os.Getenv("PATH"),
	}, ":")
	env := append(os.Environ(), "DUESTREAM_REDIS_URL="+server.URL(), "PATH="+path, pythonPath(t),
		"RUBYLIB="+redistest.Must(filepath.Abs("../../examples/ruby")))
	for _, page := range recipes(t) {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			commands, plain := fencedBlocks(t, page, "console"), fencedBlocks(t, page, "redis-cli")
			if (len(commands) == 0 || len(plain) == 0) != slices.Contains(withoutTranscripts, page) {
				t.Errorf("%d transcripts of the command, %d of redis-cli", len(commands), len(plain))
			}
			replayPage(t, page, server.URL(), env)
		})
	}
}

// replayPage runs the transcripts of a page in order.
func replayPage(t *testing.T, page, url string, env []string) {
	t.Helper()
	c := console{t: t, dir: t.TempDir(), env: env}
	writePrograms(t, page, c.dir)
	r := replay{t: t, url: url, known: map[string]string{}}
	run := map[int]func(){}
	for _, b := range fencedBlocks(t, page, "console") {
		run[b.line] = func() { c.block(b) }
	}
	for _, b := range fencedBlocks(t, page, "redis-cli") {
		run[b.line] = func() { r.runBlock(b) }
	}
	for _, line := range slices.Sorted(maps.Keys(run)) {
		run[line]()
	}
}

// pythonPath is the variable that lets Python import the package of clients/python.
func pythonPath(t *testing.T) string {
	t.Helper()
	return "PYTHONPATH=" + redistest.Must(filepath.Abs("../../clients/python/src"))
}

// The loop of from-sqs.md forwards each message once, although it was killed after it had stored the first one. The
// stub stands for boto3.
func TestTheLoopThatForwardsFromSQS(t *testing.T) {
	t.Parallel()
	server, dir := redistest.Own(t), t.TempDir()
	writePrograms(t, "docs/guides/from-sqs.md", dir)
	cmd := exec.Command(redistest.PythonWithRedis(t), "-c", `
import sys
from duestream import Client
from forward import forward

class SQS:
    def __init__(self):
        self.messages = {"r1": "one", "r2": "two"}
    def receive_message(self, **_):
        attributes = {"kind": {"DataType": "String", "StringValue": "parcel"}}
        return {"Messages": [{"MessageId": "id-" + handle, "Body": body, "ReceiptHandle": handle,
                              "MessageAttributes": attributes} for handle, body in self.messages.items()]}
    def delete_message(self, QueueUrl, ReceiptHandle):
        del self.messages[ReceiptHandle]

sqs, client = SQS(), Client(sys.argv[1])
client.schedule("forwarded", "one", id="id-r1", dedup=60)
forward(sqs, "url", client, "forwarded")
print(sqs.messages, client.schedule("forwarded", "three").id != "")
`, server.URL())
	cmd.Dir, cmd.Env = dir, append(os.Environ(), pythonPath(t))
	printed, err := cmd.CombinedOutput()
	if err != nil || string(printed) != "{} True\n" {
		t.Fatalf("%s, %v", printed, err)
	}
	records := 0
	op := redistest.Must(admin.New(dial(t, server), ""))
	for r, err := range op.Export("forwarded", admin.RecordScheduled, admin.RecordReady).Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		records++
		if r.ID == "id-r2" && r.Headers["kind"] != "parcel" {
			t.Errorf("headers %v", r.Headers)
		}
	}
	redistest.Want(t, "messages", records, 3)
}

// writePrograms writes the programs that a page shows into a directory.
func writePrograms(t *testing.T, page, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?s)\n```(?:python|ruby) ([a-z_.]+)\n(.*?)```\n").FindAllSubmatch(text, -1) {
		if err := os.WriteFile(filepath.Join(dir, string(m[1])), m[2], 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The Go code of docs/guides occurs, line by line, in examples that are compiled, run, and compared with their output.
func TestGuidesGo(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("..", "..", "bridge", "guides_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	// These examples need a database, and the tests of package bridge must not import its driver.
	ofOnce, err := os.ReadFile(filepath.Join("..", "..", "bridge", "once", "example_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	code := trimmed(strings.Split(string(source)+string(ofOnce), "\n"))
	var blocks []fenced
	for _, page := range recipes(t) {
		blocks = append(blocks, fencedBlocks(t, page, "go")...)
	}
	examples := len(regexp.MustCompile(`(?m)^func Example_`).FindAll(source, -1))
	if len(blocks) < examples || examples < 12 {
		t.Errorf("%d snippets, %d examples", len(blocks), examples)
	}
	for _, b := range blocks {
		if !strings.Contains(code, trimmed(b.lines)) {
			t.Errorf("%s:%d: this is not in bridge/guides_test.go:\n%s", b.document, b.line, strings.Join(b.lines, "\n"))
		}
	}
}

// trimmed joins lines without their indentation.
func trimmed(lines []string) string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = strings.TrimSpace(line)
	}
	return "\n" + strings.Join(out, "\n") + "\n"
}

// The Go code of pages about one package is in the examples of that package.
func TestGuidesOfOnePackage(t *testing.T) {
	t.Parallel()
	for page, example := range map[string]string{
		"docs/guides/dashboard.md": "bridge/dashboard/example_test.go",
		"docs/guides/outbox.md":    "bridge/outbox/example_test.go",
		"docs/guides/testing.md":   "bridge/bridgetest/guide_test.go",
	} {
		source, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(example)))
		if err != nil {
			t.Fatal(err)
		}
		blocks := fencedBlocks(t, page, "go")
		if len(blocks) == 0 {
			t.Errorf("%s has no Go code", page)
		}
		code := trimmed(strings.Split(string(source), "\n"))
		for _, b := range blocks {
			if !strings.Contains(code, trimmed(b.lines)) {
				t.Errorf("%s:%d: this is not in %s:\n%s", b.document, b.line, example, strings.Join(b.lines, "\n"))
			}
		}
	}
}

// console runs the lines of a shell transcript.
type console struct {
	t   *testing.T
	dir string
	env []string
}

func (c *console) block(b fenced) {
	c.t.Helper()
	for i, line := range b.lines { // in the form that steps needs
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			b.lines[i] = "> " + command
		}
	}
	for _, s := range steps(c.t, b) {
		if command, ok := strings.CutSuffix(s.command, " &"); ok {
			cmd := exec.Command("bash", "-c", "exec "+command)
			cmd.Dir = c.dir
			redistest.Process(c.t, cmd, c.env)
			continue
		}
		for begin := time.Now(); ; {
			cmd := exec.Command("bash", "-c", s.command)
			cmd.Dir, cmd.Env = c.dir, c.env
			printed, _ := cmd.CombinedOutput() // its exit code shows in the output
			got := strings.Split(strings.TrimSuffix(string(printed), "\n"), "\n")
			if len(printed) == 0 {
				got = nil
			}
			if matchOrdered(s.reply, got, sameText) {
				break
			}
			if time.Since(begin) > s.within {
				c.t.Fatalf("%s:%d:\n$ %s\n%s\nexpected:\n%s", b.document, s.line, s.command, printed, strings.Join(s.reply, "\n"))
			}
			<-time.After(20 * time.Millisecond)
		}
	}
}

// sameText compares a line with a pattern in which … stands for any text.
func sameText(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}
