package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Links between documents lead to a file that exists, and to a heading of it.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	pages := documents(t, root)
	links := 0
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(prose(t, page), -1) {
			target, heading := m[1], strings.TrimPrefix(m[2], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), filepath.FromSlash(target))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", relative(root, page), target)
			} else if heading != "" && filepath.Ext(file) == ".md" && !anchors(t, file)[heading] {
				t.Errorf("%s links to #%s, and %s has no such heading", relative(root, page), heading, relative(root, file))
			}
		}
	}
	if len(pages) < 20 || links < 100 {
		t.Errorf("%d pages with %d links", len(pages), links)
	}
}

func relative(root, file string) string {
	short, err := filepath.Rel(root, file)
	if err != nil {
		return file
	}
	return filepath.ToSlash(short)
}

// documents returns the Markdown files that people read.
func documents(t *testing.T, root string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found = append(found, filepath.Join(root, "examples", "README.md"),
		filepath.Join(root, "clients", "python", "README.md"),
		filepath.Join(root, "deploy", "helm", "duestream", "README.md"))
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// prose returns the lines of a page outside of code, each paragraph as one line.
func prose(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	inside := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "```") {
			inside = !inside
		} else if !inside {
			lines = append(lines, line)
		}
	}
	return regexp.MustCompile("`[^`\n]*`").ReplaceAllString(strings.Join(lines, ""), "code")
}

// notInAnchors matches the characters of a heading that its anchor leaves out.
var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors returns the names by which the headings of a page are linked, as GitHub makes them.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	inside := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "```") {
			inside = !inside
		}
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") && !inside {
			anchor := notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			found[strings.ReplaceAll(anchor, " ", "-")] = true
		}
	}
	return found
}
