package crashpoint

import (
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// upkeep are the scripts that free memory.
func upkeep() []scenario {
	trim := func(s *scene) func(rueidis.Client) error {
		return func(c rueidis.Client) error {
			_, err := lua.Trim(s.ctx, c, s.k, "", 1000, 1<<20)
			return err
		}
	}
	return []scenario{
		{script: "trim", state: "a done head, and ended windows", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a", "b")
			s.send(item("done", "+0"), item("held", "+0"), item("behind", "+0"))
			a, b := s.hold("a", "c1"), s.hold("b", "c1")
			for _, id := range []string{"done", "behind"} {
				s.do("XACK", s.k.Stream, "a", a[id].Entry)
				s.do("XACK", s.k.Stream, "b", b[id].Entry)
			}
			s.do("ZADD", s.k.Seen, "1", "ended")
			s.owe("a", "held", delivered, delivered)
			s.owe("b", "held", delivered, delivered)
			return trim(s)
		}},
		{script: "trim", state: "done entries behind a held one", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a", "b")
			s.send(item("held", "+0"), item("done", "+0"), item("half", "+0"))
			a, b := s.hold("a", "c1"), s.hold("b", "c1")
			s.do("XACK", s.k.Stream, "a", a["done"].Entry, a["half"].Entry)
			s.do("XACK", s.k.Stream, "b", b["done"].Entry, b["held"].Entry)
			s.send(item("new", "+0"))
			s.owe("a", "held", delivered, delivered)
			s.owe("b", "half", delivered, delivered)
			s.owe("a", "new", delivered, delivered)
			s.owe("b", "new", delivered, delivered)
			return trim(s)
		}},
		{script: "trim", state: "leases when nobody holds anything", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("new", "+0"))
			s.do("ZADD", s.k.Leases, "5", leaseOf("1-1"))
			s.owe("a", "new", delivered, delivered)
			return trim(s)
		}},
		{script: "trim", state: "leases of held and of settled entries", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("held", "+0"))
			held := s.hold("a", "c1")["held"].Entry
			for _, entry := range []string{held, "1-1"} {
				s.do("ZADD", s.k.Leases, "5", leaseOf(entry))
			}
			s.owe("a", "held", delivered, delivered)
			return trim(s)
		}},
		{script: "trim", state: "progress of held and of settled entries",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.send(item("held", "+0"))
				held := s.hold("a", "c1")["held"]
				_, err := lua.SaveProgress(s.ctx, s.c, s.k, "a", "c1", held, []byte("page 7"))
				s.must(err)
				fields := []string{"HSET", s.k.Progress}
				for i := range 600 { // more than one call looks at
					fields = append(fields, fmt.Sprintf("1-%d\x1fa", i), "m\x1fpage 7")
				}
				s.do(fields...)
				s.owe("a", "held", delivered, delivered)
				return trim(s)
			}},
		{script: "trim", state: "the end of a walk over progress", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("new", "+0"))
			s.do("HSET", s.k.Progress, "", "0", "1-1\x1fa", "m\x1fpage 7")
			s.owe("a", "new", delivered, delivered)
			return trim(s)
		}},
		{script: "orphans", state: "confirmed, taken up again, and new", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			for _, id := range []string{"orphan", "newer", "taken"} {
				s.do("HSET", s.k.Payload, id, body(id))
			}
			s.send(item("taken", hour), item("other", hour))
			s.owe("a", "taken", delivered, delivered)
			s.owe("a", "other", delivered, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.SweepOrphans(s.ctx, c, s.k.Due, s.k.Payload, "", 100, []lua.Watched{
					{Orphan: lua.Orphan{Field: "orphan", Length: int64(len(body("orphan")))}, Ripe: true},
					{Orphan: lua.Orphan{Field: "taken", Length: -1}, Ripe: true}})
				return err
			}
		}, after: func(s *scene) {
			if s.number("HEXISTS", s.k.Payload, "orphan") == 1 || s.number("HEXISTS", s.k.Payload, "newer") == 0 {
				s.Error("not exactly the confirmed field is gone")
			}
		}},
		{script: "find_orphans", state: "of a hash", prepare: func(s *scene) func(rueidis.Client) error {
			return findOrphans(s, func(c rueidis.Client) ([]string, error) {
				found, _, _, err := lua.ScanOrphans(s.ctx, c, s.k.Due, s.k.Payload, "0", 100)
				return found, err
			})
		}},
		{script: "find_orphans", state: "by name", prepare: func(s *scene) func(rueidis.Client) error {
			return findOrphans(s, func(c rueidis.Client) ([]string, error) {
				return lua.StillOrphans(s.ctx, c, s.k.Due, s.k.Payload, []string{"orphan", "other"})
			})
		}},
		{script: "versions", state: "scheduled, and not", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("there", hour))
			s.owe("a", "there", delivered, delivered)
			return func(c rueidis.Client) error {
				versions, err := lua.Versions(s.ctx, c, s.k, []string{"there", "unknown"})
				if err == nil && (versions[0] == "" || versions[1] != "") {
					s.Errorf("versions are %q", versions)
				}
				return err
			}
		}},
		{script: "find_entries", state: "one of the message, one of another",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.send(item("wanted", "+0"), item("other", "+0"))
				s.owe("a", "wanted", delivered, delivered)
				s.owe("a", "other", delivered, delivered)
				return func(c rueidis.Client) error {
					next, found, err := lua.FindEntries(s.ctx, c, s.k.Stream, "wanted", lua.EntrySearch{Limit: 10})
					if err == nil && (len(found) != 1 || next.Looked != 2 || next.More) {
						s.Errorf("found are %q, %+v", found, next)
					}
					return err
				}
			}},
		{script: "search_due", state: "one with the text, one without",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.send(item("wanted", hour), item("other", hour))
				return func(c rueidis.Client) error {
					f := lua.SearchFilter{States: []string{lua.SearchScheduled}, Text: body("wanted")}
					next, found, err := lua.SearchDue(s.ctx, c, s.k, f, lua.DueSearch{Limit: 10})
					if err == nil && (len(found) != 1 || found[0].Member != "wanted" || !next.Done) {
						s.Errorf("found are %+v, %+v", found, next)
					}
					return err
				}
			}},
		{script: "search_due", state: "one with the text, found by its payload",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.send(item("wanted", hour), item("other", hour))
				return func(c rueidis.Client) error {
					f := lua.SearchFilter{States: []string{lua.SearchScheduled}, Text: body("wanted")}
					next, found, err := lua.SearchDue(s.ctx, c, s.k, f, lua.DueSearch{Scan: lua.ScanPayload, Limit: 10})
					if err == nil && (len(found) != 1 || found[0].Member != "wanted" || !next.Done) {
						s.Errorf("found are %+v, %+v", found, next)
					}
					return err
				}
			}},
		{script: "search_due", state: "a member that is given, and one with a header, found by its meta",
			prepare: func(s *scene) func(rueidis.Client) error {
				given, tagged := item("given", hour), item("tagged", hour)
				given.Meta, tagged.Meta = `{"h:tier":"gold"}`, `{"h:tier":"gold"}`
				s.send(given, tagged, item("other", hour))
				return func(c rueidis.Client) error {
					f := lua.SearchFilter{States: []string{lua.SearchScheduled}, Headers: map[string]string{"tier": "gold"}}
					step := lua.DueSearch{Scan: lua.ScanMeta, Limit: 10, Left: []string{"given"}}
					members := map[string]bool{}
					for !step.Done {
						next, found, err := lua.SearchDue(s.ctx, c, s.k, f, step)
						if err != nil {
							return err
						}
						for _, one := range found {
							members[one.Member] = true
						}
						step = next
					}
					if len(members) != 2 || !members["given"] || !members["tagged"] {
						s.Errorf("found are %v", members)
					}
					return nil
				}
			}},
		{script: "search_entries", state: "one held by a group",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.send(item("held", "+0"))
				s.owe("a", "held", delivered, delivered)
				s.hold("a", "c")
				return func(c rueidis.Client) error {
					f := lua.SearchFilter{States: []string{lua.SearchPending}}
					_, found, err := lua.SearchEntries(s.ctx, c, s.k.Stream, f, lua.StreamSearch{Limit: 10})
					if err == nil && (len(found) != 1 || len(found[0].Held) != 1) {
						s.Errorf("found are %+v", found)
					}
					return err
				}
			}},
		{script: "search_entries", state: "one with the text, one without",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.send(item("wanted", "+0"), item("other", "+0"))
				s.owe("a", "wanted", delivered, delivered)
				s.owe("a", "other", delivered, delivered)
				return func(c rueidis.Client) error {
					f := lua.SearchFilter{States: []string{lua.SearchReady}, Text: body("wanted")}
					next, found, err := lua.SearchEntries(s.ctx, c, s.k.Stream, f, lua.StreamSearch{Limit: 10})
					if err == nil && (len(found) != 1 || next.Looked != 2 || len(found[0].Unread) != 1) {
						s.Errorf("found are %+v, %+v", found, next)
					}
					return err
				}
			}},
		{script: "withdraw", state: "waiting for its key", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("other", hour))
			s.owe("a", "other", delivered, delivered)
			s.do("HSET", s.k.Payload, "moved", body("moved"))
			s.do("HSET", s.k.Meta, "moved", `{"h:of":"moved","key":"k"}`)
			s.do("ZADD", s.k.Due, "4001900000000000", "moved")
			s.do("ZADD", s.k.Turns, "0", lua.Place("k", 1.9e12, "moved"))
			s.owe("a", "moved", delivered|gone, gone)
			page, err := lua.Export(s.ctx, s.c, s.k, lua.Exported{Score: "4000000000000000"}, 10, 1<<20)
			s.must(err)
			return func(c rueidis.Client) error {
				_, err := lua.Withdraw(s.ctx, c, s.k, page[0])
				return err
			}
		}},
		{script: "find_lost", state: "one held, one held and deleted", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			const lost = "1-1"
			s.do("XADD", s.k.Stream, lost, "id", "lost")
			s.send(item("held", "+0"))
			held := s.hold("a", "c1")["held"].Entry
			s.do("XDEL", s.k.Stream, lost)
			s.owe("a", "lost", dead, dead)
			s.owe("a", "held", delivered, delivered)
			return func(c rueidis.Client) error {
				found, err := lua.LostEntries(s.ctx, c, s.k.Stream, "a", []string{held, lost})
				if err == nil && !slices.Equal(found, []string{lost}) {
					s.Errorf("lost are %q", found)
				}
				return err
			}
		}},
		{script: "set_target", state: "in the place of another", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("later", hour))
			s.owe("a", "later", delivered, delivered)
			s.do("HSET", s.k.Push, "a", "before")
			return func(c rueidis.Client) error {
				_, err := lua.SetTarget(s.ctx, c, s.k, "a", "before", "after", 9)
				return err
			}
		}},
		{script: "set_target", state: "a new one", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("later", hour))
			s.owe("a", "later", delivered, delivered)
			s.do("HSET", s.k.Push, "another", "there")
			return func(c rueidis.Client) error {
				_, err := lua.SetTarget(s.ctx, c, s.k, "a", "", "new", 9)
				return err
			}
		}},
		{script: "delete_empty", state: "settings and a group", prepare: func(s *scene) func(rueidis.Client) error {
			s.do("HSET", s.k.Policy, "max_attempts", "7")
			s.do("XGROUP", "CREATE", s.k.Stream, "left", "0", "MKSTREAM")
			return func(c rueidis.Client) error {
				_, err := lua.DeleteEmpty(s.ctx, c, s.k, true)
				return err
			}
		}},
		{script: "delete_empty", state: "an empty one, without hold", prepare: func(s *scene) func(rueidis.Client) error {
			s.do("HSET", s.k.Policy, "held", "1")
			return func(c rueidis.Client) error {
				_, err := lua.DeleteEmpty(s.ctx, c, s.k, false)
				return err
			}
		}},
		{script: "delete_empty", state: "a message", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("later", hour))
			s.owe("a", "later", delivered, delivered)
			return func(c rueidis.Client) error {
				deleted, err := lua.DeleteEmpty(s.ctx, c, s.k, true)
				if deleted {
					s.Error("deleted with a message")
				}
				return err
			}
		}},
		{script: "drop_groups", state: "two that nothing is owed", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			for _, left := range []string{"left", "behind"} {
				s.do("XGROUP", "CREATE", s.k.Stream, left, "0")
			}
			s.send(item("later", hour))
			s.owe("a", "later", delivered, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.DropGroups(s.ctx, c, s.k, []string{"left", "behind"})
				return err
			}
		}, mend: func(s *scene) {
			for _, left := range []string{"left", "behind"} {
				s.do("XGROUP", "DESTROY", s.k.Stream, left)
			}
		}},
		{script: "drop_consumer", state: "one idle, one that holds", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("held", "+0"))
			s.hold("a", "busy")
			for _, name := range []string{"idle1", "idle2"} {
				s.do("XGROUP", "CREATECONSUMER", s.k.Stream, "a", name)
			}
			s.owe("a", "held", delivered, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.DropConsumers(s.ctx, c, s.k, "a", []string{"idle1", "busy", "idle2"})
				return err
			}
		}},
	}
}

// findOrphans prepares one payload with a member, and one without.
func findOrphans(s *scene, find func(rueidis.Client) ([]string, error)) func(rueidis.Client) error {
	s.group("a")
	s.do("HSET", s.k.Payload, "orphan", body("orphan"))
	s.send(item("other", hour))
	s.owe("a", "other", delivered, delivered)
	return func(c rueidis.Client) error {
		found, err := find(c)
		if err == nil && !slices.Equal(found, []string{"orphan"}) {
			s.Errorf("orphans are %q", found)
		}
		return err
	}
}

// housekeeping are the scripts that do not handle messages.
func housekeeping() []scenario {
	others := func(s *scene) {
		s.group("a")
		s.send(item("other", hour))
		s.owe("a", "other", delivered, delivered)
	}
	const day = 24 * time.Hour
	settings := []lua.FieldValue{{Field: "max_attempts", Value: "7"}, {Field: "retry_min_ms"}}
	return []scenario{
		{script: "heartbeat", state: "beside a live and a dead bridge", prepare: func(s *scene) func(rueidis.Client) error {
			_, _, err := lua.Heartbeat(s.ctx, s.c, s.g, "other", time.Minute)
			s.must(err)
			s.do("ZADD", s.g.Bridges, "1", "dead", "99999999999999", "of the future")
			return func(c rueidis.Client) error {
				_, live, err := lua.Heartbeat(s.ctx, c, s.g, "own", time.Minute)
				if slices.Sort(live); err == nil && !slices.Equal(live, []string{"other", "own"}) {
					s.Errorf("live bridges are %q", live)
				}
				return err
			}
		}},
		{script: "take", state: "one taken", prepare: func(s *scene) func(rueidis.Client) error {
			others(s)
			bucket := s.g.Bucket("d")
			_, err := lua.Take(s.ctx, s.c, bucket, time.Hour, 5, 1)
			s.must(err)
			return func(c rueidis.Client) error {
				_, err := lua.Take(s.ctx, c, bucket, time.Hour, 5, 1)
				return err
			}
		}, after: func(s *scene) {
			wait, err := lua.Take(s.ctx, s.c, s.g.Bucket("d"), time.Hour, 5, 5)
			s.must(err)
			if hours := wait.Round(time.Hour) / time.Hour; hours < 1 || hours > 4 {
				s.Error("taken out of the bucket: ", int(hours))
			}
		}},
		{script: "claim", state: "given back before", prepare: func(s *scene) func(rueidis.Client) error {
			others(s)
			key := s.k.Once("a", "other")
			first, _, err := lua.Claim(s.ctx, s.c, key, "first", time.Hour, day)
			s.must(err)
			_, err = lua.EndClaim(s.ctx, s.c, key, "first", first, false, day)
			s.must(err)
			return func(c rueidis.Client) error {
				token, _, err := lua.Claim(s.ctx, c, key, "second", time.Hour, day)
				if err == nil && token <= first {
					s.Errorf("token %d after %d", token, first)
				}
				return err
			}
		}, after: func(s *scene) { // the second attempt holds the claim
			_, held, err := lua.Claim(s.ctx, s.c, s.k.Once("a", "other"), "third", time.Hour, day)
			s.must(err)
			if held <= 0 {
				s.Error("the claim does not hold")
			}
		}},
		{script: "claim", state: "the effect happened", prepare: func(s *scene) func(rueidis.Client) error {
			others(s)
			key := s.k.Once("a", "other")
			token, _, err := lua.Claim(s.ctx, s.c, key, "first", time.Hour, day)
			s.must(err)
			return func(c rueidis.Client) error {
				isLast, err := lua.EndClaim(s.ctx, c, key, "first", token, true, day)
				if err == nil && !isLast {
					s.Error("the holder is refused")
				}
				return err
			}
		}, after: func(s *scene) {
			token, held, err := lua.Claim(s.ctx, s.c, s.k.Once("a", "other"), "second", time.Hour, day)
			s.must(err)
			if token != 0 || held != 0 {
				s.Error("the effect is not recorded")
			}
		}},
		{script: "register", state: "one known, two new", prepare: func(s *scene) func(rueidis.Client) error {
			others(s)
			s.do("HSET", s.g.Queues, "known", "1,4")
			return func(c rueidis.Client) error {
				_, err := lua.Register(s.ctx, c, s.g, []string{"q", "known", "new"})
				return err
			}
		}, after: func(s *scene) {
			if s.number("HLEN", s.g.Queues) != 3 || s.number("HSTRLEN", s.g.Queues, "known") != 3 {
				s.Error("the registry is not what it must be")
			}
		}},
		{script: "register", state: "two deleted ones grow", prepare: func(s *scene) func(rueidis.Client) error {
			others(s)
			s.do("HSET", s.g.Queues, "/deleted/q", "4,8", "/deleted/another", "8")
			return func(c rueidis.Client) error {
				_, err := lua.RegisterCounts(s.ctx, c, s.g, map[string]lua.Counts{"q": {1, 8}, "another": {1, 8}})
				return err
			}
		}, after: func(s *scene) {
			if s.number("HSTRLEN", s.g.Queues, "q") != 3 || s.number("HSTRLEN", s.g.Queues, "another") != 3 {
				s.Error("the registry is not what it must be")
			}
		}},
		{script: "configure", state: "one set, one removed", prepare: func(s *scene) func(rueidis.Client) error {
			others(s)
			s.do("HSET", s.k.Policy, "max_attempts", "3", "retry_min_ms", "1", "held", "0")
			return func(c rueidis.Client) error { return lua.Configure(s.ctx, c, s.k.Policy, s.k.Wake, settings) }
		}, after: func(s *scene) {
			if s.number("HGET", s.k.Policy, "max_attempts") != 7 || s.number("HLEN", s.k.Policy) != 2 {
				s.Error("the policy is not what it must be")
			}
		}},
		{script: "set_policy", state: "expected values", prepare: func(s *scene) func(rueidis.Client) error {
			others(s)
			s.do("HSET", s.k.Policy, "max_attempts", "3", "retry_min_ms", "1", "held", "0")
			return func(c rueidis.Client) error {
				_, err := lua.SetPolicy(s.ctx, c, s.k.As("token ana"),
					[]lua.FieldValue{{Field: "max_attempts", Value: "3"}}, settings)
				return err
			}
		}, after: func(s *scene) {
			if s.number("HGET", s.k.Policy, "max_attempts") != 7 || s.number("HLEN", s.k.Policy) != 2 {
				s.Error("the policy is not what it must be")
			}
		}},
		{script: "signal", state: "after a setting", prepare: func(s *scene) func(rueidis.Client) error {
			others(s)
			s.do("HSET", s.k.Policy, "max_attempts", "7")
			return func(c rueidis.Client) error { return lua.Configure(s.ctx, c, s.k.Policy, s.k.Wake, settings[:1]) }
		}, after: func(s *scene) {
			if s.number("HGET", s.k.Policy, "max_attempts") != 7 { // the token may be lost: the queue has its turn
				s.Error("the policy is not what it must be")
			}
		}},
		{script: "ensure_group", state: "no stream yet", prepare: func(s *scene) func(rueidis.Client) error {
			s.send(item("later", hour))
			s.owe("a", "later", gone, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.EnsureGroup(s.ctx, c, s.k, "a")
				if err == nil {
					s.groups = []string{"a"}
				}
				return err
			}
		}},
		{script: "glance", state: "idle, busy, and of the wrong type",
			prepare: func(s *scene) func(rueidis.Client) error {
				others(s)
				prefix := s.g.Queues[:len(s.g.Queues)-len(":queues")]
				odd, busy := lua.NewKeys(prefix, "odd"), lua.NewKeys(prefix, "busy")
				s.do("SET", odd.Due, "a string")
				s.do("HSET", busy.Policy, "held", "1")
				s.do("ZADD", busy.Due, "1", "x")
				s.do("HSET", busy.Meta, "x", "{}")
				s.do("XADD", busy.Dead, "*", "id", "x")
				s.do("XADD", busy.Stream, "1-1", "id", "x")
				s.do("XGROUP", "CREATE", busy.Stream, "g", "0")
				s.do("XREADGROUP", "GROUP", "g", "c", "STREAMS", busy.Stream, ">")
				return func(c rueidis.Client) error {
					parts := []lua.GlanceAt{{Keys: odd}, {Keys: busy, Newest: 1}, {Keys: s.k}}
					glances, err := lua.Glance(s.ctx, c, parts, 10, time.Hour)
					for i, one := range glances {
						if i > 0 && one.Err != nil {
							err = one.Err // an error of this partition only: the others were looked at
						}
					}
					return err
				}
			}},
		{script: "survey", state: "overdue, busy, idle, and of the wrong type",
			prepare: func(s *scene) func(rueidis.Client) error {
				others(s)
				s.send(item("ready", "+0"))
				s.do("ZADD", s.k.Due, "XX", "1", "other")
				s.owe("a", "ready", delivered, delivered)
				prefix := s.g.Queues[:len(s.g.Queues)-len(":queues")]
				held, odd, idle := lua.NewKeys(prefix, "held"), lua.NewKeys(prefix, "odd"), lua.NewKeys(prefix, "idle")
				s.do("SET", odd.Due, "a string")
				s.do("XADD", held.Stream, "1-1", "id", "x")
				s.do("XGROUP", "CREATE", held.Stream, "g", "0")
				s.do("XREADGROUP", "GROUP", "g", "c", "STREAMS", held.Stream, ">")
				s.do("XDEL", held.Stream, "1-1")
				return func(c rueidis.Client) error {
					looks, err := lua.Survey(s.ctx, c, []lua.Keys{s.k, odd, held, idle}, true)
					for i, look := range looks {
						if i != 1 && look.Err != nil {
							err = look.Err // an error of this queue only: the others were surveyed
						}
					}
					return err
				}
			}},
	}
}
