package integration

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
	"github.com/duestream/duestream/integration/redistest"
)

const cookbook = "docs/guides/README.md"

// TestCookbook replays the commands of docs/guides/README.md, duestream and redis-cli alike: all recipes in order, on one
// server with one bridge. Transcripts of redis-cli have the form of TestDocumentedTranscripts. In a transcript of the
// command
//
//	# within 5 s        repeats the next line until its output is the documented one
//	$ COMMAND           is run by bash, with the duestream of this tree; its whole output follows
//	$ COMMAND &         runs until the recipe ends
//	…                   stands for any text, and on a line of its own for any lines
func TestCookbook(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	runDefaultBridge(t, server)
	if _, err := admin.New((&stack{t: t}).dial(server.URL()), "").LoadFunctions(t.Context(), "", false); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "DUESTREAM_REDIS_URL="+server.URL(), "PATH="+filepath.Dir(build(t))+":"+os.Getenv("PATH"))
	shell, plain, all := fencedBlocks(t, cookbook, "console"), fencedBlocks(t, cookbook, "redis-cli"), recipes(t)
	for i, recipe := range all {
		end := 1 << 30
		if i+1 < len(all) {
			end = all[i+1].line
		}
		inside := func(b fenced) bool { return b.line > recipe.line && b.line < end }
		t.Run(recipe.lines[0], func(t *testing.T) {
			t.Parallel()
			r := replay{t: t, url: server.URL(), known: map[string]string{}}
			c := console{t: t, dir: t.TempDir(), env: env}
			run := map[int]func(){}
			for _, b := range shell {
				if inside(b) {
					run[b.line] = func() { c.block(b) }
				}
			}
			commands := len(run)
			for _, b := range plain {
				if inside(b) {
					run[b.line] = func() { r.block(b) }
				}
			}
			if commands == 0 || len(run) == commands {
				t.Errorf("%d transcripts, %d of the command", len(run), commands)
			}
			for _, line := range slices.Sorted(maps.Keys(run)) {
				run[line]()
			}
		})
	}
}

// recipes returns the headings of the document.
func recipes(t *testing.T) []fenced {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(cookbook)))
	if err != nil {
		t.Fatal(err)
	}
	var found []fenced
	for i, line := range strings.Split(string(text), "\n") {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			found = append(found, fenced{document: cookbook, line: i + 1, lines: []string{heading}})
		}
	}
	if len(found) < 8 {
		t.Fatalf("%d recipes", len(found))
	}
	return found
}

// The Go code of docs/guides/README.md occurs, line by line, in examples that are compiled, run, and compared with their
// output.
func TestCookbookGo(t *testing.T) {
	t.Parallel()
	trimmed := func(lines []string) string {
		out := make([]string, len(lines))
		for i, line := range lines {
			out[i] = strings.TrimSpace(line)
		}
		return "\n" + strings.Join(out, "\n") + "\n"
	}
	source, err := os.ReadFile(filepath.Join("..", "bridge", "cookbook_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	code := trimmed(strings.Split(string(source), "\n"))
	blocks := fencedBlocks(t, cookbook, "go")
	if examples := len(regexp.MustCompile(`(?m)^func Example_`).FindAll(source, -1)); len(blocks) < examples || examples < 8 {
		t.Errorf("%d snippets, %d examples", len(blocks), examples)
	}
	for _, b := range blocks {
		if !strings.Contains(code, trimmed(b.lines)) {
			t.Errorf("%s:%d: this is not in bridge/cookbook_test.go:\n%s", b.document, b.line, strings.Join(b.lines, "\n"))
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
			(&stack{t: c.t}).process(cmd, c.env)
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
