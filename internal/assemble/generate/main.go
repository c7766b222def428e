// Command generate writes the generated files of package lua. `go generate ./lua` runs it in the folder of that
// package.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/duestream/duestream/internal/assemble"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	sources, err := assemble.Read(os.DirFS("."))
	if err != nil {
		return err
	}
	files, err := sources.Generated()
	if err != nil {
		return err
	}
	// Remove the texts of scripts that were renamed or deleted.
	former, err := filepath.Glob("generated/*")
	if err != nil {
		return err
	}
	for _, path := range former {
		if _, ok := files[filepath.ToSlash(path)]; ok {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("generated", 0o755); err != nil {
		return err
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
