package crashpoint

import (
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// transfers are the scripts that export a queue to a file, and import it.
func transfers() []scenario {
	// behind prepares three messages of one due time, and exports those behind a member: want.
	behind := func(member string, want ...string) func(s *scene) func(rueidis.Client) error {
		return func(s *scene) func(rueidis.Client) error {
			s.group("a")
			for _, id := range []string{"m1", "m2", "m3"} {
				s.send(item(id, year2100))
				s.owe("a", id, delivered, delivered)
			}
			return func(c rueidis.Client) error {
				page, err := lua.Export(s.ctx, c, s.k, lua.Exported{Member: member, Score: year2100}, 10, 1<<20)
				if err != nil {
					return err
				}
				var got []string
				for _, e := range page {
					got = append(got, e.Member)
					if string(e.Payload) != body(e.Member) {
						err = fmt.Errorf("%+v", e)
					}
				}
				if !slices.Equal(got, want) {
					err = fmt.Errorf("behind %s: %q", member, got)
				}
				return err
			}
		}
	}
	return []scenario{
		{script: "export", state: "behind a member", prepare: behind("m2", "m3")},
		{script: "export", state: "behind one that is gone", prepare: behind("m15", "m2", "m3")},
		{script: "restore", state: "known, remembered, new, and older than the last",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				letter := func(id, entry string) lua.Restore {
					return lua.Restore{Name: "from/" + entry, Entry: entry, Fields: []lua.FieldValue{
						{Field: "id", Value: id}, {Field: "payload", Value: body(id)}, {Field: "group", Value: "a"},
						{Field: "reason", Value: "dead_letter"}}}
				}
				_, err := lua.RestoreDead(s.ctx, s.c, s.k, time.Hour, []lua.Restore{letter("known", "1000-0")})
				s.must(err)
				s.do("DEL", s.k.Seen)
				_, err = lua.RestoreDead(s.ctx, s.c, s.k, time.Hour, []lua.Restore{letter("remembered", "2000-0")})
				s.must(err)
				s.owe("a", "known", dead, dead)
				s.owe("a", "remembered", dead, dead)
				s.owe("a", "new", gone|dead, dead)
				s.owe("a", "older", gone|dead, dead)
				return func(c rueidis.Client) error {
					_, err := lua.RestoreDead(s.ctx, c, s.k, time.Hour,
						[]lua.Restore{letter("known", "1000-0"), letter("remembered", "2000-0"), letter("new", "3000-0"),
							letter("older", "1500-0")})
					return err
				}
			}},
	}
}
