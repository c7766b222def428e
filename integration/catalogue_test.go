package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
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

// subject is a part of the catalogue.
type subject struct {
	name    string
	classes []class
}

var catalogue = []subject{
	{"Reclaiming", reclaiming},
	{"Losing", losing},
	{"Messages that get stuck", stuck},
	{"Groups", groups},
	{"Memory and load", memory},
	{"Time", timing},
	{"Stopping and content", stopping},
	{"Servers that fail, move and lie", servers},
}

func allClasses() []class {
	var all []class
	for _, s := range catalogue {
		all = append(all, s.classes...)
	}
	return all
}

// TestCatalogue runs the classes that have a case of their own. The others name their tests, and
// TestCatalogueNamesRealTests checks that those exist.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	for _, c := range allClasses() {
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
	tests := testNames(t)
	seen := map[string]bool{}
	for _, c := range allClasses() {
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

// testNames returns all tests of the module, each as "directory.TestName", where directory is the last part of the
// package's path. Tests of the command have the name "duestream.TestName" as well.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			names[filepath.Base(filepath.Dir(path))+"."+f.Name.Name] = true
			if strings.HasPrefix(filepath.ToSlash(path), "../cmd/duestream/") {
				names["duestream."+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// docs/design/failure-classes.md lists the same classes. DUESTREAM_TEST_UPDATE=1 writes the page anew.
func TestCatalogueIsDocumented(t *testing.T) {
	t.Parallel()
	const path = "../docs/design/failure-classes.md"
	want := documented()
	if os.Getenv("DUESTREAM_TEST_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) == want {
		return
	}
	has := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		has[line] = true
	}
	for line := range strings.Lines(want) {
		if !has[line] {
			t.Errorf("%s lacks: %s", path, line)
		}
		delete(has, line)
	}
	for line := range has {
		t.Errorf("%s has a line that the catalogue does not have: %s", path, line)
	}
	t.Error("run this test with DUESTREAM_TEST_UPDATE=1 to write the page")
}

// documented returns the page that lists all classes.
func documented() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Known failure classes

Queues on Redis, and delayed queues in general, are known to fail their users in %d ways. This page names for each of
them how other systems failed, the rule that prevents it here, and tests that run duestream against a real server.
"case" is a case of `+"`integration.TestCatalogue`"+`. A test compares this page with the tests' source.
`, len(allClasses()))
	for _, s := range catalogue {
		fmt.Fprintf(&b, "\n## %s\n\n", s.name)
		for _, c := range s.classes {
			var held []string
			if c.run != nil {
				held = append(held, "case")
			}
			for _, name := range strings.Fields(c.held) {
				held = append(held, "`"+name+"`")
			}
			b.WriteString(item(fmt.Sprintf("**%s.** Elsewhere: %s. Here: %s. Tests: %s", capitalised(c.name), c.known, c.rule,
				strings.Join(held, ", "))))
		}
	}
	return b.String()
}

func capitalised(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// item returns text as an item of a list, in lines of at most 120 bytes where the words allow it.
func item(text string) string {
	lines, line := "", "-"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > 120 {
			lines, line = lines+line+"\n", " "
		}
		line += " " + word
	}
	return lines + line + "\n"
}
