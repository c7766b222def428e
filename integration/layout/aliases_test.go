package layout

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what aliases stand for into their doc comments")

// source holds the parsed files of one of our packages, without tests.
type source struct {
	name  string
	files map[string]*ast.File // by path
	types map[string]*ast.TypeSpec
	funcs map[string][]*ast.FuncDecl // exported methods by type; "" = functions
}

var files = token.NewFileSet()

// read parses a package. path is its path in the module.
func read(t *testing.T, path string) *source {
	t.Helper()
	s := &source{files: map[string]*ast.File{}, types: map[string]*ast.TypeSpec{}, funcs: map[string][]*ast.FuncDecl{}}
	names, _ := filepath.Glob(filepath.Join("../..", path, "*.go"))
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(files, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		s.files[name], s.name = f, f.Name.Name
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				s.funcs[receiver(d)] = append(s.funcs[receiver(d)], d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if one, ok := spec.(*ast.TypeSpec); ok {
						s.types[one.Name.Name] = one
					}
				}
			}
		}
	}
	if len(s.files) == 0 {
		t.Fatalf("no package %s", path)
	}
	return s
}

func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return "?"
	}
	return name.Name
}

// shower prints types of other packages in the form that a reader of one package sees.
type shower struct {
	t        *testing.T
	seen     *source
	packages map[string]*source // by name
	shown    map[string]string  // type behind an alias, "stream.Policy" → the reader's name, "bridge.Policy"
}

func newShower(t *testing.T, path string) *shower {
	s := &shower{t: t, seen: read(t, path), packages: map[string]*source{}, shown: map[string]string{}}
	for name := range below {
		if !strings.HasPrefix(name, "examples/") {
			p := read(t, name)
			s.packages[p.name] = p
		}
	}
	s.aliases(s.packages["bridge"], "bridge.") // with the prefix of bridge,
	s.aliases(s.seen, "")                      // unless the package has a name of its own
	return s
}

func (s *shower) aliases(of *source, prefix string) {
	for name, spec := range of.types {
		if to, ok := spec.Type.(*ast.SelectorExpr); ok && spec.Assign.IsValid() && spec.Name.IsExported() {
			s.shown[to.X.(*ast.Ident).Name+"."+to.Sel.Name] = prefix + name
		}
	}
}

var (
	qualified = regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)`)
	bare      = regexp.MustCompile(`(^|[^\w.])([A-Z]\w*)`)
)

// text prints an expression of a package with the names that the reader of the shown package uses.
func (s *shower) text(of *source, node any) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, files, node); err != nil {
		s.t.Fatal(err)
	}
	text := bare.ReplaceAllStringFunc(b.String(), func(hit string) string {
		i := strings.IndexFunc(hit, func(r rune) bool { return r >= 'A' && r <= 'Z' })
		if of.types[hit[i:]] == nil {
			return hit
		}
		return hit[:i] + of.name + "." + hit[i:]
	})
	return qualified.ReplaceAllStringFunc(text, func(hit string) string {
		return cmp.Or(s.shown[hit], hit)
	})
}

// show returns the declaration of the type behind an alias, and its methods.
func (s *shower) show(name string, alias *ast.SelectorExpr) []string {
	of := s.packages[alias.X.(*ast.Ident).Name]
	target := of.types[alias.Sel.Name]
	if target == nil {
		s.t.Fatalf("%s stands for %s.%s, which is not there", name, of.name, alias.Sel.Name)
	}
	if next, ok := target.Type.(*ast.SelectorExpr); ok && target.Assign.IsValid() {
		return s.show(name, next)
	}
	var b strings.Builder
	var methods []string
	if fields, ok := target.Type.(*ast.StructType); ok {
		var lines []string
		lines, methods = s.fields(of, fields, nil)
		if len(lines) == 0 {
			lines = []string{"\t// contains no exported fields\n"}
		}
		fmt.Fprintf(&b, "type %s struct {\n%s}\n", name, strings.Join(lines, ""))
	} else {
		fmt.Fprintf(&b, "type %s %s\n", name, s.text(of, target.Type))
	}
	methods = append(methods, s.methods(of, alias.Sel.Name, name)...)
	slices.Sort(methods)
	pretty, err := format.Source([]byte(b.String() + strings.Join(methods, "")))
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", name, err, b.String())
	}
	return strings.Split(strings.TrimSpace(string(pretty)), "\n")
}

// fields prints the exported fields of a struct, including those of embedded types that the reader cannot see, except
// hidden names.
func (s *shower) fields(of *source, fields *ast.StructType, hidden []string) (lines, methods []string) {
	outer := hidden
	for _, f := range fields.Fields.List {
		for _, n := range f.Names {
			outer = append(slices.Clip(outer), n.Name)
		}
	}
	for _, f := range fields.Fields.List {
		if len(f.Names) == 0 {
			inner := of
			var name string
			switch e := f.Type.(type) {
			case *ast.SelectorExpr:
				inner, name = s.packages[e.X.(*ast.Ident).Name], e.Sel.Name
			case *ast.Ident:
				name = e.Name
			}
			if inner != nil && s.shown[inner.name+"."+name] == "" && inner.types[name] != nil {
				if embedded, ok := inner.types[name].Type.(*ast.StructType); ok {
					more, theirs := s.fields(inner, embedded, outer)
					lines, methods = append(lines, more...), append(methods, theirs...)
					methods = append(methods, s.methods(inner, name, name)...)
				}
				continue
			}
			if ast.IsExported(name) {
				lines = append(lines, "\t"+s.text(of, f.Type)+"\n")
			}
			continue
		}
		var names []string
		for _, n := range f.Names {
			if n.IsExported() && !slices.Contains(hidden, n.Name) {
				names = append(names, n.Name)
			}
		}
		if len(names) == 0 {
			continue
		}
		line := "\t" + strings.Join(names, ", ") + " " + s.text(of, f.Type)
		above, beside := f.Doc.Text(), strings.TrimSpace(f.Comment.Text())
		if len(line)+len(beside) > 100 {
			above, beside = above+beside, ""
		}
		lines = append(lines, wrapped(above)...)
		if beside != "" {
			line += " // " + beside
		}
		lines = append(lines, line+"\n")
	}
	return lines, methods
}

// wrapped formats a text as comment lines of limited length.
func wrapped(text string) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		if n := len(lines); n == 0 || len(lines[n-1])+1+len(word) > 115 {
			lines = append(lines, "\t//")
		}
		lines[len(lines)-1] += " " + word
	}
	for i := range lines {
		lines[i] += "\n"
	}
	return lines
}

// expected are methods that are not called by name.
var expected = []string{"Error", "Unwrap", "Is", "MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText"}

func (s *shower) methods(of *source, name, shown string) (lines []string) {
	for _, m := range of.funcs[name] {
		if !m.Name.IsExported() || slices.Contains(expected, m.Name.Name) {
			continue
		}
		star := ""
		if _, ok := m.Recv.List[0].Type.(*ast.StarExpr); ok {
			star = "*"
		}
		lines = append(lines, "func ("+star+shown+") "+m.Name.Name+strings.TrimPrefix(s.text(of, m.Type), "func")+"\n")
	}
	return lines
}

// go doc shows an alias as one line. The doc comment shows the current type behind it; with -update, this test writes
// it.
func TestAliasesShowWhatTheyStandFor(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"bridge", "bridge/admin"} {
		s := newShower(t, path)
		for name, f := range s.seen.files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			edits := s.edits(f)
			slices.Reverse(edits) // from the end, so that offsets stay valid
			for _, e := range edits {
				if old := string(text[e.from:e.to]); old == e.text {
					continue
				} else if !*update {
					const how = "run `go test ./integration/layout -update`"
					t.Errorf("%s: the comment of an alias does not show what it stands for; %s. It should be\n%s", name, how,
						e.text)
				}
				text = slices.Concat(text[:e.from], []byte(e.text), text[e.to:])
			}
			if *update && len(edits) > 0 {
				if err := os.WriteFile(name, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

type edit struct {
	from, to int
	text     string
}

// edits returns the doc comments that the aliases of a file should have.
func (s *shower) edits(f *ast.File) (edits []edit) {
	for _, decl := range f.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.TYPE {
			continue
		}
		for _, spec := range d.Specs {
			one := spec.(*ast.TypeSpec)
			to, ok := one.Type.(*ast.SelectorExpr)
			if !ok || !one.Assign.IsValid() || !one.Name.IsExported() || s.packages[to.X.(*ast.Ident).Name] == nil {
				continue
			}
			doc := d.Doc
			if d.Lparen.IsValid() || doc == nil {
				s.t.Errorf("%s has no doc comment of its own", one.Name.Name)
				continue
			}
			var kept []string
			for _, line := range doc.List {
				if strings.HasPrefix(line.Text, "//\t") {
					break
				}
				kept = append(kept, line.Text)
			}
			for len(kept) > 0 && kept[len(kept)-1] == "//" {
				kept = kept[:len(kept)-1]
			}
			kept = append(kept, "//")
			for _, line := range s.show(one.Name.Name, to) {
				kept = append(kept, strings.TrimRight("//\t"+line, " \t"))
			}
			edits = append(edits, edit{files.Position(doc.Pos()).Offset, files.Position(doc.End()).Offset,
				strings.Join(kept, "\n")})
		}
	}
	return edits
}
