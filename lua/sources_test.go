package lua

import (
	"os"
	"testing"

	"github.com/duestream/duestream/internal/assemble"
)

// sources returns the Lua files that people edit.
func sources(t testing.TB) *assemble.Sources {
	t.Helper()
	s, err := assemble.Read(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readSource returns a Lua file that people edit, such as "lib/base.lua".
func readSource(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	return string(text)
}
