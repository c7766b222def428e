package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "program" {
		os.Exit(runProgram(os.Args[2:]))
	}
	redistest.SideBySide(atATime)
	code := redistest.Run(m)
	_ = os.RemoveAll(quick.dir)
	os.Exit(code)
}

// atATime is how many tests run concurrently.
const atATime = 3

const envPids = "DUESTREAM_CONFORMANCE_PIDS" // directory in which each program leaves a file named by its process ID

// runProgram is the main function of the programs under test. args are the kind of program and its fault.
func runProgram(args []string) int {
	if dir := os.Getenv(envPids); dir != "" {
		_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), nil, 0o600)
	}
	broken := strings.Join(args[1:], "")
	run := map[string]func() error{
		"worker": func() error { return runPlainWorker(broken) }, "producer": func() error { return runPlainProducer(broken) },
		"sdk-worker": runSDKWorker, "sdk-producer": runSDKProducer,
	}[args[0]]
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "program:", err)
		return 1
	}
	return 0
}

// quick is this test binary without the race detector. With it, a program takes longer to start than a case, and
// hundreds are started. TestGoodProgramsPassEveryCase keeps the race detector.
var quick struct {
	once sync.Once
	dir  string
	err  error
}

// quickProgram returns a binary that runs runProgram and starts fast.
func quickProgram(t *testing.T) string {
	t.Helper()
	info, ok := debug.ReadBuildInfo()
	if !ok || !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return os.Args[0]
	}
	quick.once.Do(func() {
		if quick.dir, quick.err = os.MkdirTemp("", "duestream-conformance-"); quick.err == nil {
			var said []byte
			if said, quick.err = exec.Command("go", "test", "-c", "-o", filepath.Join(quick.dir, "program"),
				".").CombinedOutput(); quick.err != nil {
				quick.err = fmt.Errorf("%w\n%s", quick.err, said)
			}
		}
	})
	if quick.err != nil {
		t.Fatal(quick.err)
	}
	return filepath.Join(quick.dir, "program")
}

// config returns a configuration that runs the kit on a program of runProgram.
func config(t *testing.T, kind Kind, level Level, program ...string) Config {
	t.Helper()
	return Config{
		Kind: kind, Level: level, Command: append([]string{quickProgram(t), "program"}, program...), Cases: Cases(kind, level),
		Prefix: DefaultPrefix, Visibility: DefaultVisibility, Patience: DefaultPatience, Parallel: 8,
	}
}
