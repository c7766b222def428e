package conformance

import (
	"fmt"
	"os"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "program" {
		os.Exit(runProgram(os.Args[2:]))
	}
	redistest.Main(m)
}

// runProgram is the body of the programs that the tests hand to the kit: kind, and what is broken about it.
func runProgram(args []string) int {
	broken := ""
	if len(args) > 1 {
		broken = args[1]
	}
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
