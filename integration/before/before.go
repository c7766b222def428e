// Package before builds former releases from the history of the repository: the command, the tests of packages as
// programs, and documents. Tests of upgrades and rollbacks use it, and tests of two releases side by side.
package before

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Former releases that tests use. Update them when a release is published.
const (
	// Release is the previous release. Its bridges report no protocol level.
	Release = "8b6d033356213ed9a89e49a1f0212596a79ea075"
	// Keyless is the last commit whose bridges do not support keys of messages. They plan recurrences.
	Keyless = "4e5f691~"
	// Planless is the last commit whose bridges do not support recurrences.
	Planless = "aeb2aea~"
)

var (
	mu    sync.Mutex
	built = map[string]string{} // "name release" → program
)

// Build returns the path of a release's command. It is built once per machine, in about a minute, and kept in the
// temporary directory.
func Build(t testing.TB, release string) string {
	t.Helper()
	return program(t, release, "duestream", "go", "build", "-buildvcs=false", "-o", target, "./cmd/duestream")
}

// Tests returns the path of a program with the tests of a package of a release. path is the package's path in the
// repository. The program is built and kept like the command.
func Tests(t testing.TB, release, path string) string {
	t.Helper()
	return program(t, release, strings.ReplaceAll(path, "/", "-")+".test", "go", "test", "-c", "-o", target, "./"+path)
}

// Document returns a file of a release. path is its path in the repository.
func Document(t testing.TB, release, path string) string {
	t.Helper()
	root, commit, err := find(release)
	if err != nil {
		t.Fatal(err)
	}
	text, err := output(root, "git", "show", commit+":"+path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// target is the placeholder for the output file in a build command.
const target = "<target>"

func program(t testing.TB, release, name string, command ...string) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	key := name + " " + release
	if built[key] == "" {
		path, err := build(release, name, command)
		if err != nil {
			t.Fatal(err)
		}
		built[key] = path
	}
	return built[key]
}

// find returns the root of this repository and the full hash of a release's commit.
func find(release string) (root, commit string, err error) {
	if root, err = output("", "git", "rev-parse", "--show-toplevel"); err != nil {
		return "", "", err
	}
	commit, err = output(root, "git", "rev-parse", "--verify", "--quiet", release+"^{commit}")
	if err != nil {
		return "", "", fmt.Errorf("release %s is not in the history of this repository: run `git fetch --unshallow`, or clone "+
			"it whole", release)
	}
	return root, commit, nil
}

// build runs a build command in the sources of a release, unless the program exists, and returns the program's path.
func build(release, name string, command []string) (string, error) {
	root, commit, err := find(release)
	if err != nil {
		return "", err
	}
	// All test processes of this user share the program, because a release does not change.
	kept := filepath.Join(os.TempDir(), fmt.Sprintf("%s-before-%d-%s", name, os.Getuid(), commit))
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	dir, err := os.MkdirTemp("", "duestream-before-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	archive, fresh := filepath.Join(dir, "sources.tar"), filepath.Join(dir, "program")
	command = slices.Clone(command)
	command[slices.Index(command, target)] = fresh
	for _, step := range [][]string{
		{"git", "-C", root, "archive", "--output", archive, commit},
		{"tar", "-xf", archive},
		command,
	} {
		if _, err := output(dir, step[0], step[1:]...); err != nil {
			return "", err
		}
	}
	return kept, os.Rename(fresh, kept)
}

// output runs a program in a directory, and returns its output without the last line break.
func output(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %v: %w\n%s", name, args, err, problems.Bytes())
	}
	return string(bytes.TrimRight(out, "\n")), nil
}
