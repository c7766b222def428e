package layout

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/design/layout.md follows a message through the code by names. Each name exists, and every package has a line.
func TestLayoutDocumentNamesWhatIsThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/design/layout.md")
	if err != nil {
		t.Fatal(err)
	}
	for path := range below {
		if !strings.HasPrefix(path, "examples/") && !strings.Contains(string(text), "\n| `"+path+"` |") {
			t.Errorf("package %s has no line", path)
		}
	}
	packages, found := map[string]*source{}, 0
	for path := range below {
		if !strings.HasPrefix(path, "examples/") {
			p := read(t, path)
			packages[p.name] = p
		}
	}
	for _, hit := range regexp.MustCompile("`([a-z]+)\\.(\\w+)(?:\\.(\\w+))?`").FindAllStringSubmatch(string(text), -1) {
		of := packages[hit[1]]
		switch {
		case of == nil:
			t.Errorf("%s: no such package", hit[0])
		case hit[3] != "":
			found++
			if !has(of, hit[2], hit[3]) {
				t.Errorf("%s: no such method", hit[0])
			}
		default:
			found++
			if !has(of, "", hit[2]) && of.types[hit[2]] == nil {
				t.Errorf("%s: no such function or type", hit[0])
			}
		}
	}
	if found < 20 {
		t.Errorf("it names %d functions", found)
	}
	for _, hit := range regexp.MustCompile("`(lua/\\w+\\.lua)`").FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat("../../" + hit[1]); err != nil {
			t.Error(err)
		}
	}
}

func has(of *source, receiver, name string) bool {
	for _, f := range of.funcs[receiver] {
		if f.Name.Name == name {
			return true
		}
	}
	return false
}
