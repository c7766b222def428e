package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var logMethods = map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0, "Log": 3, "LogAttrs": 3}

// The keys of log lines are listed in docs/operations/logs.md, each with one meaning, so that nobody needs the source
// to search logs. This test finds only keys given by slog.String and the like, so a bare key beside its value is an
// error.
func TestLogKeysAreDocumented(t *testing.T) {
	t.Parallel()
	used := map[string][]string{}
	for _, root := range []string{"bridge", "cmd/duestream", "internal", "lua", "scheduler", "stream"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, d fs.DirEntry, err error) error {
			skip := d.IsDir() && (strings.HasSuffix(path, "/conformance") || strings.HasSuffix(path, "/bench"))
			if skip {
				return filepath.SkipDir
			}
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				err = logKeys(t, path, used)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("../../docs/operations/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| Key in a log line |")
	table, _, _ = strings.Cut(table, "\n\n")
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(table, -1) {
		for _, key := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			listed[key[1]] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if !regexp.MustCompile(`^[a-z][a-z_]*$`).MatchString(key) {
			t.Errorf("key %q is not snake_case: %v", key, used[key])
		}
		if !listed[key] {
			t.Errorf("key %q is not in the table of docs/operations/logs.md: %v", key, used[key])
		}
		delete(listed, key)
	}
	for _, key := range []string{"id", "queue", "group", "attempt"} {
		if used[key] == nil {
			t.Errorf("no line has %q", key)
		}
	}
	for key := range listed {
		t.Errorf("docs/operations/logs.md lists %q, which no line has", key)
	}
}

// logKeys adds the keys that a file uses in log lines, with their places.
func logKeys(t *testing.T, path string, used map[string][]string) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, 0)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if of, ok := method.X.(*ast.Ident); ok && of.Name == "slog" {
			if key, ok := literal(call.Args, 0); ok && len(call.Args) == 2 {
				used[key] = append(used[key], files.Position(call.Pos()).String())
			}
			return true
		}
		if first, ok := logMethods[method.Sel.Name]; ok && isLogger(method.X) {
			for i := first; i < len(call.Args); i++ {
				if key, ok := literal(call.Args, i); ok {
					t.Errorf("%s: key %q stands beside its value: write slog.String or its like", files.Position(call.Pos()), key)
				}
			}
		}
		return true
	})
	return nil
}

func literal(args []ast.Expr, i int) (text string, ok bool) {
	if i >= len(args) {
		return "", false
	}
	lit, ok := args[i].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// isLogger reports whether an expression ends in a name of a logger.
func isLogger(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return strings.EqualFold(e.Name, "log") || strings.EqualFold(e.Name, "logger")
	case *ast.SelectorExpr:
		return isLogger(e.Sel)
	}
	return false
}
