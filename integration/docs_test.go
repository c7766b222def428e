package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

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
	pages, err := filepath.Glob("../docs/operations/*.md")
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
			op := redistest.Must(admin.New((&stack{t: t}).dial(server.URL()), ""))
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

// runDefaultBridge runs a bridge with the default prefix until the test ends.
func runDefaultBridge(t *testing.T, server *redistest.Server) {
	t.Helper()
	s := &stack{t: t, server: server}
	b, err := bridge.NewBridge(bridge.Config{Redis: s.dial(server.URL()), Defaults: bridge.DefaultPolicy()})
	if err != nil {
		t.Fatal(err)
	}
	s.run("bridge", b.Run)
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
	for old, value := range map[string]string{"redis://127.0.0.1:6379": server.URL(), "15*time.Minute": "15*time.Millisecond"} {
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
	if err := errors.Join(err, os.WriteFile(file, []byte(program), 0o600), os.WriteFile(overlay, layout, 0o600)); err != nil {
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

// exportTo runs an export and writes its output to a file.
func exportTo(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %v", cmd.Args, err)
	}
	name := filepath.Join(t.TempDir(), "export")
	if err := os.WriteFile(name, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// The users of docs/operations/users.md can do their jobs, and no command that they need is denied.
func TestDocumentedUsers(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	admin := server.Client(t)
	ctx := t.Context()
	urls := map[string]string{}
	setUser := regexp.MustCompile(`ACL SETUSER (\S+) on >(\S+) `)
	for _, b := range fencedBlocks(t, "docs/operations/users.md", "redis-cli") {
		for _, s := range steps(t, b) {
			if m := setUser.FindStringSubmatch(s.command); m != nil {
				urls[m[1]] = "redis://" + m[1] + ":" + m[2] + "@" + server.Addr()
				if err := admin.Do(ctx, admin.B().Arbitrary(strings.Fields(s.command)...).Build()).Error(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(urls) != 8 {
		t.Fatalf("%d users", len(urls))
	}
	stack := &stack{t: t, server: server}
	run := func(what string, f func(context.Context) error) { stack.run(what, f) }

	b, err := bridge.NewBridge(bridge.Config{Redis: stack.dial(urls["bridge"]), Defaults: bridge.Policy{
		VisibilityTimeout: 600 * time.Millisecond, MaxAttempts: 2, RetryMin: 10 * time.Millisecond,
		RetryMax: 10 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	run("bridge", b.Run)

	handled := make(chan string, 100)
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: stack.dial(urls["worker"]), Queue: "emails", Group: "mailer",
		Handler: func(ctx context.Context, m *bridge.Message) error {
			switch {
			case m.ID == "dead":
				return bridge.DeadLetter(errors.New("no good"))
			case m.Attempt == 1:
				return errors.New("once more")
			case m.ID == "slow": // two visibility timeouts, so that it has to be extended
				timer := time.NewTimer(1200 * time.Millisecond)
				defer timer.Stop()
				select {
				case <-timer.C:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			handled <- m.ID
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	run("worker", w.Run)

	client, err := bridge.NewClient(bridge.ClientConfig{Redis: stack.dial(urls["producer"])})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	_, err = client.Schedule(ctx, "emails", []byte("x"), bridge.WithID("slow"), bridge.Header("a", "b"),
		bridge.Dedup(time.Minute))
	must(err)
	_, err = client.ScheduleBatch(ctx, "emails", []bridge.NewMessage{{ID: "dead"}, {ID: "cancelled", Delay: time.Hour},
		{ID: "moved", Delay: time.Hour}})
	must(err)
	must(client.Cancel(ctx, "emails", "cancelled"))
	_, err = client.Reschedule(ctx, "emails", "moved", bridge.In(time.Millisecond))
	must(err)

	typeIn := func(user string, commands ...string) {
		t.Helper()
		cli := startRedisCLI(t, urls[user])
		defer cli.end()
		for _, c := range commands {
			if reply := strings.Join(cli.send(c), "\n"); strings.Contains(reply, "(error)") &&
				!strings.Contains(reply, "BUSYGROUP") {
				t.Errorf("%s: %s: %s", user, c, reply)
			}
		}
	}
	const worker, queue = "plain-worker", "duestream:{raw}:"
	typeIn(worker, "HSETNX duestream:queues raw 1", "XADD duestream:wake MAXLEN 1 * queues 1",
		"XGROUP CREATE "+queue+"stream g 0 MKSTREAM")
	typeIn("plain-producer", "TIME", "HSETNX duestream:queues raw 1", "HGET duestream:queues raw", "MULTI",
		"HSET "+queue+"payload m x", "HDEL "+queue+"meta m", "ZADD "+queue+"due 5 m",
		"XADD "+queue+"wake MAXLEN 1 * due_ms 5", "EXEC", "MULTI", "ZREM "+queue+"due n", "HDEL "+queue+"payload n",
		"ZREM "+queue+"seen n", "EXEC", "ZSCORE "+queue+"due n")
	// This message is read and then abandoned, so that it is reclaimed.
	typeIn(worker, "HMGET "+queue+"policy visibility_ms", "HGET duestream:defaults visibility_ms",
		"XREADGROUP GROUP g c COUNT 1 BLOCK 20000 STREAMS "+queue+"stream >", "XCLAIM "+queue+"stream g c 0 1-1 JUSTID",
		"XREADGROUP GROUP g c COUNT 1 BLOCK 20000 STREAMS "+queue+"stream >")

	for left := map[string]bool{"slow": true, "moved": true}; len(left) > 0; {
		select {
		case id := <-handled:
			delete(left, id)
		case <-time.After(30 * time.Second):
			t.Fatalf("not handled: %v", left)
		}
	}
	duestream := build(t)
	command := func(code int, args ...string) {
		t.Helper()
		cmd := exec.Command(duestream, append([]string{"--redis", urls["operator"]}, args...)...)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != code {
			t.Errorf("duestream %v: exit code %d\n%s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
	// The message that nobody acknowledged becomes a dead letter, and the stream becomes empty.
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		dead, _ := admin.Do(ctx, admin.B().Xlen().Key(queue+"dead").Build()).AsInt64()
		left, _ := admin.Do(ctx, admin.B().Xlen().Key("duestream:{emails}:stream").Build()).AsInt64()
		return dead == 1 && left == 0, fmt.Sprint(dead, " dead, ", left, " left")
	})
	command(0, "health")
	command(0, "stats")
	command(0, "top", "--once", "--interval", "100ms")
	command(0, "show", "raw", "m")
	command(0, "schedule", "emails", "--id", "later", "--in", "1h", "x")
	command(0, "reschedule", "emails", "later", "--in", "2h")
	command(0, "cancel", "emails", "later")
	command(0, "queue", "set", "emails", "--create", "max_attempts=3")
	command(0, "pending", "emails", "--group", "mailer")
	command(0, "dead", "list", "raw")
	command(0, "dead", "list", "raw", "--summary")
	file := exportTo(t, exec.Command(duestream, "--redis", urls["operator"], "export", "raw"))
	letter, err := admin.Do(ctx, admin.B().Xadd().Key(queue+"dead").Id("*").FieldValue().FieldValue("id",
		"edited").FieldValue("payload", "x").Build()).ToString()
	must(err)
	command(0, "dead", "edit", "raw", letter, "--payload", "y")
	command(0, "import", "copied", file)
	command(0, "dead", "redrive", "raw", "--all")
	command(0, "dead", "purge", "emails", "--all", "--yes")
	command(0, "doctor", "--severity", "error", "--repair")
	urls["operator"] = urls["doctor"]
	command(0, "doctor", "--severity", "error")

	denied, err := admin.Do(ctx, admin.B().Arbitrary("ACL", "LOG").Build()).ToArray()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range denied {
		entry, err := d.AsMap()
		if err != nil {
			t.Fatal(err)
		}
		object, who := entry["object"], entry["username"]
		what, _ := object.ToString()
		name, _ := who.ToString()
		// The doctor can work without these.
		if what == "config|get" && (name == "operator" || name == "doctor") || what == "function|list" && name == "doctor" {
			continue
		}
		// These are the greeting of a client, and help texts for redis-cli.
		if !strings.HasPrefix(what, "client|") && !strings.HasPrefix(what, "command") {
			t.Errorf("%s was denied %s", name, what)
		}
	}
}
