package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// class is one way in which similar systems are known to fail their users.
type class struct {
	name  string // the effect on the user
	known string // where it is known from
	rule  string // the rule that prevents it here
	run   func(*testing.T)
	held  string // tests elsewhere, as "package.Test", separated by spaces
}

// TestCatalogue runs the classes that have a case of their own. The others name their tests, and
// TestCatalogueNamesRealTests checks that those exist.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	for _, c := range catalogue {
		if c.run != nil {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				t.Logf("known from: %s", c.known)
				c.run(t)
			})
		}
	}
}

// Each class has a case, or an existing test, and is listed once.
func TestCatalogueNamesRealTests(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	for _, dir := range []string{
		".", "../lua", "../scheduler", "../scheduler/producer", "../stream", "../stream/keeper", "../stream/inspect",
		"../stream/deadletter",
		"../stream/transfer", "../bridge", "../cmd/duestream",
	} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d test files: %v", dir, len(files), err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") ||
					strings.HasPrefix(f.Name.Name, "Fuzz")) {
					name := strings.TrimSuffix(parsed.Name.Name, "_test")
					if dir == "../cmd/duestream" {
						name = "duestream" // named by its directory
					}
					tests[name+"."+f.Name.Name] = true
				}
			}
		}
	}
	seen := map[string]bool{}
	for _, c := range catalogue {
		if seen[c.name] {
			t.Errorf("%q is listed twice", c.name)
		}
		seen[c.name] = true
		if c.known == "" || c.rule == "" || (c.run == nil && c.held == "") {
			t.Errorf("%q: incomplete", c.name)
		}
		for _, name := range strings.Fields(c.held) {
			if !tests[name] {
				t.Errorf("%q is said to be held by %s, and there is no such test", c.name, name)
			}
		}
	}
}

const catalogueHeading = "## Known failure classes"

// docs/RELIABILITY.md lists the same classes, word for word. DUESTREAM_TEST_UPDATE=1 writes the section anew.
func TestCatalogueIsDocumented(t *testing.T) {
	t.Parallel()
	const path = "../docs/RELIABILITY.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), catalogueHeading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", path, catalogueHeading)
	}
	section, after := rest, ""
	if i := strings.Index(rest, "\n## "); i >= 0 {
		section, after = rest[:i+1], rest[i+1:]
	}
	want := documented()
	if os.Getenv("DUESTREAM_TEST_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(before+catalogueHeading+"\n"+want+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if strings.TrimSpace(section) == strings.TrimSpace(want) {
		return
	}
	has := map[string]bool{}
	for line := range strings.Lines(section) {
		has[strings.TrimSpace(line)] = true
	}
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		if !has[line] && line != "" {
			t.Errorf("%s lacks: %s", path, line)
		}
		delete(has, line)
	}
	delete(has, "")
	for line := range has {
		t.Errorf("%s has what the catalogue has not: %s", path, line)
	}
	t.Errorf("run this test with DUESTREAM_TEST_UPDATE=1 to write the section")
}

func documented() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nWhat users of queues on Redis, and of delayed queues in general, have lost sleep over: %d classes. Each "+
		"has a test that runs the\n"+
		"product against a real server; `TestCatalogue` and the tests named in the last column. The table is checked against "+
		"the tests' source.\n\n", len(catalogue))
	b.WriteString("| What happens to the user | Known from | What prevents it here | Held by |\n|---|---|---|---|\n")
	for _, c := range catalogue {
		var held []string
		if c.run != nil {
			held = append(held, "`TestCatalogue`")
		}
		for _, name := range strings.Fields(c.held) {
			held = append(held, "`"+name+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.name, c.known, c.rule, strings.Join(held, " "))
	}
	b.WriteString("\n")
	return b.String()
}
