// Package languages runs the examples in other languages through the conformance kit, and helps other tests to run
// them.
package languages

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// Language is an example in another language: its conformance program, and the level that its worker reaches with the
// functions library. With the library, its producer reaches level complete.
type Language struct {
	Name, Worker string
	program      []string // a further argument is "worker" or "producer"
}

// Command returns the command line of the conformance program for a mode: "worker" or "producer".
func (l Language) Command(mode string) []string {
	return append(l.program[:len(l.program):len(l.program)], mode)
}

// All returns the languages whose examples, in the directory examples, need only an interpreter and a client library.
// It installs what is missing, or fails the test.
func All(t testing.TB, examples string) []Language {
	t.Helper()
	at := func(file string) string { return filepath.Join(examples, filepath.FromSlash(file)) }
	return []Language{
		{"ruby", "complete", []string{Ruby(t), at("ruby/conformance.rb")}},
		{"php", "complete", []string{PHP(t), at("php/conformance.php")}},
		{"python", "complete", []string{redistest.PythonWithRedis(t), at("python/conformance.py")}},
		{"node", "complete", []string{redistest.NodeWithIoredis(t, at("node")), at("node/conformance.js")}},
		{"shell", "good", []string{"bash", at("shell/conformance.sh")}},
	}
}

// Ruby returns a ruby that can load redis. If there is none, it installs one, or fails the test.
func Ruby(t testing.TB) string {
	t.Helper()
	redistest.Install(t, "ruby that can load redis", func() bool {
		return redistest.FirstThatRuns("", []string{"ruby"}, "-e",
			`require "redis"`) != ""
	}, "ruby", "ruby-redis")
	return "ruby"
}

// PHP returns a php with the extensions redis (phpredis) and pcntl. If there is none, it installs one, or fails the
// test.
func PHP(t testing.TB) string {
	t.Helper()
	redistest.Install(t, "php with the extensions redis and pcntl", func() bool {
		return redistest.FirstThatRuns("", []string{"php"}, "-r",
			`exit(extension_loaded("redis") && extension_loaded("pcntl") ? 0 : 1);`) != ""
	}, "php-cli", "php-redis")
	return "php"
}

// LoadFunctions loads the functions library.
func LoadFunctions(t testing.TB, server *redistest.Server) {
	t.Helper()
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := redistest.Must(admin.New(r, "")).LoadFunctions(t.Context(), "", false); err != nil {
		t.Fatal(err)
	}
}

// Build builds the command, and returns its path.
func Build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "duestream")
	if out, err := exec.Command("go", "build", "-o", path,
		"github.com/duestream/duestream/cmd/duestream").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// ReadAll reads all files of the examples, so that go test does not use a cached result after a change. It notices
// changes only in files that the test process itself has read, and not in those that child processes read.
func ReadAll(t testing.TB, examples string) {
	t.Helper()
	err := filepath.WalkDir(examples, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
