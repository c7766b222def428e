package languages

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// The types of the Python package are right.
func TestPythonPackageTypes(t *testing.T) {
	t.Parallel()
	ReadAll(t, pythonPackage)
	there := func() bool { return redistest.FirstThatRuns("", []string{"mypy"}, "--version") != "" }
	redistest.Install(t, "mypy", there, "mypy")
	types := exec.CommandContext(t.Context(), "mypy", "--cache-dir", t.TempDir())
	types.Dir = pythonPackage
	if out, err := types.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// uniqueIDs reads values from standard input, and writes the ID that the Python package gives to the messages about
// each.
const uniqueIDs = `
import json, sys
from duestream import Kind
kind = Kind("k", "q", unique_by=lambda value: [value])
json.dump([kind.unique_id(value) for value in json.load(sys.stdin)], sys.stdout)
`

// A producer in Python gives a unique message the same ID as one in Go.
func TestPythonPackageHasTheUniqueIDsOfGo(t *testing.T) {
	t.Parallel()
	ReadAll(t, pythonPackage)
	values := []any{"plain", "é\u2028\u2029<&>", `"\/`, "\b\f\n\r\t\x00\x1f\x7f", strings.Repeat("long", 100), 0, -7,
		1 << 53, true, nil, "😀"}
	kind := bridge.Kind[any]{Name: "k", Queue: "q", UniqueBy: func(value any) []any { return []any{value} }}
	input, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	python := exec.CommandContext(t.Context(), redistest.PythonWithRedis(t), "-c", uniqueIDs)
	python.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(pythonPackage, "src"), "PYTHONDONTWRITEBYTECODE=1")
	python.Stdin, python.Stderr = bytes.NewReader(input), os.Stderr
	output, err := python.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := json.Unmarshal(output, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(values) {
		t.Fatalf("%d IDs of %d values", len(got), len(values))
	}
	for i, value := range values {
		want, err := kind.UniqueID(value)
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "the ID in Python", got[i], want)
	}
}
