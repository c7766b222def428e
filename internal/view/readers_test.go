package view

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The readers return what the server says about a stream, its groups, consumers and pending entries. A stream or a
// group that does not exist is empty, except that the pending entries of a missing group are an error.
func TestReadersOfStreams(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		c, key := server.Client(t), server.Prefix(t)+":stream"
		do := func(words ...string) {
			t.Helper()
			if err := c.Do(t.Context(), c.B().Arbitrary(words...).Build()).Error(); err != nil {
				t.Fatal(words, err)
			}
		}
		none, err := ReadStream(t.Context(), c, key)
		redistest.Want(t, "groups of no stream", fmt.Sprint(none, err), "{0 []} <nil>")
		_, there, err := ReadLastID(t.Context(), c, key)
		redistest.Want(t, "last ID of no stream", fmt.Sprint(there, err), "false <nil>")
		nobody, err := ReadConsumers(t.Context(), c, key, "g")
		redistest.Want(t, "consumers of no stream", fmt.Sprint(nobody, err), "[] <nil>")

		do("XGROUP", "CREATE", key, "g", "0", "MKSTREAM")
		// Five entries: consumer a reads three of them, b reads one, and 2-7 is then delivered for the fourth time.
		for i := range 5 {
			do("XADD", key, fmt.Sprint(i+1, "-7"), "id", "m")
		}
		do("XREADGROUP", "GROUP", "g", "a", "COUNT", "3", "STREAMS", key, ">")
		do("XREADGROUP", "GROUP", "g", "b", "COUNT", "1", "STREAMS", key, ">")
		do("XCLAIM", key, "g", "a", "0", "2-7", "IDLE", "60000", "RETRYCOUNT", "4", "JUSTID")
		s, err := ReadStream(t.Context(), c, key)
		g, ok := s.Group("g")
		// The text is: length, pending entries, consumers, last delivered ID, whether the group exists, error.
		redistest.Want(t, "group", fmt.Sprint(s.Length, g.Pending, g.Consumers, g.Last, ok, err), "5 4 2 4-7 true <nil>")
		if _, ok := s.Group("h"); ok {
			t.Error("there is a group h")
		}
		last, there, err := ReadLastID(t.Context(), c, key)
		redistest.Want(t, "last ID", fmt.Sprint(last, there, err), "5-7 true <nil>")
		members, err := ReadConsumers(t.Context(), c, key, "g")
		got := ""
		for _, m := range members {
			got += fmt.Sprint(m.Name, " ", m.Pending, " ", m.Idle < time.Minute, " ", m.Tells == (m.Inactive >= 0), " ")
		}
		redistest.Want(t, "consumers", fmt.Sprint(got, err), "a 3 true true b 1 true true <nil>")
		if _, err := ReadPending(t.Context(), c, key, "h", PendingRange{Count: 9}); !errors.Is(err, lua.ErrNoGroup) {
			t.Error(err)
		}
		for _, one := range []struct {
			of   PendingRange
			want string // [ID consumer deliveries] of each entry
		}{
			{PendingRange{Count: 9}, "[1-7 a 1][2-7 a 4][3-7 a 1][4-7 b 1]"}, {PendingRange{Count: 2}, "[1-7 a 1][2-7 a 4]"},
			{PendingRange{From: "(2-7", Count: 9}, "[3-7 a 1][4-7 b 1]"}, {PendingRange{From: "2-7", To: "3-7", Count: 9},
				"[2-7 a 4][3-7 a 1]"},
			{PendingRange{Count: 9, Consumer: "b"}, "[4-7 b 1]"},
		} {
			list, err := ReadPending(t.Context(), c, key, "g", one.of)
			got := ""
			for _, p := range list {
				got += fmt.Sprint("[", p.ID, " ", p.Consumer, " ", p.Deliveries, "]")
			}
			if err != nil || got != one.want {
				t.Errorf("%+v: %s %v, want %s", one.of, got, err, one.want)
			}
		}
		do("XCLAIM", key, "g", "", "0", "1-7", "TIME", "0", "RETRYCOUNT", "0", "JUSTID") // as XNACK with SILENT does
		list, err := ReadPending(t.Context(), c, key, "g", PendingRange{Count: 1})
		redistest.Want(t, "given back", fmt.Sprint(list[0].Consumer, list[0].Idle, list[0].GivenBack, err), "0s true <nil>")
	})
}
