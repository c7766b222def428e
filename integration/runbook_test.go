package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// OPERATIONS.md explains every log line that reports a problem, and no line that does not exist.
func TestEveryTroubledLogLineIsExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "OPERATIONS.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n### The log says …\n")
	section, _, _ = strings.Cut(section, "\n### ")
	explained := map[string]bool{}
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				explained[m[1]] = false
			}
		}
	}
	lines := map[string]string{ // by pattern in the sources: the text that follows in the log
		`\.(?:Warn|Error)\("([^"]+)"`: "",
		`\bActivity: +"([^"]+)"`:      " is failing",
		`\breported\("([^"]+)"`:       " is failing",
	}
	for _, dir := range []string{
		"bridge", "bridge/admin", "bridge/gateway", "bridge/gateway/access", "bridge/gateway/lmstfy", "bridge/push", "scheduler",
		"scheduler/producer", "stream", "stream/keeper", "stream/deadletter", "stream/pull",
	} {
		files, _ := filepath.Glob(filepath.Join("..", dir, "*.go"))
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for line := range explained { // lines that report no trouble may be explained too
				explained[line] = explained[line] || strings.Contains(string(source), strconv.Quote(line))
			}
			for pattern, end := range lines {
				for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(source), -1) {
					if _, ok := explained[m[1]+end]; !ok {
						t.Errorf("%s logs %q, and OPERATIONS.md does not explain it", file, m[1]+end)
					}
					explained[m[1]+end] = true
				}
			}
		}
	}
	if len(explained) < 20 {
		t.Errorf("%d lines are explained", len(explained))
	}
	for line, logged := range explained {
		if !logged {
			t.Errorf("OPERATIONS.md explains %q, which nothing logs", line)
		}
	}
}

// Links within OPERATIONS.md and COOKBOOK.md, and from them to other documents, have a target.
func TestLinksOfOperationsLeadSomewhere(t *testing.T) {
	t.Parallel()
	anchors := func(document string) map[string]bool {
		text, err := os.ReadFile(filepath.Join("..", "docs", document))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
			anchor := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
			found[strings.ReplaceAll(anchor, " ", "-")] = true
		}
		return found
	}
	for _, from := range []string{"OPERATIONS.md", "COOKBOOK.md"} {
		text, err := os.ReadFile(filepath.Join("..", "docs", from))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([A-Za-z./]*)#([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			document := m[1]
			if document == "" {
				document = from
			}
			if !anchors(document)[m[2]] {
				t.Errorf("%s links to #%s, and %s has no such heading", from, m[2], document)
			}
		}
	}
}
