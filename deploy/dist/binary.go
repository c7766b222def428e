package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// file is a file of a package: its path in the package, content, and whether it is a program.
type file struct {
	path       string
	content    []byte
	executable bool
}

// plainVersion is the version without the letter v.
func (r release) plainVersion() string { return strings.TrimPrefix(r.version, "v") }

// compile builds the static binary of an architecture; arch "" means that of this machine.
func (r release) compile(path, arch string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.version,
		"-o", path, "./cmd/duestream")
	c.Dir = r.source
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if arch != "" {
		c.Env = append(c.Env, "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0")
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build for %s: %w\n%s", arch, err, out)
	}
	return nil
}

// pages returns the manual pages and the completions of shells, as a binary for this machine prints them.
func (r release) pages(work string) (pages []file, err error) {
	binary := filepath.Join(work, "duestream")
	if err := r.compile(binary, ""); err != nil {
		return nil, err
	}
	manual := filepath.Join(work, "man")
	if _, err := r.run(binary, "man", "--dir", manual); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(manual)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(manual, e.Name()))
		if err != nil {
			return nil, err
		}
		pages = append(pages, file{path: "man/man1/" + e.Name(), content: content})
	}
	for shell, path := range map[string]string{
		"bash": "bash-completion/completions/duestream",
		"zsh":  "zsh/vendor-completions/_duestream",
		"fish": "fish/vendor_completions.d/duestream.fish",
	} {
		content, err := r.run(binary, "completion", shell)
		if err != nil {
			return nil, err
		}
		pages = append(pages, file{path: path, content: content})
	}
	return sorted(pages), nil
}

// run returns the output of a program. Manual pages get the time of the release.
func (r release) run(program string, args ...string) ([]byte, error) {
	c := exec.Command(program, args...)
	c.Env = []string{"SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.time.Unix(), 10), "LC_ALL=C.UTF-8", "TZ=UTC"}
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("duestream %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}
