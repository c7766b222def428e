package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/operations/supported-versions.md names the servers that CI tests, and the versions that the packages need.
func TestSupportedVersions(t *testing.T) {
	t.Parallel()
	text := func(path ...string) string {
		content, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	page := text("docs", "operations", "supported-versions.md")
	find := func(in, pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(in)
		if m == nil {
			t.Fatalf("%s matches nothing", pattern)
		}
		return m[1]
	}
	images := find(text(".ci", "run"), `(?m)^images=\((.*)\)$`)
	var redis, valkey []string
	for image := range strings.FieldsSeq(images) {
		server, version, _ := strings.Cut(image, ":")
		if server == "redis" {
			redis = append(redis, version)
		} else {
			valkey = append(valkey, version)
		}
	}
	node := text("clients", "node", "package.json")
	python := text("clients", "python", "pyproject.toml")
	for _, want := range []string{
		"| Redis | " + strings.Join(redis, ", ") + " |",
		"| Valkey | " + strings.Join(valkey, ", ") + " |",
		"| Go " + find(text("go.mod"), `(?m)^go (\d+\.\d+)`) + " or later |",
		"| Python " + find(python, `requires-python = ">=([\d.]+)"`) + " or later | redis-py " +
			find(python, `"redis>=([\d.]+)"`) + " or later |",
		"| Node.js " + find(node, `"node": ">=([\d.]+)"`) + " or later | ioredis " +
			find(node, `"ioredis": "\^([\d.]+)"`) + " or later, below 6 |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}
