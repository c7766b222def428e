package dashboard

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests in a browser must open each page, and do each action. This test looks for the paths in their source.
func TestABrowserTestsEveryPageAndAction(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("browser/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("tests in a browser: %q, %v", files, err)
	}
	var source strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	paths := []string{"login", "logout"}
	for _, p := range pages {
		paths = append(paths, p.path)
	}
	for _, a := range actions {
		paths = append(paths, a.path)
	}
	for _, path := range paths {
		if !regexp.MustCompile(`"` + regexp.QuoteMeta(path) + `["?&#]`).MatchString(source.String()) {
			t.Errorf("no test in bridge/dashboard/browser names %q", path)
		}
	}
}
