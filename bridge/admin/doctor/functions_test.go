package doctor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/duestream/duestream/lua"
)

// A master that lacks the library of functions is a defect only if another master has the current library. A server
// that cannot be asked is not judged, and reported as left out.
func TestLibrariesAreComparedWithEachOther(t *testing.T) {
	t.Parallel()
	row := func(role string, state lua.LibraryState, err error) lua.Library {
		return lua.Library{Server: "127.0.0.1:1", Role: role, State: state, Err: err}
	}
	current, absent := row("master", lua.LibraryCurrent, nil), row("master", lua.LibraryAbsent, nil)
	for _, c := range []struct {
		name     string
		rows     []lua.Library
		codes    string
		unjudged int
	}{
		{"nobody has one", []lua.Library{absent, absent}, "[]", 0},
		{"all have it", []lua.Library{current, current}, "[]", 0},
		{"one master lacks it", []lua.Library{current, absent, current}, "[D602]", 0},
		{"a replica lacks it for a moment", []lua.Library{current, row("replica", lua.LibraryAbsent, nil)}, "[]", 0},
		{"one older, one neither older nor newer", []lua.Library{row("master", lua.LibraryOlder, nil),
			row("master", lua.LibraryOther, nil)}, "[D601 D601]", 0},
		{"newer", []lua.Library{row("master", lua.LibraryNewer, nil)}, "[]", 0},
		{"somebody else's, and none", []lua.Library{row("master", lua.LibraryForeign, nil), absent}, "[]", 0},
		{"one that may not be asked", []lua.Library{row("master", "", lua.ErrDenied), current}, "[]", 1},
		{"a server without functions", []lua.Library{row("master", "", fmt.Errorf("x: %w", lua.ErrNoFunctions))}, "[]", 0},
		{"away", []lua.Library{row("master", "", errors.New("away"))}, "[]", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			unjudged, codes := 0, []string{}
			for _, f := range judgeLibraries(c.rows, func(string, error) { unjudged++ }) {
				codes = append(codes, f.check.Code)
			}
			if got := fmt.Sprint(codes); got != c.codes || unjudged != c.unjudged {
				t.Errorf("found %s and did not judge %d, want %s and %d", got, unjudged, c.codes, c.unjudged)
			}
		})
	}
}
