package lua

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/duestream/duestream/integration/redistest"
)

// Members of other releases are read as far as they parse; a text that does not begin with the ID of a bridge is none.
func TestIdentityRoundTrip(t *testing.T) {
	t.Parallel()
	const id = "01M7ZMPW4AFDJS68SPX5258FR1"
	for member, want := range map[string]Identity{
		id:                               {ID: id, Level: 1},
		id + " web-1 7 v1.2.3":           {id, "web-1", 7, "v1.2.3", 1}, // of a release without levels
		id + " web-1 7 v1.2.3 p2":        {id, "web-1", 7, "v1.2.3", 2},
		id + " web-1 7 v1.2.3 p17 blue":  {id, "web-1", 7, "v1.2.3", 17}, // of a later release
		id + " - 0 -":                    {ID: id, Level: 1},
		id + " web-1 7 v1.2.3 blue 99":   {id, "web-1", 7, "v1.2.3", 1},
		id + " web-1 7 v1.2.3 p02":       {id, "web-1", 7, "v1.2.3", 1},
		id + " web-1 7 v1.2.3 p-2":       {id, "web-1", 7, "v1.2.3", 1},
		id + " web-1 7 v1.2.3 p1000000":  {id, "web-1", 7, "v1.2.3", 1},
		id + " something else":           {ID: id, Level: 1},
		id + " web-1 1e9999 v1":          {id, "web-1", 0, "v1", 1},
		id + " a|b 7 $(reboot)":          {id, "a_b", 7, "__reboot_", 1},
		id + " web-1 99999999999999 v1 ": {id, "web-1", 0, "v1", 1},
	} {
		if got, ok := ParseIdentity(member); !ok || got != want {
			t.Errorf("%q: %+v %v", member, got, ok)
		}
	}
	for _, member := range []string{
		"", " ", "me", "a_bridge", strings.ToLower(id), id + "x", id[:25], " " + id, id + "\t", id + " \x1b]0;owned\a", id +
			" w\u202eeb 7 v1", id + " \xff 7 v1",
		"\x1b[2J", strings.Repeat("x", 1<<20), id + " " + strings.Repeat("x", 256),
	} {
		if got, ok := ParseIdentity(member); ok {
			t.Errorf("%.80q is taken for the bridge %+v", member, got)
		}
	}
}

// Whatever the names of the machine and of the version are: the member is short, harmless, and parses to the same
// identity.
func TestIdentityIsHarmless(t *testing.T) {
	// Not beside parallel tests: the parallel TestNoScriptTouchesMoreThanItsBudget sets the flags that this one reads.
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.OneOf(rapid.String(), rapid.Just(strings.Repeat("ä", 300)), rapid.Just("-")).Draw(t, "host")
		version := rapid.OneOf(rapid.String(), rapid.StringN(0, 300, -1)).Draw(t, "version")
		i := NewIdentity(host, rapid.Int().Draw(t, "pid")&0x7fffffff, version)
		member := i.String()
		if len(member) > 26+1+maxHostBytes+1+10+1+maxVersionBytes+8 || strings.Count(member, " ") != 4 {
			t.Fatalf("%q", member)
		}
		read, ok := ParseIdentity(member)
		if !ok || read.String() != member || read.PID != i.PID || read.ID != i.ID || read.Level != Level {
			t.Fatalf("%q became %+v, %q", member, read, read.String())
		}
		if age := time.Since(read.Started()); age < -time.Second || age > time.Minute {
			t.Fatalf("started %v ago", age)
		}
	})
}

// Anybody may add members to the key of the heartbeats. Names that are too long for bridges are not returned, many of
// them do not hold up the server, and the caller is among the live bridges.
func TestHeartbeatReturnsNoLongNames(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		c, g := s.Client(t), NewGlobals(s.Prefix(t))
		now, _, err := Heartbeat(t.Context(), c, g, "01M7ZMPW4AFDJS68SPX5258FR1 a 1 v1", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{strings.Repeat("x", 1<<20), strings.Repeat("y", 1<<20),
			strings.Repeat("z", MaxIdentityBytes+1), strings.Repeat("k", MaxIdentityBytes)} {
			if err := c.Do(t.Context(), c.B().Zadd().Key(g.Bridges).ScoreMember().ScoreMember(float64(now.UnixMilli()),
				name).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		_, live, err := Heartbeat(t.Context(), c, g, "me", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(live)
		if want := []string{"01M7ZMPW4AFDJS68SPX5258FR1 a 1 v1", strings.Repeat("k", MaxIdentityBytes), "me"}; !slices.Equal(live,
			want) {
			t.Errorf("%d live: %.300q", len(live), live)
		}
	})
}
