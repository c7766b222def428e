package integration

import (
	"os/exec"
	"testing"
)

// language is an example in another language: its conformance program, and the level it reaches.
type language struct {
	name, level string
	program     []string // a further argument says "worker" or "producer"
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
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(name, "-c", "import redis").Run() == nil {
			return name
		}
	}
	t.Fatal("no python3 that can import redis: install Debian's python3-redis")
	return ""
}

func nodeWithIoredis(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"node", "nodejs"} {
		probe := exec.Command(name, "--input-type=module", "--eval", "import 'ioredis'")
		probe.Dir = "../examples/node"
		if probe.Run() == nil {
			return name
		}
	}
	t.Fatal("no node that can import ioredis from examples/node: install nodejs and npm, and run: npm install --prefix examples/node")
	return ""
}
