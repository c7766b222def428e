package layout

import (
	"fmt"
	"go/ast"
	"os/exec"
	"strings"
	"testing"
)

// twoScreens is the greatest number of lines of `go doc -short` for a package that a reader sees first.
const twoScreens = 114

func TestBridgeFitsOnTwoScreens(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "doc", "-short", "./bridge")
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "\n"); n == 0 || n > twoScreens {
		t.Errorf("go doc -short ./bridge has %d lines, more than %d:\n%s", n, twoScreens, out)
	}
}

// Every exported name of the imported packages has a sentence of its own. A sentence above a group of five types
// documents none of them. The sentence of an alias links to the type behind it, because go doc shows nothing else of
// that type.
func TestEveryNameHasASentence(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"bridge", "bridge/admin", "bridge/bridgetest", "bridge/tracing", "bridge/push",
		"bridge/outbox",
		"bridge/once"} {
		s := read(t, path)
		says := func(doc *ast.CommentGroup, name string) {
			text := doc.Text()
			if rest, ok := strings.CutPrefix(text, name); !ok || rest == "" || !strings.ContainsAny(rest[:1], " :,") {
				t.Errorf("the comment of %s.%s does not begin with its name: %q", path, name, text)
			}
		}
		comments := 0
		for name, f := range s.files {
			if f.Doc != nil {
				comments++
				if !strings.HasPrefix(f.Doc.Text(), "Package "+s.name+" ") {
					t.Errorf("%s: the package comment begins otherwise", name)
				}
			}
			for _, decl := range f.Decls {
				switch d := decl.(type) {
				case *ast.FuncDecl:
					if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
						says(d.Doc, d.Name.Name)
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						switch one := spec.(type) {
						case *ast.TypeSpec:
							if one.Name.IsExported() {
								says(d.Doc, one.Name.Name)
							}
							if to, ok := one.Type.(*ast.SelectorExpr); ok && one.Assign.IsValid() && one.Name.IsExported() {
								link := fmt.Sprintf("[%s.%s]", to.X.(*ast.Ident).Name, to.Sel.Name)
								if !strings.Contains(d.Doc.Text(), link) {
									t.Errorf("the comment of %s.%s does not link to %s", path, one.Name.Name, link)
								}
							}
						case *ast.ValueSpec:
							if one.Names[0].IsExported() && d.Lparen.IsValid() && one.Doc == nil && one.Comment == nil {
								t.Errorf("%s.%s has no comment of its own", path, one.Names[0].Name)
							} else if one.Names[0].IsExported() && !d.Lparen.IsValid() {
								says(d.Doc, one.Names[0].Name)
							}
						}
					}
				}
			}
		}
		if comments != 1 {
			t.Errorf("%s has %d package comments", path, comments)
		}
	}
}
