package assemble

import (
	"slices"
	"strings"
	"testing"
)

// The parser refuses the header of ack.lua without one of its items, or with two neighbours swapped. It may accept the
// header without an argument, and then has an argument less.
func TestHeaderParserRefusesDisorder(t *testing.T) {
	t.Parallel()
	good := readAll(t).files["ack.lua"].text
	if _, err := ParseHeader("ack", good); err != nil {
		t.Fatal(err)
	}
	var items []string
	for _, item := range headerItems(good) {
		items = append(items, "-- "+item.text+"\n")
	}
	for i := range 8 {
		without := strings.Join(slices.Delete(slices.Clone(items), i, i+1), "")
		if h, err := ParseHeader("ack", without); err == nil && len(h.Args)+len(h.Each) == 3 {
			t.Errorf("accepted without item %d: %s", i+1, items[i])
		}
		if i < 7 {
			swapped := slices.Clone(items)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			if _, err := ParseHeader("ack", strings.Join(swapped, "")); err == nil {
				t.Errorf("accepted with items %d and %d swapped", i+1, i+2)
			}
		}
	}
}

// Every item of a header may have several lines. An error behind such items still names the right line.
func TestHeaderLinesContinueTheirItem(t *testing.T) {
	t.Parallel()
	const text = `-- one: does it,
--   twice.
-- Uses: base
--   key
-- KEYS[1] due
--   (zset)
-- ARGV[1] limit (integer,
--   members)
-- ARGV[2...] id,
--   when (string; Unix
--   ms)
-- Returns: an
--   integer
-- Complexity: O(1),
--   always
-- If a command fails here: nothing
--   is done.
-- Run twice: harm
--   less.
--   It only reads.
return 1
`
	h, err := ParseHeader("one", text)
	if err != nil {
		t.Fatal(err)
	}
	if h.Purpose != "does it, twice." || h.Returns != "an integer" {
		t.Errorf("the header says that it does %q and returns %q", h.Purpose, h.Returns)
	}
	for _, list := range []struct{ got, want []string }{
		{h.Uses, []string{"base", "key"}},
		{h.Keys, []string{"due"}},
		{h.Types, []string{"zset"}},
		{h.Args, []string{"limit"}},
		{h.Each, []string{"id", "when"}},
	} {
		if !slices.Equal(list.got, list.want) {
			t.Errorf("read %q, want %q", list.got, list.want)
		}
	}
	if _, err := ParseHeader("one", strings.Replace(text, "-- Returns", "-- Return", 1)); err == nil ||
		!strings.HasPrefix(err.Error(), "line 12 ") {
		t.Errorf("a wrong item behind continued ones: %v, want line 12", err)
	}
}
