package docs

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// TestDocumentedTranscripts replays every ```redis-cli block of the documents with the real redis-cli. Each document
// has its own server, with one bridge, and its blocks are replayed in order. A block is one connection. In a block:
//
//	# within 5 s        repeats the next command until the reply is as shown
//	# in any order      allows the fields of the next reply in any order
//	> COMMAND           is typed in; the following lines are the reply, without --raw
//	<due = now + 2 s>   in a command is computed; after that, <due> has this value
//	<entry-1>           in a reply matches an entry ID, always the same one; in a command it is replaced by that ID
//	<ms>, <n>, <text>   in a reply match any time, any number, any text
//	…                   in a reply matches any number of lines
func TestDocumentedTranscripts(t *testing.T) {
	documents := map[string]int{"README.md": 1, "docs/reference/protocol.md": 8} // least number of blocks
	pages, err := filepath.Glob("../../docs/operations/*.md")
	if err != nil {
		t.Fatal(err)
	}
	operations := 0
	for _, page := range pages {
		document := filepath.Join("docs", "operations", filepath.Base(page))
		if n := len(fencedBlocks(t, document, "redis-cli")); n > 0 {
			documents[document], operations = n, operations+n
		}
	}
	if operations < 25 {
		t.Errorf("docs/operations has %d transcripts", operations)
	}
	for document, least := range documents {
		t.Run(filepath.Base(document), func(t *testing.T) {
			t.Parallel()
			blocks := fencedBlocks(t, document, "redis-cli")
			if len(blocks) < least {
				t.Fatalf("%d transcripts", len(blocks))
			}
			server := redistest.Own(t)
			runDefaultBridge(t, server)
			op := redistest.Must(admin.New(dial(t, server), ""))
			if _, err := op.LoadFunctions(t.Context(), "", false); err != nil {
				t.Fatal(err)
			}
			r := replay{t: t, url: server.URL(), known: map[string]string{}}
			for _, b := range blocks {
				r.runBlock(b)
			}
		})
	}
}

func dial(t *testing.T, server *redistest.Server) *bridge.Redis {
	t.Helper()
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// runDefaultBridge runs a bridge with the default prefix until the test ends.
func runDefaultBridge(t *testing.T, server *redistest.Server) {
	t.Helper()
	b, err := bridge.NewBridge(bridge.Config{Redis: dial(t, server), Defaults: bridge.DefaultPolicy()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The Go code of README.md compiles, and does what its comments say.
func TestREADMEProgram(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	runDefaultBridge(t, server)
	blocks := fencedBlocks(t, "README.md", "go")
	if len(blocks) == 0 {
		t.Fatal("README.md has no Go")
	}
	body := strings.Join(blocks[0].lines, "\n")
	for old, value := range map[string]string{
		"redis://127.0.0.1:6379": server.URL(),
		"15*time.Minute":         "15*time.Millisecond",
	} {
		if !strings.Contains(body, old) {
			t.Fatalf("README.md's program does not mention %s", old)
		}
		body = strings.ReplaceAll(body, old, value)
	}
	program := `package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/duestream/duestream/bridge"
)

func main() {
	if err := readme(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var stop context.CancelFunc

func send(_ context.Context, m *bridge.Message) error {
	fmt.Printf("%s %s\n", m.ID, m.Payload)
	stop()
	return nil
}

func readme() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stop = cancel
` + body + `
	return err
}
`
	// The program is added to the module with an overlay. So it is built with the module's own dependencies, and no
	// file is written into the module.
	dir := t.TempDir()
	file, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	at, err := filepath.Abs("readmeprogram/main.go")
	if err != nil {
		t.Fatal(err)
	}
	layout, err := json.Marshal(map[string]any{"Replace": map[string]string{at: file}})
	err = errors.Join(err,
		os.WriteFile(file, []byte(program), 0o600),
		os.WriteFile(overlay, layout, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "readme")
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", binary,
		"./readmeprogram").CombinedOutput(); err != nil {
		t.Fatalf("README.md's program does not compile: %v\n%s\n%s", err, out, program)
	}
	out, err := exec.Command(binary).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "order-42 hello\n") {
		t.Fatalf("README.md's program: %v\n%s", err, out)
	}
}

// Each known failure class names the tests that hold its rule. layout.TestDocumentsNameTestsThatExist checks the names.
func TestEveryFailureClassNamesATest(t *testing.T) {
	text, err := os.ReadFile("../../docs/design/failure-classes.md")
	if err != nil {
		t.Fatal(err)
	}
	classes := regexp.MustCompile(`(?m)^- \*\*`).Split(string(text), -1)[1:]
	if len(classes) < 67 {
		t.Errorf("%d classes", len(classes))
	}
	for _, class := range classes {
		if !regexp.MustCompile("Tests:\\s+`[a-z]+\\.Test").MatchString(class) {
			t.Errorf("no test: %s", class)
		}
	}
}
