package layout

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var ownConnection = regexp.MustCompile(`(\w+)\.Dedicated?\(`)

// A dedicated connection follows no redirection of a cluster, and serves one slot. So all packages take one through
// lua.Dedicated or lua.Pin, which handle that. The client of bridgetest only passes such a call on.
func TestOnlyLuaTakesAConnectionOfItsOwn(t *testing.T) {
	found := 0
	for _, root := range []string{"bridge", "cmd", "internal", "lua", "scheduler", "stream"} {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			if filepath.ToSlash(path) == "../../bridge/bridgetest/client.go" {
				return err
			}
			for _, match := range ownConnection.FindAllSubmatch(source, -1) {
				found++
				if root != "lua" && !bytes.Equal(match[1], []byte("lua")) {
					t.Errorf("%s takes a connection of its own", path)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("the pattern finds no use, and there are some")
	}
}
