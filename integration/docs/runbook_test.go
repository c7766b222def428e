package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// loggingSources returns the sources of all packages that write log lines, by file.
func loggingSources(t *testing.T) map[string]string {
	t.Helper()
	sources := map[string]string{}
	for _, root := range []string{"bridge", "cmd/duestream", "internal", "lua", "scheduler", "stream"} {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "conformance" || d.Name() == "bench"):
				return filepath.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			source, err := os.ReadFile(path)
			sources[path] = string(source)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return sources
}

// docs/operations/logs.md explains every log line that reports a problem, and no line that does not exist.
func TestEveryTroubledLogLineIsExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations", "logs.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Lines\n")
	explained := map[string]bool{} // line → logged; a line with … stands for all lines with that beginning
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				explained[m[1]] = false
			}
		}
	}
	explanation := func(logged string) (line string, found bool) {
		for line := range explained {
			begin, _, open := strings.Cut(line, "…")
			if line == logged || open && strings.HasPrefix(logged, begin) {
				return line, true
			}
		}
		return "", false
	}
	lines := map[string]string{ // by pattern in the sources: the text that follows in the log
		`\.(?:Warn|Error)\("([^"]+)"`:          "",
		`slog\.Level(?:Warn|Error), "([^"]+)"`: "",
		`\bActivity: +"([^"]+)"`:               " is failing",
		`\bwithReport\("([^"]+)"`:              " is failing",
	}
	for file, source := range loggingSources(t) {
		for line := range explained { // lines that report no trouble may be explained too
			explained[line] = explained[line] || strings.Contains(source, strconv.Quote(line))
		}
		for pattern, end := range lines {
			for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(source, -1) {
				line, found := explanation(m[1] + end)
				if !found {
					t.Errorf("%s logs %q, and logs.md does not explain it", file, m[1]+end)
					continue
				}
				explained[line] = true
			}
		}
	}
	if len(explained) < 20 {
		t.Errorf("%d lines are explained", len(explained))
	}
	for line, logged := range explained {
		if !logged {
			t.Errorf("logs.md explains %q, which nothing logs", line)
		}
	}
}
