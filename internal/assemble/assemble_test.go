package assemble

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const luaDir = "../../lua"

func readAll(t *testing.T) *Sources {
	t.Helper()
	s, err := Read(os.DirFS(luaDir))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The scripts that run are generated: a changed source has no effect before `go generate ./lua`.
func TestGeneratedFilesAreUpToDate(t *testing.T) {
	t.Parallel()
	want, err := readAll(t).Generated()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		text, err := os.ReadFile(filepath.Join(luaDir, path))
		if err != nil {
			t.Errorf("%v: run `go generate ./lua`", err)
		} else if string(text) != want[path] {
			t.Errorf("lua/%s is out of date: run `go generate ./lua`, never edit it", path)
		}
	}
	there, err := filepath.Glob(filepath.Join(luaDir, "generated", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		if _, ok := want["generated/"+filepath.Base(path)]; !ok {
			t.Errorf("lua/generated/%s has no source: run `go generate ./lua`", filepath.Base(path))
		}
	}
}

// Each server keeps the text of every script in memory, so comments are removed before a script is sent.
func TestScriptsAreSentWithoutComments(t *testing.T) {
	t.Parallel()
	s := readAll(t)
	for _, name := range s.Scripts() {
		text, err := s.Script(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(text, "--") || strings.Contains(text, "\n--") {
			t.Errorf("%s is sent with its comments", name)
		}
	}
}

// A script that cannot be built is refused with the file and the reason, when it is built and not when it runs.
func TestSourcesThatCannotBeBuiltAreRefused(t *testing.T) {
	t.Parallel()
	header := func(uses string) string { return headerOfOne(uses, "-- KEYS[1] due (zset)\n") }
	for _, c := range []struct{ name, text, refused string }{ // refused: part of the error; "" = the script is built
		{"a file of lib that is not there", header("base nowhere"), "there is no lua/lib/nowhere.lua"},
		{"no header", "return 1\n", "lua/one.lua: no header"},
		{"a command that is not named", header("base") + "redis.call(command, KEYS[1])\n", "a command is not written as"},
		{"a command that can be read", header("base") + "redis.call('ZCARD', due)\n", ""},
	} {
		s, err := Read(fstest.MapFS{
			"one.lua":      {Data: []byte(c.text)},
			"lib/base.lua": {Data: []byte("local base = 1\n")},
		})
		if err == nil {
			_, err = s.Script("one")
		}
		if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.refused)
		}
	}
	if _, err := readAll(t).Script("nobody"); err == nil || err.Error() != "there is no lua/nobody.lua" {
		t.Errorf("a script that is not there: %v", err)
	}
}

// Only the library functions that a script can reach are sent with it.
func TestScriptBringsTheFunctionsThatItReaches(t *testing.T) {
	t.Parallel()
	library := split("local A = 1\n" +
		"local function first()\n  return A\nend\n" +
		"local function second()\n  return first()\nend\n" +
		"local function short() return first() end\nlocal B = 2\n" +
		"local function second_more()\n  return 2\nend\n")
	if library.rest != "local A = 1\nlocal B = 2\n" {
		t.Errorf("outside of functions stands %q", library.rest)
	}
	for text, want := range map[string]string{
		"return second()\n":            "first second",
		"return first() + my_second\n": "first",
		"return second_more()\n":       "second_more",
		"return short()\n":             "first short",
		"return 'nothing'\n":           "",
	} {
		var names []string
		for _, f := range split(library.reachableFrom(text)).functions {
			names = append(names, f.name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q reaches %q, want %q", text, got, want)
		}
	}
}

// Only the other locals that a script can reach are sent with it. A local may take several lines.
func TestScriptBringsTheConstantsThatItReaches(t *testing.T) {
	t.Parallel()
	constants, others := splitConstants("local A = 'a'\n" +
		"local TABLE = {\n  one = A,\n}\n" +
		"local clock, now = pcall(clock_of)\nread(clock)\n" +
		"local LONG = 'x' ..\n  'y'\n" +
		"local B = 2\n")
	if want := "local clock, now = pcall(clock_of)\nread(clock)\n"; others != want {
		t.Errorf("other lines are %q, want %q", others, want)
	}
	for text, want := range map[string]string{
		"return TABLE.one\n": "local A = 'a'\nlocal TABLE = {\n  one = A,\n}\n",
		"return LONG\n":      "local LONG = 'x' ..\n  'y'\n",
		"return B, Bs\n":     "local B = 2\n",
		"return 'nothing'\n": "",
	} {
		if got := constants.reachableFrom(text); got != want {
			t.Errorf("%q reaches %q, want %q", text, got, want)
		}
	}
}
