package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// TestMain runs the tests, or, with the argument program, a program under test: the test binary is both.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "program" {
		os.Exit(runProgram(os.Args[2:]))
	}
	redistest.SideBySide(atATime)
	redistest.Main(m)
}

// atATime is how many tests run concurrently.
const atATime = 3

const envPids = "DUESTREAM_CONFORMANCE_PIDS" // directory in which each program leaves a file named by its process ID

// runProgram is the main function of the programs under test. The argument is the kind of program.
func runProgram(args []string) int {
	if dir := os.Getenv(envPids); dir != "" {
		_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), nil, 0o600)
	}
	run := map[string]func() error{"worker": runSDKWorker, "producer": runSDKProducer}[args[0]]
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "program:", err)
		return 1
	}
	return 0
}

// config returns a configuration that runs the kit on a program of runProgram.
func config(kind Kind, level Level) Config {
	return Config{
		Kind: kind, Level: level, Command: []string{os.Args[0], "program", string(kind)}, Cases: Cases(kind, level),
		Prefix: DefaultPrefix, Visibility: DefaultVisibility, Patience: DefaultPatience, Parallel: 8,
	}
}
