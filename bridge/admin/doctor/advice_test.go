package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/sizes"
)

// Advise reports each defect that one reading shows in one line, with the next step. It leaves out findings that are
// only consequences of another defect. It reports nothing for a queue in order.
func TestAdviceNamesEachTroubleAndNothingElse(t *testing.T) {
	t.Parallel()
	alive := view.Heartbeat{Identity: lua.Identity{ID: "01K00000000000000000000000", Host: "h", PID: 1}, Age: time.Second}
	dead := alive
	dead.Age = time.Minute
	young := alive // a bridge that has just started
	young.Identity = lua.NewIdentity("h", 1, "")
	minute, hour := view.Millis(time.Minute), view.Millis(time.Hour)
	held := func(d time.Duration) *sizes.PendingEntry {
		return &sizes.PendingEntry{Consumer: "web-1", Held: view.Millis(d)}
	}
	ms := func(d time.Duration) *view.Millis { return (*view.Millis)(&d) }
	sound := func() State {
		return State{
			Bridges: []view.Heartbeat{alive, dead},
			Servers: []ServerState{{"s:1", view.Info{"redis_version": "8.0.0", "maxmemory_policy": "noeviction",
				"uptime_in_seconds": "100000", "aof_enabled": "0", "maxmemory": "100", "used_memory": "10", "role": "master"}}},
			Queues: []sizes.QueueSizes{{
				Queue: "emails", Partitions: 1, Sizes: sizes.Sizes{Overdue: 5, Behind: *ms(9 * time.Second),
					Stalled: *ms(9 * time.Second), Entries: 9, Dead: 3, NewestDead: &hour},
				Groups: []sizes.GroupSizes{{Name: "g", Consumers: 2, Lag: 7, Waiting: &minute, Unread: ms(50 * time.Second),
					Pending: 4, OldestIdle: ms(100 * time.Second), Visibility: 30 * time.Second}},
			}},
		}
	}
	// queue and group turn a change of the only queue, or of its only group, into a change of the State.
	queue := func(change func(*sizes.QueueSizes)) func(*State) { return func(s *State) { change(&s.Queues[0]) } }
	group := func(change func(*sizes.GroupSizes)) func(*State) {
		return queue(func(q *sizes.QueueSizes) { change(&q.Groups[0]) })
	}
	for _, c := range []struct {
		what   string
		change func(*State) // of the sound state
		codes  string       // of all findings, the worst first; "" = no finding
		says   string       // part of the first finding's line
	}{
		{"in order", func(*State) {}, "", ""},
		{"nothing known", func(s *State) { *s = State{NoBeats: true} }, "", ""},
		{"no bridge ever", func(s *State) { s.Bridges = nil }, "D201",
			"no bridge is alive: none ever ran under this prefix, or all were stopped. Next: duestream serve"},
		{"bridges died, and all is late", func(s *State) {
			s.Bridges, s.Queues[0].Stalled, s.Queues[0].Groups[0].OldestIdle = []view.Heartbeat{dead}, hour, &hour
		}, "D201", "no bridge is alive: the last heartbeats are too old, or too far ahead. Next: duestream serve"},
		{"evicts", func(s *State) { s.Servers[0].Info["maxmemory_policy"] = "allkeys-lru" }, "D102",
			"s:1: maxmemory-policy is allkeys-lru; 0 keys were evicted since its start. Next: redis-cli"},
		{"too old", func(s *State) { s.Servers[0].Info["redis_version"] = "6.2.1" }, "D101", "redis 6.2.1. Next: upgrade"},
		{"nearly full", func(s *State) { s.Servers[0].Info["used_memory"] = "95" }, "D104",
			"0.0 of 0.0 MiB are used (95 %). Next: duestream stats"},
		{"cannot persist", func(s *State) { s.Servers[0].Info["rdb_last_bgsave_status"] = "err" }, "D107",
			"rdb_last_bgsave_status is err"},
		{"overdue", queue(func(q *sizes.QueueSizes) { q.Behind, q.Stalled = minute, minute }), "D309",
			"emails: 5 messages are overdue, the oldest by 1m0s. Next: is a bridge running"},
		{"late, and being drained", queue(func(q *sizes.QueueSizes) {
			q.Behind, q.Stalled = hour, *ms(time.Second)
		}), "", ""},
		{"held and overdue", queue(func(q *sizes.QueueSizes) { q.Held, q.Behind, q.Stalled = true, minute, minute }), "D310",
			"emails: 5 messages are overdue, the oldest by 1m0s, and held. Next: duestream queue set emails held=false"},
		{"held", queue(func(q *sizes.QueueSizes) { q.Held, q.Behind = true, 0 }), "", ""},
		{"many partitions", func(s *State) {
			s.Queues[0].Stalled, s.Queues[0].Behind, s.Queues[0].Partitions = *ms(15 * time.Second), *ms(15 * time.Second), 1000
		}, "", ""},
		{"seconds", queue(func(q *sizes.QueueSizes) { q.LooksSeconds = 1 }), "D306",
			"emails: 1 due time between 10^9 and 10^11. Next: mend the producer"},
		{"no group", queue(func(q *sizes.QueueSizes) { q.Groups = nil }), "D401",
			"emails: 9 entries, and no group. Next: run a worker (duestream work emails"},
		{"groups that were not looked at", queue(func(q *sizes.QueueSizes) { q.Groups, q.MoreGroups = nil, 70 }), "", ""},
		{"dead letters grow", queue(func(q *sizes.QueueSizes) { q.NewestDead = &minute }), "D524",
			"emails: 3 dead letters, one came 1m0s ago. Next: duestream dead list emails"},
		{"many dead letters", queue(func(q *sizes.QueueSizes) { q.Dead = 5000 }), "D521", "emails: 5000 dead letters. Next"},
		{"many, and they grow", queue(func(q *sizes.QueueSizes) { q.Dead, q.NewestDead = 5000, &minute }), "D521",
			"emails: 5000 dead letters, one came 1m0s ago. Next"},
		{"nobody ever read", func(s *State) {
			s.Queues[0].Groups[0].Consumers, s.Targets = 0, map[Group]bool{{"emails", "g"}: false}
		}, "D402", "emails, group g: 7 entries wait, the oldest for 1m0s, and it has no consumers. " +
			"Next: run a worker, or end the group: redis-cli XGROUP DESTROY"},
		{"nobody ever read, and a target is possible", group(func(g *sizes.GroupSizes) { g.Consumers = 0 }), "D402",
			"and it has no consumers. Next: run a worker"},
		{"the target takes nothing", func(s *State) {
			s.Queues[0].Groups[0].Consumers, s.Targets = 0, map[Group]bool{{"emails", "g"}: true}
		}, "D415",
			"7 entries wait, the oldest for 1m0s, and nothing takes them to its target. Next: does the target answer"},
		{"the target has taken nothing lately", func(s *State) {
			g := &s.Queues[0].Groups[0]
			g.Waiting, g.Unread, s.Targets = &hour, ms(61*time.Second), map[Group]bool{{"emails", "g"}: true}
		}, "D415", "1h0m0s; its target has taken nothing for 1m1s. Next: does the target answer"},
		{"slow workers", func(s *State) {
			g := &s.Queues[0].Groups[0]
			g.Lag, g.Consumers, g.Waiting, g.Unread = 648, 1, ms(787*time.Second), ms(time.Second)
			s.Rates = map[Group]Rates{{"emails", "g"}: {Ready: 0.5, Done: 0.5}}
		}, "D416",
			"emails, group g: 648 entries wait, the oldest for 13m7s; 1 consumer does 0.5/s, and " +
				"0.5/s become ready: at this rate they never catch up. Next: start more workers"},
		{"workers that catch up late", func(s *State) {
			g := &s.Queues[0].Groups[0]
			g.Lag, g.Waiting, g.Unread = 3600, ms(2*time.Hour), ms(time.Second)
			s.Rates = map[Group]Rates{{"emails", "g"}: {Ready: 1, Done: 2}}
		}, "D416",
			"2 consumers do 2/s, and 1/s become ready: at this rate they catch up in 1h0m0s. Next: start more"},
		{"workers that catch up soon", func(s *State) {
			s.Queues[0].Groups[0].Lag = 500
			s.Rates = map[Group]Rates{{"emails", "g"}: {Ready: 1, Done: 2}}
		}, "", ""},
		{"slow workers, which are paused", func(s *State) {
			s.Queues[0].HeldWorkers, s.Queues[0].Groups[0].Lag = true, 648
			s.Rates = map[Group]Rates{{"emails", "g"}: {Ready: 0.5, Done: 0.5}}
		}, "", ""},
		{"a slow target", func(s *State) {
			s.Queues[0].Groups[0].Lag, s.Targets = 648, map[Group]bool{{"emails", "g"}: true}
			s.Rates = map[Group]Rates{{"emails", "g"}: {Ready: 3, Done: 2}}
		}, "D415",
			"the oldest for 1m0s; the target takes 2/s, and 3/s become ready: at this rate they never"},
		{"nobody reads yet", group(func(g *sizes.GroupSizes) {
			g.Consumers, g.Waiting, g.Unread = 0, ms(59e9), ms(59e9)
		}), "", ""},
		{"workers died", group(func(g *sizes.GroupSizes) { g.Waiting, g.Unread = &hour, ms(61*time.Second) }), "D403",
			"emails, group g: 7 entries wait, the oldest for 1h0m0s; 2 consumers, and none has read for " +
				"1m1s. Next: are its workers alive"},
		{"long handlers", group(func(g *sizes.GroupSizes) {
			g.Waiting, g.Unread, g.Visibility = ms(9*time.Minute), ms(9*time.Minute), time.Hour
		}), "", ""},
		{"too few workers", group(func(g *sizes.GroupSizes) {
			g.Waiting, g.Unread = ms(2*time.Hour), ms(time.Second)
		}), "D404", "2h0m0s. Next: give the group more workers"},
		{"not reclaimed", group(func(g *sizes.GroupSizes) { g.OldestIdle = ms(121 * time.Second) }), "D407",
			"emails, group g: 4 entries are pending, the oldest without a sign of life for 2m1s. Next: is a bridge running"},
		{"a handler hangs", group(func(g *sizes.GroupSizes) { g.HeldLongest = held(121 * time.Second) }), "D413",
			"emails, group g: 1 entry is held for long, the oldest by web-1 for 2m1s; " +
				"how long deliveries usually take is not known"},
		{"a handler may take long", group(func(g *sizes.GroupSizes) {
			g.HeldLongest, g.HandlerTimeout = held(59*time.Minute), time.Hour
		}), "", ""},
		{"a handler takes longer than usual", group(func(g *sizes.GroupSizes) {
			g.HeldLongest, g.Usual = held(61*time.Second), ms(200*time.Millisecond)
		}), "D413", "web-1 for 1m1s; deliveries usually end within 200ms. Next: duestream pending emails --group g"},
		{"handlers take long", group(func(g *sizes.GroupSizes) {
			g.HeldLongest, g.Usual = held(9*time.Minute), &minute
		}), "", ""},
		{"reclaimed soon", func(s *State) { s.Bridges[0], s.Queues[0].Groups[0].OldestIdle = young, &hour }, "", ""},
		{"a name of a terminal's making", group(func(g *sizes.GroupSizes) { g.Name = "\x1b[31m" }), "D411",
			`emails, group "\x1b[31m": a group called "\x1b[31m". Next`},
		{"the worst comes first", func(s *State) {
			s.Queues[0].NewestDead, s.Bridges, s.Queues[0].Groups[0].Consumers = &minute, nil, 0
		}, "D201 D402 D524", "no bridge"},
	} {
		s := sound()
		c.change(&s)
		var codes []string
		all := Advise(s)
		for _, f := range all {
			codes = append(codes, f.Code)
			if line := f.Line(); strings.ContainsAny(line, "\n\x1b") || f.Why == "" {
				t.Errorf("%s: %q", c.what, line)
			}
		}
		if got := strings.Join(codes, " "); got != c.codes {
			t.Errorf("%s: %q, want %q: %+v", c.what, got, c.codes, all)
		} else if strings.Contains(c.what, "target") && strings.Contains(all[0].Do, "DESTROY") {
			t.Errorf("%s: the advice may destroy a group with a target: %s", c.what, all[0].Do)
		} else if len(all) > 0 && !strings.Contains(all[0].Line(), c.says) {
			t.Errorf("%s: %q does not say %q", c.what, all[0].Line(), c.says)
		}
	}
}
