package assemble

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
)

// headerOfOne returns the header of a script that is called one.
func headerOfOne(uses, keys string) string {
	return "-- one: does it.\n-- Uses: " + uses + "\n" + keys + "-- Returns: nothing\n-- Complexity: O(1)\n" +
		"-- If a command fails here: nothing is done.\n-- Run twice: harmless.\n"
}

// one returns sources with a single script, called one, and a file of lib, called base.
func one(t *testing.T, keys, script, base string) *Sources {
	t.Helper()
	s, err := Read(fstest.MapFS{
		"one.lua":      {Data: []byte(headerOfOne("base", keys) + script)},
		"lib/base.lua": {Data: []byte(base)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Needs finds the commands that a script can reach, each with the indexes of the keys that the command may be for.
// Before its first write, the generated script asks whether its user may run the commands after that write.
func TestNeedsAreReadFromTheText(t *testing.T) {
	t.Parallel()
	const keys = "-- KEYS[1] due (zset)\n-- KEYS[2] meta (hash)\n-- KEYS[3] policy (hash)\n-- KEYS[4] turns (zset)\n"
	const base = `local function remove(key, values)
  redis.call('HDEL', key, unpack(values))
end
local function never(key)
  redis.call('XADD', key, '*')
end
local function pass(key)
  redis.call('ZREM', key, 'a')
end
`
	const script = `local due, meta, turns = KEYS[1], KEYS[2], KEYS[4]
local score = redis.call('ZSCORE', due, 'a')
local groups = redis.call('XINFO', 'GROUPS', k.stream)
local first = score and redis.call('ZRANGE', due, 0, 0)
-- Everything is known before the first write: the score.
redis.call('ZADD', due, 1, 'a')
redis.call('ZSCORE', due, 'b')
redis.call('ZRANGE', due, 1, 1)
redis.call('ZADD', turns, 1, 'a')
remove(meta, {'a'})
if score then pcall(pass, due) end
`
	s := one(t, keys, script, base)
	all, err := s.Needs("one")
	if err != nil {
		t.Fatal(err)
	}
	late, err := s.NeedsAfterFirstWrite("one")
	if err != nil {
		t.Fatal(err)
	}
	// HDEL is for any hash, because the function has the key as a parameter.
	wantAll := "[{ZSCORE [0]} {XINFO GROUPS []} {ZRANGE [0]} {ZADD [0 3]} {HDEL [1 2]} {ZREM [0 3]}]"
	if got := fmt.Sprint(all); got != wantAll {
		t.Errorf("the script needs %s, want %s", got, wantAll)
	}
	// The script does not ask for three rights: for the ZSCORE, because each run has sent one before; for the write to
	// turns; and for the ZREM of the last line, because it runs in a pcall and may fail.
	wantLate := "[{ZADD [0]} {ZRANGE [0]} {HDEL [1 2]}]"
	if got := fmt.Sprint(late); got != wantLate {
		t.Errorf("after its first write the script needs %s, want %s", got, wantLate)
	}
	text, err := s.Script("one")
	if err != nil {
		t.Fatal(err)
	}
	before, after, _ := strings.Cut(text, "redis.call('ZADD', due, 1, 'a')")
	const asked = `local lacks = may and (not may('ZADD', KEYS[1], '0', '0') and {'ZADD', KEYS[1]}
  or not may('ZRANGE', KEYS[1], '0', '0') and {'ZRANGE', KEYS[1]}
  or not may('HDEL', KEYS[2], '0') and {'HDEL', KEYS[2]}
  or KEYS[3] and not may('HDEL', KEYS[3], '0') and {'HDEL', KEYS[3]})
`
	if !strings.Contains(before, asked) {
		t.Errorf("before its first write the script does not ask whether its user may write:\n%s", before)
	}
	if strings.Contains(text, "never") || !strings.Contains(after, "naming_key(reply, {KEYS[1], 'zset', ") {
		t.Errorf("the script ends with\n%s", after)
	}
}

// Nobody needs the right to a command that a script does without.
func TestNobodyNeedsADispensableCommand(t *testing.T) {
	t.Parallel()
	s := one(t, "-- KEYS[1] stream (stream)\n",
		"redis.call('XDELEX', KEYS[1], 'ACKED', 'IDS', 1, '1-1')\nredis.call('XDEL', KEYS[1], '1-1')\n", "local base = 1\n")
	for name, needs := range map[string]func(string) ([]Need, error){"all": s.Needs, "late": s.NeedsAfterFirstWrite} {
		got, err := needs("one")
		if err != nil || len(got) != 1 || got[0].Command != "XDEL" {
			t.Errorf("%s: the script needs %v, %v, want XDEL", name, got, err)
		}
	}
}

// A script that only reads asks nothing: the server refuses its first command.
func TestAScriptThatOnlyReadsHasNoGuard(t *testing.T) {
	t.Parallel()
	s := one(t, "-- KEYS[1] due (zset)\n", "return redis.call('ZCARD', KEYS[1])\n", "local base = 1\n")
	text, err := s.Script("one")
	if err != nil {
		t.Fatal(err)
	}
	body, _, _ := strings.Cut(text, "\nend\n")
	if strings.Contains(body, "acl_check_cmd") {
		t.Errorf("the script asks for rights:\n%s", body)
	}
}
