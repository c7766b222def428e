package layout

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/duestream/duestream"

// below says which of our packages each package may import. Any other import points upwards, or sideways where it
// must not. Code for messages before they are ready (scheduler) and after (stream) meets only in bridge. Code for
// operators only (sizes, lookup, deadletter, transfer) is not in a program that schedules or works.
var below = map[string]string{
	"lua":                  "",
	"internal/loop":        "lua",
	"internal/observe":     "lua",
	"internal/shareddial":  "",
	"internal/view":        "lua internal/loop",
	"internal/policy":      "lua internal/loop internal/view",
	"internal/tail":        "lua internal/loop",
	"internal/written":     "lua internal/policy",
	"scheduler":            "lua internal/loop internal/observe internal/tail internal/view scheduler/planner",
	"scheduler/recurrence": "lua",
	"scheduler/planner":    "lua internal/loop scheduler/recurrence",
	"scheduler/bulk":       "lua internal/loop internal/observe internal/view",
	"scheduler/producer":   "lua internal/loop internal/observe internal/view",
	"stream":               "lua internal/clock internal/loop internal/observe internal/policy internal/view",
	"stream/await":         "lua internal/loop internal/view",
	"stream/keeper":        "lua internal/loop internal/observe internal/policy internal/view",
	"stream/pull":          "lua internal/loop internal/policy internal/tail internal/view stream",
	"stream/sizes":         "lua internal/loop internal/policy internal/view stream",
	"stream/lookup":        "lua internal/loop internal/policy internal/view stream stream/deadletter",
	"stream/deadletter":    "lua internal/loop internal/observe internal/view stream",
	"stream/search":        "lua internal/loop internal/view stream/deadletter stream/lookup",
	"stream/transfer":      "lua internal/loop internal/view stream stream/deadletter",
	"bridge":               bridgeParts,
	"bridge/metrics":       "lua internal/loop internal/observe internal/view stream/sizes",
	"bridge/tracing":       "bridge lua",
	"bridge/once":          "bridge internal/database internal/loop lua",
	"bridge/outbox": "bridge internal/database internal/loop internal/message internal/ndjson internal/observe" +
		" lua",
	"bridge/push":         "bridge lua internal/loop internal/view scheduler stream",
	"bridge/access":       "lua internal/loop",
	"bridge/admin":        allBelowAdmin + " bridge/access bridge/admin/doctor bridge/push",
	"bridge/admin/doctor": allBelowAdmin,
	// Packages that a gateway adds.
	"bridge/dashboard": "bridge bridge/access bridge/admin bridge/admin/doctor internal/policy internal/written lua",
	"bridge/gateway": "bridge bridge/access bridge/admin internal/loop internal/message" +
		" internal/ndjson internal/policy lua stream stream/pull",
	"bridge/lmstfy": "bridge bridge/access bridge/admin bridge/gateway internal/loop internal/ndjson" +
		" internal/policy internal/view lua stream stream/pull",
	"bridge/migrate":            "bridge bridge/admin lua",
	"bridge/migrate/asynq":      "bridge bridge/admin bridge/migrate lua",
	"bridge/migrate/bullmq":     "bridge bridge/admin bridge/migrate lua",
	"bridge/migrate/delayqueue": "bridge/admin bridge/migrate lua",
	"bridge/migrate/lmstfy":     "bridge/admin bridge/lmstfy bridge/migrate lua",
	"internal/database":         "lua",
	"internal/message":          "lua internal/ndjson scheduler/producer",
	"internal/ndjson":           "lua",
	"internal/clock":            "",
	"internal/resp":             "",
	// Tests alone.
	"bridge/dashboard/browser": "",
	"bridge/bridgetest": "bridge internal/clock internal/policy internal/view lua scheduler/planner stream/keeper" +
		" stream/lookup",
	// What `go generate ./lua` runs. No program of a user contains it.
	"internal/assemble": "", "internal/assemble/generate": "internal/assemble",
	// What `make site-check` runs.
	"deploy/site/check": "",
	// Programs of users.
	"examples/go/embedded": "bridge", "examples/go/producer": "bridge", "examples/go/worker": "bridge",
	"examples/shop": "bridge bridge/metrics bridge/outbox bridge/tracing",
}

const (
	bridgeParts = "lua internal/clock internal/loop internal/observe internal/policy internal/shareddial " +
		"internal/tail internal/view scheduler scheduler/planner scheduler/producer scheduler/recurrence " +
		"stream stream/await stream/keeper"
	allBelowAdmin = "bridge " + bridgeParts +
		" scheduler/bulk stream/sizes stream/lookup stream/search stream/deadletter stream/transfer"
)

// testsOfCommands runs commands in tests: tests alone import it.
const testsOfCommands = "cmd/duestream/internal/clitest"

type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Module                             *struct{ Path string }
}

// list runs go list at the root of the module.
func list(t *testing.T, args ...string) (packages []listed) {
	t.Helper()
	const fields = "-json=ImportPath,Imports,TestImports,XTestImports,Module"
	cmd := exec.Command("go", append([]string{"list", fields}, args...)...)
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal("go list: ", err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func ours(path string) (name string, ok bool) { return strings.CutPrefix(path, module+"/") }

// No import points upwards, so there is no cycle, and a package can be read without the packages above it.
func TestPackagesImportOnlyWhatIsBelowThem(t *testing.T) {
	t.Parallel()
	missing := maps.Clone(below)
	for _, p := range list(t, "./...") {
		name, _ := ours(p.ImportPath)
		allowed, held := below[name]
		delete(missing, name)
		inside := strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "integration/") || name == "integration"
		if !held && !inside {
			t.Errorf("package %s has no row in the table: which may it import?", name)
		}
		for _, path := range p.Imports {
			other, our := ours(path)
			if held && our && !slices.Contains(strings.Fields(allowed), other) {
				t.Errorf("%s imports %s, which is not below it", name, other)
			}
			if strings.HasPrefix(path, "go.opentelemetry.io/") && name != "bridge/tracing" &&
				name != "examples/shop" {
				t.Errorf("%s imports %s: who does not trace must not link it", name, path)
			}
			if strings.HasPrefix(name, "cmd/") && name != testsOfCommands && strings.HasPrefix(other, "integration") {
				t.Errorf("%s imports %s: tests only do", name, other)
			}
			if other == testsOfCommands {
				t.Errorf("%s imports %s: tests only do", name, other)
			}
		}
		arrows := p.Imports
		if !strings.HasPrefix(name, "integration") { // its tests run the benchmark
			arrows = slices.Concat(arrows, p.TestImports, p.XTestImports)
		}
		for _, path := range arrows {
			if other, _ := ours(path); strings.HasPrefix(other, "cmd/") && !strings.HasPrefix(name, "cmd/") {
				t.Errorf("%s imports %s: nothing does but the command", name, other)
			}
		}
	}
	for name := range missing {
		t.Errorf("package %s is in the table and not there", name)
	}
}

// The table itself has no cycle, and keeps apart the packages that must never meet.
func TestTheTableOfPackagesHasNoCycle(t *testing.T) {
	t.Parallel()
	done := map[string]int{} // 1: in progress, 2: done
	var follow func(name string, from []string)
	follow = func(name string, from []string) {
		if done[name] == 1 {
			t.Fatalf("a cycle: %s", strings.Join(append(from, name), " → "))
		}
		if done[name] == 0 {
			done[name] = 1
			for _, next := range strings.Fields(below[name]) {
				follow(next, append(from, name))
			}
			done[name] = 2
		}
	}
	for name := range below {
		follow(name, nil)
	}
	// Packages below scheduler and below stream never import each other.
	other := map[string]string{"scheduler": "stream", "stream": "scheduler"}
	for name, allowed := range below {
		side, _, _ := strings.Cut(name, "/")
		for _, next := range strings.Fields(allowed) {
			if nextSide, _, _ := strings.Cut(next, "/"); other[side] == nextSide {
				t.Errorf("the table lets %s import %s", name, next)
			}
		}
	}
	// bridge imports no package for operators.
	for _, name := range []string{"stream/sizes", "stream/lookup", "stream/deadletter", "stream/transfer"} {
		if slices.Contains(strings.Fields(below["bridge"]), name) {
			t.Errorf("the table lets bridge import %s", name)
		}
	}
}

// most are the modules that package bridge brings into a binary, besides our own packages and the standard library.
var most = []string{
	"github.com/cenkalti/backoff/v4", "github.com/oklog/ulid/v2", "github.com/redis/rueidis", "golang.org/x/sys",
}

// A program that schedules or works gets no command line, in-process server or Docker client into its binary, and no
// inspection code for operators.
func TestBridgeBringsNothingThatAProducerDoesNotNeed(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "-deps", "./bridge") {
		if name, our := ours(p.ImportPath); our {
			if !slices.Contains(strings.Fields(below["bridge"]+" bridge"), name) {
				t.Errorf("bridge brings our %s", name)
			}
		} else if p.Module != nil && !slices.Contains(most, p.Module.Path) {
			t.Errorf("bridge brings %s", p.ImportPath)
		}
	}
}

// mostFetched bounds how many modules `go mod tidy` fetches for a program that imports only bridge. Tidy also fetches
// the modules that the tests of bridge's packages need. The Docker client with its 25 modules and the in-process server
// are not among them: the tests run both in a separate program, integration/redistest/helper.
const mostFetched = 12

// program is a program of another module. It implements bridge.Observer. It cannot import internal/observe, so it names
// the types by the aliases of package bridge.
const program = `package main

import (
	"time"

	"` + module + `/bridge"
)

type observer struct{}

func (observer) Series(part bridge.Part, queue, group string) bridge.Series { return observer{} }
func (observer) Call(script string, took time.Duration, err error)           {}
func (observer) BridgeStarted(bridge.BridgeView) (ended func())              { return func() {} }
func (observer) Add(e bridge.Event, n int)                                   {}
func (observer) AddTimed(e bridge.Event, n int, d time.Duration)             {}
func (observer) AddSized(e bridge.Event, n, size int)                        {}

var _ bridge.Observer = observer{}

func main() {}
`

// A new program, which may implement bridge.Observer, does not fetch a Docker client. The go command uses the module
// cache that this module's tests have filled.
func TestAProgramWithBridgeFetchesFewModules(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/producer\n\ngo 1.26.0\n\n" +
			"require " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n",
		"main.go": program,
		"go.sum":  string(sums), // so that no checksums are fetched; tidy removes unneeded ones
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tidy := exec.Command("go", "mod", "tidy")
	tidy.Dir, tidy.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	if out, err := tidy.CombinedOutput(); err != nil {
		t.Fatalf("go mod tidy: %v\n%s", err, out)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "program"), ".")
	build.Dir, build.Env = dir, tidy.Env
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	left, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	fetched := map[string]bool{}
	for line := range strings.Lines(string(left)) {
		if cells := strings.Fields(line); len(cells) == 3 && !strings.HasSuffix(cells[1], "/go.mod") {
			fetched[cells[0]+"@"+cells[1]] = true
		}
	}
	if len(fetched) < len(most) || len(fetched) > mostFetched {
		names := strings.Join(slices.Sorted(maps.Keys(fetched)), "\n")
		t.Errorf("it fetches %d modules, more than %d:\n%s", len(fetched), mostFetched, names)
	}
}
