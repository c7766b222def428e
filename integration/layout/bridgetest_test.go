package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const testOfProgram = `package main

import (
	"testing"

	"` + module + `/bridge/bridgetest"
)

func TestNothingHappens(t *testing.T) { bridgetest.New(t).Advance(0) }
`

// A program that imports bridge, and bridgetest in its tests alone, contains neither bridgetest nor the in-process
// server that it brings. The tests have no Docker client either.
func TestAProgramTestedWithBridgetestDoesNotContainIt(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/producer\n\ngo 1.26.0\n\n" +
			"require " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n",
		"main.go":      program,
		"main_test.go": testOfProgram,
		"go.sum":       string(sums),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	goCommand := func(args ...string) string {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off"), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v", strings.Join(args, " "), err)
		}
		return string(out)
	}
	goCommand("mod", "tidy")
	ofProgram, ofTests := goCommand("list", "-deps", "."), goCommand("list", "-deps", "-test", ".")
	for _, path := range []string{module + "/bridge/bridgetest", "github.com/alicebob/miniredis/v2"} {
		if !strings.Contains(ofTests, path+"\n") {
			t.Errorf("the tests do not import %s any more", path)
		}
		if strings.Contains(ofProgram, path+"\n") {
			t.Errorf("the program contains %s", path)
		}
	}
	if strings.Contains(ofTests, "docker") {
		t.Error("the tests contain a Docker client")
	}
}
