package command_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/reference"
)

//go:generate env DUESTREAM_TEST_UPDATE=1 go test . -run ^TestReferencePagesAreUpToDate$ -count=1

// The pages in docs/reference describe exactly the commands, variables and settings that the program has.
// DUESTREAM_TEST_UPDATE=1 writes the pages anew, and removes those of former commands.
func TestReferencePagesAreUpToDate(t *testing.T) {
	t.Parallel()
	const dir = "../../../../docs/reference"
	root := command.Root(&cli.App{})
	root.InitDefaultCompletionCmd()
	pages := reference.Pages(root, exit.Help)
	files, err := fs.Glob(os.DirFS(dir), "command/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if pages[file] != "" {
			continue
		}
		if os.Getenv("DUESTREAM_TEST_UPDATE") == "" {
			t.Errorf("%s describes a command that does not exist", file)
		} else if err := os.Remove(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
	for name, page := range pages {
		file := filepath.Join(dir, name)
		if os.Getenv("DUESTREAM_TEST_UPDATE") != "" {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if text, _ := os.ReadFile(file); string(text) != page {
			t.Errorf("%s is out of date: run make reference", file)
		}
	}
}
