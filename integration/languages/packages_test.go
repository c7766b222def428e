package languages

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

const (
	pythonPackage = "../../clients/python"
	nodePackage   = "../../clients/node"
)

// The tests of the Python package pass with the package as its wheel holds it.
func TestPythonPackage(t *testing.T) {
	t.Parallel()
	ReadAll(t, pythonPackage)
	python := redistest.PythonWithRedis(t)
	redistest.Install(t, "pytest", func() bool {
		return redistest.FirstThatRuns("", []string{python}, "-c", "import pytest") != ""
	}, "python3-pytest")
	tests := exec.CommandContext(t.Context(), python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "pythonpath=")
	tests.Dir = pythonPackage
	tests.Env = append(withoutVariables("DUESTREAM_"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+wheel(t, python))
	if out, err := tests.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// wheel builds the wheel of the Python package, and returns a directory with its files.
func wheel(t *testing.T, python string) string {
	t.Helper()
	redistest.Install(t, "setuptools", func() bool {
		return redistest.FirstThatRuns("", []string{python}, "-c", "import setuptools, wheel") != ""
	}, "python3-setuptools", "python3-wheel")
	dir := t.TempDir()
	unpacked := filepath.Join(dir, "unpacked")
	// A build writes beside its sources, so it gets a copy of them.
	steps := fmt.Sprintf("cp -rL %[1]q %[2]q/package && cd %[2]q/package && rm -rf build dist &&"+
		" %[3]q -c 'from setuptools import build_meta; build_meta.build_wheel(\"..\")' &&"+
		" %[3]q -m zipfile -e ../duestream-*-py3-none-any.whl %[4]q", pythonPackage, dir, python, unpacked)
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", steps).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(unpacked, "duestream", "py.typed")); err != nil {
		t.Error(err)
	}
	return unpacked
}

// The Python package reaches level complete of the conformance kit. To save time, each day tests one mode.
// DUESTREAM_TEST_FULL=1 tests all.
func TestPythonPackageConforms(t *testing.T) {
	t.Parallel()
	ReadAll(t, pythonPackage)
	duestream := Build(t)
	program := filepath.Join(pythonPackage, "conformance.py")
	python := Language{Name: "python package", program: []string{redistest.PythonWithRedis(t), program}}
	modes := []struct{ name, kit string }{{"producer", "--producer"}, {"worker", "--worker"},
		{"async-producer", "--producer"}, {"async-worker", "--worker"}}
	for i, mode := range modes {
		if os.Getenv("DUESTREAM_TEST_FULL") == "" && time.Now().YearDay()%len(modes) != i {
			continue
		}
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			conforms(t, python, []string{duestream, "conformance", mode.kit, "--level", "complete"}, mode.name)
		})
	}
}

// The tests of the Node.js package pass.
func TestNodePackage(t *testing.T) {
	t.Parallel()
	node := buildNodePackage(t)
	tests := exec.CommandContext(t.Context(), node, append([]string{"--test"},
		redistest.Must(filepath.Glob(filepath.Join(nodePackage, "dist/test/*.test.js")))...)...)
	tests.Env = withoutVariables("DUESTREAM_")
	if out, err := tests.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The README's client and worker run with the package as npm packs it.
func TestNodePackagePacks(t *testing.T) {
	t.Parallel()
	node := buildNodePackage(t)
	dir := t.TempDir()
	modules := redistest.Must(filepath.Abs(filepath.Join(nodePackage, "node_modules")))
	steps := fmt.Sprintf("npm pack --silent --ignore-scripts --pack-destination %q %q && cd %[1]q &&"+
		" mkdir node_modules && tar xzf duestream-*.tgz && ln -s %[3]q/* node_modules/ &&"+
		" mv package node_modules/duestream", dir, "./"+nodePackage, modules)
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", steps).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	server := redistest.Own(t)
	readme := string(redistest.Must(os.ReadFile(filepath.Join(nodePackage, "README.md"))))
	var examples []*exec.Cmd
	for i, block := range regexp.MustCompile("(?s)```js\n(import.*?)```").FindAllStringSubmatch(readme, -1) {
		if lines := strings.Count(block[1], "\n"); i == 0 && lines > 10 {
			t.Errorf("the README's first example has %d lines, more than 10", lines)
		}
		program := filepath.Join(dir, fmt.Sprintf("example-%d.mjs", i))
		text := strings.ReplaceAll(block[1], "redis://127.0.0.1:6379", server.URL())
		if err := os.WriteFile(program, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		examples = append(examples, exec.CommandContext(t.Context(), node, program))
	}
	if len(examples) != 3 {
		t.Fatalf("the README has %d examples that run, and not those of a client, a worker and a test", len(examples))
	}
	client, worker, memory := examples[0], examples[1], examples[2]
	for _, example := range []*exec.Cmd{client, memory} {
		if out, err := example.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	var said bytes.Buffer
	worker.Stdout, worker.Stderr = &said, &said
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return server.Do(t, "EXISTS", "duestream:{orders}:stream") == "1", "the worker has not created its group"
	})
	if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := worker.Wait(); err != nil {
		t.Errorf("%v\n%s", err, said.String())
	}
}

// The Node.js package reaches level complete of the conformance kit. To save time, each day tests one mode.
// DUESTREAM_TEST_FULL=1 tests both.
func TestNodePackageConforms(t *testing.T) {
	t.Parallel()
	program := []string{buildNodePackage(t), filepath.Join(nodePackage, "conformance.js")}
	duestream := Build(t)
	for i, mode := range []string{"producer", "worker"} {
		if os.Getenv("DUESTREAM_TEST_FULL") == "" && time.Now().YearDay()%2 != i {
			continue
		}
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			kit := []string{duestream, "conformance", "--" + mode, "--level", "complete"}
			conforms(t, Language{Name: "node package", program: program}, kit, mode)
		})
	}
}

// The tests of the shop in Python pass with the package.
func TestShopInPython(t *testing.T) {
	t.Parallel()
	ReadAll(t, pythonPackage)
	ReadAll(t, "../../examples/shop-python")
	python := redistest.PythonWithRedis(t)
	redistest.Install(t, "pytest", func() bool {
		return redistest.FirstThatRuns("", []string{python}, "-c", "import pytest") != ""
	}, "python3-pytest")
	source := redistest.Must(filepath.Abs(filepath.Join(pythonPackage, "src")))
	tests := exec.CommandContext(t.Context(), python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
	tests.Dir = "../../examples/shop-python"
	tests.Env = append(withoutVariables("DUESTREAM_"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+source)
	if out, err := tests.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The tests of the shop in Node.js pass with the package.
func TestShopInNode(t *testing.T) {
	t.Parallel()
	node := buildNodePackage(t)
	ReadAll(t, "../../examples/shop-node")
	dir := t.TempDir()
	modules := filepath.Join(dir, "node_modules")
	if err := os.Mkdir(modules, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"package.json", "shop.js", "shop.test.js"} {
		text := redistest.Must(os.ReadFile(filepath.Join("../../examples/shop-node", file)))
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	target := redistest.Must(filepath.Abs(nodePackage))
	if err := os.Symlink(target, filepath.Join(modules, "duestream")); err != nil {
		t.Fatal(err)
	}
	tests := exec.CommandContext(t.Context(), node, "--test")
	tests.Dir = dir
	if out, err := tests.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

var nodePackageBuild struct {
	once sync.Once
	err  error
}

// buildNodePackage compiles the Node.js package once, and returns a Node.js to run it with.
func buildNodePackage(t testing.TB) string {
	t.Helper()
	for _, dir := range []string{"src", "test"} {
		ReadAll(t, filepath.Join(nodePackage, dir))
	}
	ReadAll(t, "../../lua/generated")
	for _, file := range []string{"package.json", "tsconfig.json", "copy-scripts.js", "conformance.js", "README.md"} {
		redistest.Must(os.ReadFile(filepath.Join(nodePackage, file)))
	}
	node := redistest.NodeWithIoredis(t, nodePackage)
	nodePackageBuild.once.Do(func() {
		// A file of an earlier build must not stand in for one that is gone.
		nodePackageBuild.err = os.RemoveAll(filepath.Join(nodePackage, "dist"))
		for _, program := range []string{"node_modules/typescript/bin/tsc", "copy-scripts.js"} {
			if nodePackageBuild.err != nil {
				break
			}
			build := exec.Command(node, program)
			build.Dir = nodePackage
			if out, err := build.CombinedOutput(); err != nil {
				nodePackageBuild.err = fmt.Errorf("%s: %w\n%s", program, err, out)
			}
		}
	})
	if nodePackageBuild.err != nil {
		t.Fatal(nodePackageBuild.err)
	}
	return node
}
