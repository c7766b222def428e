package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/languages"
	"github.com/duestream/duestream/integration/redistest"
)

// The examples in all languages work: for each, its producer schedules two messages and its worker handles both, with
// the same bridge. So does the example that embeds all parts in one program.
func TestExamples(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	s := newStack(t, server)
	s.bridge(quick())
	python, node, ruby, php := redistest.PythonWithRedis(t), redistest.NodeWithIoredis(t, "../examples/node"), languages.Ruby(t),
		languages.PHP(t)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./go/...")
	build.Dir = filepath.Join("..", "examples")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	languages.ReadAll(t, filepath.Join("..", "examples"))
	examples := []struct {
		name             string
		producer, worker []string
		group            string
	}{
		{"go", []string{filepath.Join(dir, "producer"), "-queue", "{queue}", "-id", "{id}", "-in", "150ms", "{payload}"},
			[]string{filepath.Join(dir, "worker"), "-queue", "{queue}", "-group", "example"}, "example"},
		{"python", []string{python, "../examples/python/producer.py", "{queue}", "{id}", "--in", "0.15", "--payload", "{payload}",
			"--header", "kind=order"}, []string{python, "../examples/python/worker.py"}, "example"},
		{"node", []string{node, "../examples/node/producer.js", "{queue}", "{id}", "--in", "0.15", "--payload", "{payload}",
			"--header", "kind=order"}, []string{node, "../examples/node/worker.js"}, "example"},
		{"ruby", []string{ruby, "../examples/ruby/producer.rb", "{queue}", "{id}", "--in", "0.15", "--payload", "{payload}",
			"--header", "kind=order"}, []string{ruby, "../examples/ruby/worker.rb"}, "example"},
		{"php", []string{php, "../examples/php/producer.php", "--in", "0.15", "--payload", "{payload}", "--header", "kind=order",
			"{queue}", "{id}"}, []string{php, "../examples/php/worker.php"}, "example"},
		{"shell", []string{"bash", "../examples/shell/producer.sh", "{queue}", "{id}", "150ms", "{payload}"},
			[]string{"bash", "../examples/shell/worker.sh", "bash", "-c",
				`printf '%s=' "$ID" >>"$OUT"; cat >>"$OUT"; exit "$((ATTEMPT < 2))"`}, "example"},
	}
	const payload = "line one\n\"line\" \\two\\ é\n"
	for _, e := range examples {
		t.Run(e.name, func(t *testing.T) {
			queue, log := s.queue+"-"+e.name, filepath.Join(dir, e.name+".log")
			out := filepath.Join(dir, e.name+".out")
			env := append(os.Environ(), "DUESTREAM_REDIS_URL="+server.URL(), "DUESTREAM_PREFIX="+s.prefix, "QUEUE="+queue,
				"GROUP="+e.group,
				"ACK_LOG="+log, "OUT="+out)
			sub := &stack{t: t}
			var printed lockedBuffer
			worker := exec.Command(e.worker[0], filled(e.worker[1:], "{queue}", queue)...)
			worker.Stdout = &printed
			sub.process(worker, env)

			ids := []string{"order-1", `odd "id" \é`}
			for _, id := range ids {
				producer := exec.Command(e.producer[0], filled(e.producer[1:], "{queue}", queue, "{id}", id, "{payload}",
					payload)...)
				producer.Env = env
				if out, err := producer.CombinedOutput(); err != nil {
					t.Fatalf("producer: %v\n%s", err, out)
				}
			}
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				text := printed.String()
				for _, id := range ids {
					if !strings.Contains(text, id) {
						return false, fmt.Sprintf("%s is not there: %q", id, text)
					}
				}
				keys := fmt.Sprintf("%s:{%s}:", s.prefix, queue)
				if left := s.number("ZCARD", keys+"due") + s.number("HLEN", keys+"payload") + s.number("HLEN", keys+"meta") +
					s.number("XLEN", keys+"stream"); left != 0 {
					return false, fmt.Sprint(left, " things are left")
				}
				return true, ""
			})
			if e.name == "shell" { // its command fails every first attempt, so each payload comes twice
				text, err := os.ReadFile(out)
				if err != nil {
					t.Fatal(err)
				}
				for _, id := range ids {
					if n := strings.Count(string(text), id+"="+payload); n != 2 {
						t.Errorf("payload of %s came %d times as it was sent: %q", id, n, text)
					}
				}
			}
		})
	}
	t.Run("embedded", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(dir, "embedded"), "-redis", server.URL(), "-prefix", s.prefix+"-embedded",
			"-in", "200ms", "-once")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("hello from embedded")) {
			t.Errorf("embedded: %v\n%s", err, out)
		}
	})
}

// filled returns arguments with placeholders replaced. oldnew has each placeholder followed by its value.
func filled(args []string, oldnew ...string) []string {
	replace := strings.NewReplacer(oldnew...)
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = replace.Replace(a)
	}
	return out
}

// lockedBuffer is a buffer that a test may read while a child process writes to it.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
