package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reads are the methods of the command builder, without their arguments, that change nothing. XREADGROUP is here,
// because by it Redis itself delivers a message.
var reads = regexp.MustCompile(`^(Get|Getrange|Strlen|Mget|Exists|Type|Ttl|Pttl|Scan|Keys|Dbsize|Randomkey|` +
	`Hget|Hmget|Hgetall|Hkeys|Hvals|Hlen|Hexists|Hstrlen|Hscan|Lrange|Llen|Smembers|Scard|Sismember|` +
	`Zcard|Zcount|Zrange|Zrangebyscore|Zrangebylex|Zrank|Zscore|Zmscore|Zscan|` +
	`Xlen|Xrange|Xrevrange|Xread|Xreadgroup|Xpending|XinfoStream|XinfoGroups|XinfoConsumers|` +
	`Time|Ping|Info|ConfigGet|MemoryUsage|Echo|AclWhoami|ClusterSlots|Wait|Waitaof|Role)$`)

// commands given as text that change nothing.
var readTexts = []string{"XREAD", "XREADGROUP", "HELLO", "PING", "INFO", "TIME"}

// mayWrite are files and directories outside of lua that write with other programs' commands: the packages below
// bridge/migrate empty the structures of other programs; bridgetest runs scripts with the clock of a test, sets idle
// times to it, and deletes the keys of its test; bench runs programs that are compared with duestream; conformance
// tests other clients; clitest helps tests.
var mayWrite = []string{"bridge/migrate/asynq/remove.go", "bridge/migrate/bullmq/remove.go",
	"bridge/migrate/delayqueue/remove.go", "bridge/migrate/lmstfy/remove.go",
	"bridge/bridgetest/", "cmd/duestream/bench/",
	"cmd/duestream/conformance/", "cmd/duestream/internal/clitest/"}

// luaWrites are the files of package lua with write commands. plain.go gives the reason why each of its commands is
// safe. restore_recurrence.go and transact.go make transactions. script.go, durability.go and expire.go run scripts.
// library.go loads the library of functions.
var luaWrites = []string{"lua/plain.go", "lua/restore_recurrence.go", "lua/transact.go", "lua/script.go",
	"lua/durability.go", "lua/expire.go", "lua/library.go"}

// Only package lua writes to Redis: by scripts, and by the few plain commands of lua/plain.go.
func TestOnlyLuaWrites(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, root := range []string{"bridge", "cmd", "internal", "lua", "scheduler", "stream"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name := filepath.ToSlash(strings.TrimPrefix(path, filepath.Join("..", "..")+string(filepath.Separator)))
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			for _, one := range writesIn(file) {
				found[one.command] = true
				allowed := slices.Contains(luaWrites, name) ||
					slices.ContainsFunc(mayWrite, func(place string) bool { return strings.HasPrefix(name, place) })
				if !allowed {
					t.Errorf("%s:%d sends %s: write a typed call in package lua, by a script, or in lua/plain.go "+
						"with the reason why it is safe", name, files.Position(one.at).Line, one.command)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range []string{
		"Hset", "Hdel", "Zadd", "Zrem", "Xdel", "Xtrim", "Unlink", "Watch", "Multi", "Evalsha",
	} {
		if !found[command] {
			t.Errorf("the test does not find %s any more", command)
		}
	}
}

type written struct {
	command string
	at      token.Pos
}

// writesIn returns the write commands that a file builds, by the names of the builder's methods. A builder is the
// result of a method B, or a variable that it is assigned to.
func writesIn(file *ast.File) (found []written) {
	builders := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, right := range a.Rhs {
				if name, ok := a.Lhs[i].(*ast.Ident); ok && isBuilder(right, nil) {
					builders[name.Name] = true
				}
			}
		}
		return true
	})
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !isBuilder(method.X, builders) {
			return true
		}
		command := method.Sel.Name
		if command == "Arbitrary" {
			command = "an arbitrary command"
			if text, ok := call.Args[0].(*ast.BasicLit); ok {
				command, _ = strconv.Unquote(text.Value)
				if slices.Contains(readTexts, command) {
					return true
				}
			}
		}
		if !reads.MatchString(command) {
			found = append(found, written{command, method.Sel.Pos()})
		}
		return true
	})
	return found
}

// isBuilder reports whether an expression is a builder of commands.
func isBuilder(e ast.Expr, variables map[string]bool) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return variables[e.Name]
	case *ast.CallExpr:
		method, ok := e.Fun.(*ast.SelectorExpr)
		return ok && method.Sel.Name == "B" && len(e.Args) == 0
	}
	return false
}

// The test above sees a write however the builder is reached.
func TestWritesAreSeen(t *testing.T) {
	t.Parallel()
	const source = `package p
func f() {
	c.Do(ctx, c.B().Zadd().Key(k).Build())
	b := s.cfg.Client.B()
	b.Hset().Key(k)
	one, two := c.B(), 2
	one.Unlink()
	c.B().Arbitrary("DEL", "x")
	c.B().Arbitrary(words...)
	c.B().Hget().Key(k)
	c.B().Arbitrary("XREAD", "x")
	other.Hset()
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range writesIn(file) {
		got = append(got, one.command)
	}
	if want := []string{"Zadd", "Hset", "Unlink", "DEL", "an arbitrary command"}; !slices.Equal(got, want) {
		t.Errorf("seen are %q, want %q", got, want)
	}
}
