// Package acl derives from the source code which rights each documented user needs: the scripts that the program of its
// role can run, and the commands that it sends besides them.
package acl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/duestream/duestream"

// code is the call graph of the module. Its nodes are functions, methods and package variables.
type code struct {
	fset  *token.FileSet
	calls map[types.Object][]types.Object // by node: the nodes to which its body refers
	sends map[types.Object][]string       // by node: what its body sends, a command ("XGROUP CREATE") or "script <name>"
	names map[string]types.Object         // nodes by name, such as "bridge.Client.Schedule"
	all   []*types.Named                  // the named types of the module
}

// loadCode loads the given packages and their dependencies within the module.
func loadCode(dir string, paths ...string) (*code, error) {
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export"}, paths...)...)
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	c := &code{fset: token.NewFileSet(), calls: map[types.Object][]types.Object{}, sends: map[types.Object][]string{},
		names: map[string]types.Object{}}
	own, exports := map[string]*types.Package{}, map[string]string{}
	foreign := importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var errs []error
	check := types.Config{
		Importer: importFunc(func(path string) (*types.Package, error) {
			if p := own[path]; p != nil {
				return p, nil
			}
			return foreign.Import(path)
		}),
		Error: func(err error) { errs = append(errs, err) },
	}
	type unit struct {
		files []*ast.File
		info  *types.Info
		name  string
	}
	var units []unit
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if !strings.HasPrefix(p.ImportPath, module+"/") {
			continue
		}
		u := unit{info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
			Types: map[ast.Expr]types.TypeAndValue{}}}
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(c.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			u.files = append(u.files, file)
		}
		pkg, err := check.Check(p.ImportPath, c.fset, u.files, u.info)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.ImportPath, errs[0])
		}
		own[p.ImportPath], u.name = pkg, strings.TrimPrefix(p.ImportPath, module+"/")
		units = append(units, u)
		for _, name := range pkg.Scope().Names() {
			if named, ok := pkg.Scope().Lookup(name).Type().(*types.Named); ok {
				c.all = append(c.all, named)
			}
		}
	}
	for _, u := range units {
		for _, file := range u.files {
			for _, d := range file.Decls {
				c.declaration(u.name, u.info, d)
			}
		}
	}
	return c, nil
}

type importFunc func(path string) (*types.Package, error)

func (f importFunc) Import(path string) (*types.Package, error) { return f(path) }

// declaration adds a function, or the variables of a declaration, to the graph.
func (c *code) declaration(pkg string, info *types.Info, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		of := info.Defs[d.Name]
		name := pkg + "." + d.Name.Name
		if recv := of.(*types.Func).Signature().Recv(); recv != nil {
			t := recv.Type()
			if p, ok := t.(*types.Pointer); ok {
				t = p.Elem()
			}
			name = pkg + "." + t.(*types.Named).Obj().Name() + "." + d.Name.Name
		}
		c.names[name] = of
		c.body(of, info, d)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR {
				for _, name := range v.Names {
					if of := info.Defs[name]; of != nil {
						c.names[pkg+"."+name.Name] = of
						c.body(of, info, v)
					}
				}
			}
		}
	}
}

// body records for a node to which nodes its body refers, and which commands it builds. The body of a variable is its
// value.
func (c *code) body(of types.Object, info *types.Info, node ast.Node) {
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			used := info.Uses[n]
			switch used := used.(type) {
			case *types.Func:
				c.calls[of] = append(c.calls[of], used.Origin())
				if command := builds(used); command != "" && command != arbitrary {
					c.sends[of] = append(c.sends[of], command)
				}
			case *types.Var:
				if used.Pkg() != nil && used.Parent() == used.Pkg().Scope() {
					c.calls[of] = append(c.calls[of], used)
				}
			}
		case *ast.CallExpr:
			c.call(of, info, n)
		}
		return true
	})
}

// call records for a node a command that is given as text (Arbitrary("SET", …)), or a script that is loaded by name
// (lua.load). A command whose name is not a constant is recorded as "? <position>".
func (c *code) call(of types.Object, info *types.Info, n *ast.CallExpr) {
	text := func(i int) string {
		if i < len(n.Args) && info.Types[n.Args[i]].Value != nil && info.Types[n.Args[i]].Value.Kind() == constant.String {
			return constant.StringVal(info.Types[n.Args[i]].Value)
		}
		return ""
	}
	switch fun := n.Fun.(type) {
	case *ast.SelectorExpr:
		if used, ok := info.Uses[fun.Sel].(*types.Func); ok && builds(used) == arbitrary {
			command := text(0)
			if containers[command] {
				command += " " + text(1)
			}
			if command == "" {
				command = "? " + c.fset.Position(n.Pos()).String()
			}
			c.sends[of] = append(c.sends[of], command)
		}
	case *ast.Ident:
		if used, ok := info.Uses[fun].(*types.Func); ok && used.FullName() == module+"/lua.load" {
			c.sends[of] = append(c.sends[of], "script "+text(0))
		}
	}
}

// containers are the commands whose first argument is the name of a subcommand.
var containers = map[string]bool{
	"ACL": true, "CLIENT": true, "CLUSTER": true, "COMMAND": true, "CONFIG": true, "FUNCTION": true, "LATENCY": true,
	"MEMORY": true, "OBJECT": true,
	"SCRIPT": true, "SENTINEL": true, "SLOWLOG": true, "XGROUP": true, "XINFO": true,
}

// arbitrary is the result of builds for the builder's method Arbitrary, whose arguments are the command.
const arbitrary = "ARBITRARY"

// builds returns the command that a method of the client library's builder builds, or arbitrary. It returns "" for any
// other function.
func builds(f *types.Func) string {
	recv := f.Signature().Recv()
	if recv == nil {
		return ""
	}
	name := strings.ToUpper(f.Name())
	switch of := recv.Type().String(); {
	case strings.HasSuffix(of, "rueidis/internal/cmds.Builder"):
	case strings.Contains(of, "rueidiscompat.") && f.Signature().Results().Len() == 1 &&
		strings.Contains(f.Signature().Results().At(0).Type().String(), "Cmd"):
		name = strings.TrimSuffix(name, "EXT")
	default:
		return ""
	}
	for container := range containers { // the builder's method XgroupCreate builds XGROUP CREATE
		if sub, ok := strings.CutPrefix(name, container); ok && sub != "" {
			return container + " " + sub
		}
	}
	if rest, ok := strings.CutSuffix(name, "RO"); ok && (rest == "EVAL" || rest == "EVALSHA" || rest == "FCALL") {
		return rest + "_RO"
	}
	return name
}

// reach returns the commands and scripts that can be sent by the functions named in roots and by those that they call,
// directly or indirectly. The value is a call path to a function that sends it. reach does not enter the functions
// named in excluded.
func (c *code) reach(roots, excluded []string) (map[string]string, error) {
	found, seen := map[string]string{}, map[types.Object]bool{}
	from := map[types.Object]types.Object{} // by node: the node from which it was first reached
	var queue []types.Object
	for _, name := range roots {
		of := c.names[name]
		if of == nil {
			return nil, fmt.Errorf("there is no %s", name)
		}
		queue = append(queue, of)
	}
	for _, name := range excluded {
		of := c.names[name]
		if of == nil {
			return nil, fmt.Errorf("there is no %s", name)
		}
		seen[of] = true
	}
	for len(queue) > 0 {
		of := queue[0]
		queue = queue[1:]
		if seen[of] {
			continue
		}
		seen[of] = true
		for _, command := range c.sends[of] {
			if found[command] == "" {
				found[command] = way(of, from)
			}
		}
		next := c.calls[of]
		if f, ok := of.(*types.Func); ok {
			next = append(next, c.implementations(f)...)
		}
		for _, called := range next {
			if _, known := from[called]; !known {
				from[called] = of
			}
			queue = append(queue, called)
		}
	}
	return found, nil
}

// way describes the call path to a node, beginning with the node itself: "send < run < main".
func way(of types.Object, from map[types.Object]types.Object) string {
	var steps []string
	for seen := map[types.Object]bool{}; of != nil && !seen[of]; of = from[of] {
		seen[of] = true
		steps = append(steps, of.Name())
	}
	return strings.Join(steps, " < ")
}

// implementations returns the methods of the module that implement an interface method.
func (c *code) implementations(f *types.Func) (methods []types.Object) {
	recv := f.Signature().Recv()
	if recv == nil {
		return nil
	}
	iface, ok := recv.Type().Underlying().(*types.Interface)
	if !ok {
		return nil
	}
	for _, named := range c.all {
		if !types.Implements(named, iface) && !types.Implements(types.NewPointer(named), iface) {
			continue
		}
		if m, _, _ := types.LookupFieldOrMethod(types.NewPointer(named), true, f.Pkg(), f.Name()); m != nil {
			methods = append(methods, m)
		}
	}
	return methods
}
