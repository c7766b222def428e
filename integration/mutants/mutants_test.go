package main

import (
	"os"
	"slices"
	"testing"
)

// The rules change code, and neither comments nor texts in quotes. For each line, the table has the texts that its
// mutants put in its place: "" removes the line, and nil means that the line has no mutant.
func TestRulesOfMutants(t *testing.T) {
	for line, want := range map[string][]string{
		"  if n < 5 then return 1 end":          {"", "if n >= 5 then return 1 end"},
		"  redis.call('ZREM', due, id)":         {""},
		"  local n = redis.call('HLEN', due)":   nil,
		"  pcall(redis.call, 'HDEL', meta, id)": {""},
		"-- if a == b then return end":          nil,
		"  local text = 'a == b' -- c == d":     nil,
		"  until id == '0-0' or a ~= b":         {"until id ~= '0-0' or a ~= b", "until id == '0-0' or a == b"},
	} {
		var got []string
		for _, m := range mutantsOfLine(line) {
			got = append(got, m.new)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q becomes %q, want %q", line, got, want)
		}
	}
}

// Each listed survivor is still a mutant. If its line was edited, it is not, and the test fails, so that somebody
// judges the new line.
func TestSurvivorsAreMutants(t *testing.T) {
	all, err := mutantsOf(os.DirFS("../../lua"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range survivors() {
		if !slices.ContainsFunc(all, func(m mutant) bool { return m.name() == name }) {
			t.Errorf("no rule makes the survivor %s", name)
		}
	}
}
