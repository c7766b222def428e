package assemble

import (
	"slices"
	"strings"
	"testing"
)

// The functions and constants that only a rare function needs are declared in it, on its first call. Those that others
// need, too, are declared once, before it.
func TestRareFunctionDeclaresTheFunctionsItNeeds(t *testing.T) {
	t.Parallel()
	const base = `local COMMON = 1
local LIMIT = 2
local function digits(n)
  return n + COMMON
end
local function inner(n)
  return digits(n) + LIMIT
end
local function bounds(n)
  return inner(n)
end
local function end_turns(k)
  return digits(k)
end
`
	const script = "if more then return bounds(digits(1)) end\nend_turns(1)\n"
	text, err := one(t, "-- KEYS[1] due (zset)\n", script, base).Script("one")
	if err != nil {
		t.Fatal(err)
	}
	const want = `local COMMON = 1
local function digits(n)
  return n + COMMON
end
local function bounds(...)
local LIMIT = 2
local function inner(n)
  return digits(n) + LIMIT
end
function bounds(n)
  return inner(n)
end
return bounds(...)
end
local function end_turns(k)
  return digits(k)
end
local function main()
`
	if !strings.HasPrefix(text, want) {
		t.Errorf("the script begins with\n%s\nwant\n%s", text, want)
	}
}

// A function that is renamed, or that needs no others any more, must leave the list of rare functions.
func TestEachRareFunctionDefersOthers(t *testing.T) {
	t.Parallel()
	s := readAll(t)
	deferred := map[string]bool{}
	for _, script := range s.Scripts() {
		text, err := s.Script(script)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range rareFunctions {
			if strings.Contains(text, "\nlocal function "+name+"(...)\n") {
				deferred[name] = true
			}
		}
	}
	for _, name := range rareFunctions {
		if !deferred[name] {
			t.Errorf("%s defers no declaration in any script", name)
		}
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(rareFunctions))); len(sorted) != len(rareFunctions) {
		t.Errorf("a rare function is listed twice: %v", rareFunctions)
	}
}
