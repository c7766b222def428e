package languages

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

const pythonPackage = "../../clients/python"

// The tests of the Python package pass.
func TestPythonPackage(t *testing.T) {
	t.Parallel()
	ReadAll(t, pythonPackage)
	python := redistest.PythonWithRedis(t)
	redistest.Install(t, "pytest", func() bool {
		return redistest.FirstThatRuns("", []string{python}, "-c", "import pytest") != ""
	}, "python3-pytest")
	tests := exec.CommandContext(t.Context(), python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
	tests.Dir = pythonPackage
	tests.Env = append(withoutVariables("DUESTREAM_"), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := tests.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
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
