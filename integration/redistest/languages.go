package redistest

import (
	"os/exec"
	"testing"
)

// PythonWithRedis returns a python3 that can import redis. If there is none, it installs one, or fails the test.
func PythonWithRedis(t testing.TB) string {
	t.Helper()
	find := func() string { return FirstThatRuns("", []string{"/usr/bin/python3", "python3"}, "-c", "import redis") }
	Install(t, "python3 that can import redis", func() bool { return find() != "" }, "python3", "python3-redis")
	return find()
}

// NodeWithIoredis returns a Node.js that can import ioredis from a directory. If there is none, it installs what is
// missing, or fails the test.
func NodeWithIoredis(t testing.TB, dir string) string {
	t.Helper()
	return NodeWith(t, dir, "ioredis")
}

// FirstThatRuns returns the first of the programs that succeeds when it runs with these arguments in a directory, or ""
// if none does.
func FirstThatRuns(dir string, programs []string, args ...string) string {
	for _, name := range programs {
		probe := exec.Command(name, args...)
		probe.Dir = dir
		if probe.Run() == nil {
			return name
		}
	}
	return ""
}

// NodeWith returns a Node.js that can import a module from a directory whose package.json names it. It installs what
// is missing, or fails the test.
func NodeWith(t testing.TB, dir, module string) string {
	t.Helper()
	names := []string{"node", "nodejs"}
	find := func() string {
		return FirstThatRuns(dir, names, "--input-type=module", "--eval", "import '"+module+"'")
	}
	if find() == "" { // node and npm are looked for separately, because both may be installed from elsewhere
		Install(t, "node", func() bool { return FirstThatRuns("", names, "--version") != "" }, "nodejs")
		Install(t, "npm", func() bool { return FirstThatRuns("", []string{"npm"}, "--version") != "" }, "npm")
		InstallNode(t, dir, func() bool { return find() != "" })
	}
	if find() == "" {
		t.Fatalf("no node that can import %s from there, although npm has installed it", module)
	}
	return find()
}
