// Package before has the release before this one, for tests of upgrades, rollbacks and of both side by side: its command, built
// from the repository's own history.
package before

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Releases that tests run beside this one. Move them on when a release is published.
const (
	// Release is the release before this one. Its bridges say no protocol level.
	Release = "8b6d033356213ed9a89e49a1f0212596a79ea075"
	// Keyless is the last one whose bridges know no keys of messages; they plan recurrences.
	Keyless = "4e5f691~"
	// Planless is the last one whose bridges know no recurrences.
	Planless = "aeb2aea~"
)

var (
	mu    sync.Mutex
	built = map[string]string{} // release → its command
)

// Build returns the command of a release. Each is built once on a machine, in about a minute, and kept in the temporary
// directory.
func Build(t testing.TB, release string) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if built[release] == "" {
		path, err := build(release)
		if err != nil {
			t.Fatal(err)
		}
		built[release] = path
	}
	return built[release]
}

func build(release string) (string, error) {
	root, err := output("", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return "", err
	}
	commit, err := output(root, "git", "rev-parse", "--verify", "--quiet", release+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("release %s is not in the history of this repository: run `git fetch --unshallow`, or clone it "+
			"whole", release)
	}
	// One for all test processes of this user: a release does not change.
	command := filepath.Join(os.TempDir(), fmt.Sprintf("duestream-before-%d-%s", os.Getuid(), commit))
	if _, err := os.Stat(command); err == nil {
		return command, nil
	}
	dir, err := os.MkdirTemp("", "duestream-before-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	archive, fresh := filepath.Join(dir, "sources.tar"), filepath.Join(dir, "command")
	for _, step := range [][]string{
		{"git", "-C", root, "archive", "--output", archive, commit},
		{"tar", "-xf", archive},
		{"go", "build", "-buildvcs=false", "-o", fresh, "./cmd/duestream"},
	} {
		if _, err := output(dir, step[0], step[1:]...); err != nil {
			return "", err
		}
	}
	return command, os.Rename(fresh, command)
}

// output runs a program in a directory, and returns what it prints, without the last line break.
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
