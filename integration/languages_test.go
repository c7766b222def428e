package integration

import (
	"os/exec"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// language is an example in another language: its conformance program, and the level that its worker reaches with the functions library; its producer is complete with it.
type language struct {
	name, worker string
	program      []string // a further argument says "worker" or "producer"
}

// languages are those whose examples need no more than an interpreter and a client library. One that is not there fails the test.
func languages(t *testing.T) []language {
	t.Helper()
	return append(scriptingLanguages(t), []language{
		{"python", "complete", []string{pythonWithRedis(t), "../examples/python/conformance.py"}},
		{"node", "complete", []string{nodeWithIoredis(t), "../examples/node/conformance.js"}},
		{"shell", "good", []string{"bash", "../examples/shell/conformance.sh"}},
	}...)
}

func (l language) command(mode string) []string {
	return append(l.program[:len(l.program):len(l.program)], mode)
}

func pythonWithRedis(t *testing.T) string {
	t.Helper()
	find := func() string { return firstThatRuns("", []string{"/usr/bin/python3", "python3"}, "-c", "import redis") }
	redistest.Install(t, "python3 that can import redis", func() bool { return find() != "" }, "python3", "python3-redis")
	return find()
}

func nodeWithIoredis(t *testing.T) string {
	t.Helper()
	names := []string{"node", "nodejs"}
	find := func() string {
		return firstThatRuns("../examples/node", names, "--input-type=module", "--eval", "import 'ioredis'")
	}
	if find() == "" { // Node.js may have come from elsewhere, with an npm of its own
		redistest.Install(t, "node", func() bool { return firstThatRuns("", names, "--version") != "" }, "nodejs")
		redistest.Install(t, "npm", func() bool { return firstThatRuns("", []string{"npm"}, "--version") != "" }, "npm")
		redistest.InstallNode(t, "../examples/node", func() bool { return find() != "" })
	}
	if find() == "" {
		t.Fatal("no node that can import ioredis from examples/node, although npm has installed it")
	}
	return find()
}

// firstThatRuns returns the first program with which these arguments succeed in a directory, "" when there is none.
func firstThatRuns(dir string, programs []string, args ...string) string {
	for _, name := range programs {
		probe := exec.Command(name, args...)
		probe.Dir = dir
		if probe.Run() == nil {
			return name
		}
	}
	return ""
}
