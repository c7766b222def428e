package assemble

import (
	"fmt"
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
local function free_many(n)
  return inner(n)
end
local function end_turns(k)
  return digits(k)
end
`
	const script = "if more then return free_many(digits(1)) end\nend_turns(1)\n"
	text, err := one(t, "-- KEYS[1] due (zset)\n", script, base).Script("one")
	if err != nil {
		t.Fatal(err)
	}
	const want = `local COMMON = 1
local function digits(n)
  return n + COMMON
end
local function free_many(...)
local LIMIT = 2
local function inner(n)
  return digits(n) + LIMIT
end
function free_many(n)
  return inner(n)
end
return free_many(...)
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

// Each rare function declares its own copy of a local that only rare functions need, so such a local must not change. A
// local that another function needs, too, is declared once, so it may change.
func TestRareFunctionMayNotChangeALocalOfTheLibrary(t *testing.T) {
	t.Parallel()
	const rare = "local STATE = {}\nlocal function free_many(n)\n  %s\nend\nlocal function other()\n  return STATE\nend\n"
	for _, c := range []struct {
		body, script string
		refused      bool
	}{
		{"return STATE[n] == STATE.n and #STATE <= n and {n = STATE}", "free_many(1)\n", false},
		{"STATE = n", "free_many(1)\n", true},
		{"n, STATE = 1, 2", "free_many(1)\n", true},
		{"STATE, n = 1, 2", "free_many(1)\n", true},
		{"STATE[n] = true", "free_many(1)\n", true},
		{"STATE.n = true", "free_many(1)\n", true},
		{"table.insert(STATE, n)", "free_many(1)\n", true},
		{"add_pair(STATE, n, n)", "free_many(1)\n", true},
		{"STATE = n", "free_many(other())\n", false},
	} {
		_, err := one(t, "-- KEYS[1] due (zset)\n", c.script, fmt.Sprintf(rare, c.body)).Script("one")
		if refused := err != nil && strings.Contains(err.Error(), "changes STATE"); refused != c.refused {
			t.Errorf("%s, in a script with %s: %v, want it refused: %t", c.body, strings.TrimSpace(c.script), err, c.refused)
		}
	}
}

// A function that only the lines below restComment need is declared there. The handling of errors cannot see this
// declaration, so it gets a declaration of its own.
func TestRestOfAScriptDeclaresWhatItNeeds(t *testing.T) {
	t.Parallel()
	const base = `local COMMON = 1
local LIMIT = 2
local function digits(n)
  return n + COMMON
end
local function inner(n)
  return digits(n) + LIMIT
end
local function is_denied(failure)
  return inner(0) == failure
end
`
	script := "if digits(1) then return 1 end\n" + restComment + "\nreturn inner(1)\n"
	text, err := one(t, "-- KEYS[1] due (zset)\n", script, base).Script("one")
	if err != nil {
		t.Fatal(err)
	}
	const want = `local COMMON = 1
local LIMIT = 2
local function digits(n)
  return n + COMMON
end
local function main()
if digits(1) then return 1 end
local function inner(n)
  return digits(n) + LIMIT
end
return inner(1)
end
local ok, reply = pcall(main)
if ok then return reply end
local function inner(n)
  return digits(n) + LIMIT
end
local function is_denied(failure)
  return inner(0) == failure
end
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
