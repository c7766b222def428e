package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// source holds the parsed files of one of our packages, without tests.
type source struct {
	name  string
	files map[string]*ast.File // by path
	types map[string]*ast.TypeSpec
	funcs map[string][]*ast.FuncDecl // methods by type; "" = functions
}

// read parses a package. path is its path in the module.
func read(t *testing.T, path string) *source {
	t.Helper()
	s := &source{files: map[string]*ast.File{}, types: map[string]*ast.TypeSpec{}, funcs: map[string][]*ast.FuncDecl{}}
	names, _ := filepath.Glob(filepath.Join("../..", path, "*.go"))
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
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

// receiver returns the name of the type that a method belongs to; "" for a function.
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
