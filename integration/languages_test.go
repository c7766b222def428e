package integration

import (
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
	return redistest.PythonWithRedis(t)
}

func nodeWithIoredis(t *testing.T) string {
	t.Helper()
	return redistest.NodeWithIoredis(t, "../examples/node")
}

func firstThatRuns(dir string, programs []string, args ...string) string {
	return redistest.FirstThatRuns(dir, programs, args...)
}
