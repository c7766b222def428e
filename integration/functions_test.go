package integration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// fcall calls a function on the stack's queue, with the keys that admin.Functions lists.
func (s *stack) fcall(name string, args ...string) ([]int64, error) {
	k := s.keys()
	named := map[string]string{"due": k.Due, "payload": k.Payload, "meta": k.Meta, "stream": k.Stream, "dead": k.Dead,
		"wake": k.Wake, "policy": k.Policy, "seen": k.Seen}
	for _, f := range admin.Functions() {
		if f.Name == "duestream_"+name {
			var keys []string
			for _, key := range f.Keys {
				keys = append(keys, named[key])
			}
			return s.do(func(c rueidis.Client) rueidis.Completed {
				return c.B().Fcall().Function(f.Name).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
			}).AsIntSlice()
		}
	}
	return nil, errors.New("no function " + name)
}

func (s *stack) loadFunctions() []admin.Library {
	s.t.Helper()
	rows, err := redistest.Must(admin.New(s.redis, "")).LoadFunctions(s.t.Context(), "", false)
	if err != nil {
		s.t.Fatal(err)
	}
	return rows
}

// fcallProducer registers the queue, schedules n messages of each kind, and repeats every call as after a lost reply.
func (s *stack) fcallProducer(name string, n int, kinds ...string) {
	s.t.Helper()
	g := lua.NewGlobals(s.prefix)
	if err := s.do(func(c rueidis.Client) rueidis.Completed {
		return c.B().Fcall().Function("duestream_register").Numkeys(1).Key(g.Queues).Arg(s.queue, "1").Build()
	}).Error(); err != nil {
		s.t.Fatal(err)
	}
	s.do(func(c rueidis.Client) rueidis.Completed {
		return c.B().Xadd().Key(g.Wake).Maxlen().Threshold("1").Id("*").FieldValue().FieldValue("queues", "1").Build()
	})
	for _, kind := range kinds {
		args := []string{name + kind, "", "60000"}
		for i := range n {
			args = append(args, fmt.Sprintf("%s-%s%d", kind, name, i), fmt.Sprint("+", 20*i), "payload", `{"h:kind":"`+kind+`"}`,
				"0")
		}
		first, err := s.fcall("schedule", args...)
		if err != nil {
			s.t.Fatal(err)
		}
		again, err := s.fcall("schedule", args...)
		if err != nil || len(again) != 2*n || again[0] != int64(lua.Repeated) {
			s.t.Fatalf("repeated: %v %v", again, err)
		}
		for i := range n {
			if first[2*i] != int64(lua.Scheduled) && first[2*i] != int64(lua.Ready) {
				s.t.Fatalf("verdicts: %v", first)
			}
			s.ledger.Sent(args[3+5*i], first[2*i+1])
		}
	}
}

// fcallWorker works like a client in another language: it reads by XREADGROUP, and does everything else by functions.
// Message IDs have the form kind-name. The kind says how the worker settles the first delivery ("retry", "dead" or
// "release"). All other kinds, and all retries, are extended and acknowledged.
func (s *stack) fcallWorker(group string) {
	k := s.keys()
	handle := func(id string, fields map[string]string) error {
		due, _ := strconv.ParseInt(fields["due_ms"], 10, 64)
		s.ledger.Delivered(group, fields["id"], lua.EntryTime(id).UnixMilli(), due)
		kind, _, _ := strings.Cut(fields["id"], "-")
		if fields["for"] != "" { // a retry
			kind = "done"
		}
		want := int64(1)
		var got []int64
		var err error
		switch kind {
		case "retry":
			got, err = s.fcall("retry", group, "5", "50", id, fields["id"], "retry", "30", "max_attempts", "asked to fail")
		case "dead":
			want = 2
			got, err = s.fcall("dead_letter", group, id, fields["id"], "asked to die")
		case "release":
			want = 3
			got, err = s.fcall("release", group, id, fields["id"])
		default:
			if got, err = s.fcall("extend", group, "c", id, fields["id"]); err == nil && got[0] == 1 {
				got, err = s.fcall("ack", group, id, fields["id"])
			}
		}
		if err == nil && got[0] != want && got[0] != 0 { // 0: the entry was reclaimed meanwhile, and is delivered again
			return fmt.Errorf("%s of %s: %v", kind, fields["id"], got)
		}
		return err
	}
	s.run("worker", func(ctx context.Context) error {
		for ctx.Err() == nil {
			c := s.redis.Blocking
			deadline, cancel := context.WithTimeout(ctx, 5*time.Second)
			read, err := c.Do(deadline, c.B().Xreadgroup().Group(group,
				"c").Count(10).Block(500).Streams().Key(k.Stream).Id(">").Build()).AsXRead()
			cancel()
			if err != nil {
				continue // nothing to read, or the server is down
			}
			for _, e := range read[k.Stream] {
				if err := handle(e.ID, e.FieldValues); err != nil && !lua.Temporary(lua.Classify("FCALL", err)) {
					return err
				}
			}
		}
		return nil
	})
}

// redriveAll redrives n dead letters by the function.
func (s *stack) redriveAll(n int) {
	s.t.Helper()
	for redriven := 0; redriven < n; {
		redistest.Eventually(s.t, 20*time.Second, func() (bool, string) {
			return s.number("XLEN", s.keys().Dead) > 0, fmt.Sprintf("%d of %d dead letters", redriven, n)
		})
		letters, err := s.raw("XRANGE", s.keys().Dead, "-", "+").AsXRange()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, l := range letters {
			if l.FieldValues["reason"] != lua.ReasonDeadLetter || l.FieldValues["error"] != "asked to die" {
				s.t.Errorf("%v", l)
			}
			if got, err := s.fcall("redrive", l.ID, "+0", "", "", "", ""); err != nil || got[0] != 1 {
				s.t.Fatal(got, err)
			}
			redriven++
		}
	}
}

// Clients that use only functions and XREADGROUP, beside a bridge, lose nothing (guarantee G1). Every message is
// delivered, retried, dead-lettered, redriven and released as they request, and nothing is left.
func TestG1ClientsOfFunctionsLoseNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		s := newStack(t, server)
		s.loadFunctions()
		s.groups("g")
		s.bridge(quick())
		s.fcallWorker("g")
		s.fcallProducer("a", 25, "ok", "retry", "dead", "release")
		s.redriveAll(25)
		if r := s.awaitSettled(30*time.Second, "g"); r.Sent != 100 {
			t.Errorf("%+v", r)
		}
	})
}

// Clients that use only functions lose nothing on a cluster (guarantee G1). Loading gives the library to every master,
// and replication gives it to the replicas, so functions work after a failover without another load. If one master has
// a foreign library of the same name, loading changes no server.
func TestG1FunctionsOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 1, redistest.FailsOver...)
	f := newFleet(t, c, 6)
	did := func(want ...string) {
		t.Helper()
		rows := f.loadFunctions()
		var got []string
		for _, l := range rows {
			got = append(got, l.Did)
		}
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("load did %q, want %q", got, want)
		}
	}
	did("loaded", "loaded", "loaded")
	did("", "", "")
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		// Each try uses a new client, because a client learns which replicas a cluster has when it connects.
		r, err := bridge.Dial(t.Context(), f.server.URL())
		if err != nil {
			return false, err.Error()
		}
		defer r.Close()
		rows, current := redistest.Must(admin.New(r, "")).ShowFunctions(t.Context(), ""), 0
		for _, l := range rows {
			if l.Err == nil && l.State == admin.LibraryCurrent {
				current++
			}
		}
		return current == 6 && len(rows) == 6, fmt.Sprintf("%+v", rows)
	})

	// One master has a foreign library: no server is changed.
	masters := c.Servers[:3]
	masters[0].Do(t, "FUNCTION", "FLUSH")
	masters[1].Do(t, "FUNCTION", "LOAD", "REPLACE",
		"#!lua name=duestream\nredis.register_function('mine', function() return 1 end)\n")
	op := redistest.Must(admin.New(f.redis, ""))
	if rows, err := op.LoadFunctions(t.Context(), "", false); !errors.Is(err, admin.ErrForeignFunctions) ||
		!strings.Contains(err.Error(), masters[1].Addr()) {
		t.Errorf("%v %+v", err, rows)
	}
	for _, l := range op.ShowFunctions(t.Context(), "") {
		if l.Server == masters[0].Addr() && l.State != admin.LibraryAbsent {
			t.Errorf("it was loaded all the same: %+v", l)
		}
	}
	masters[1].Do(t, "FUNCTION", "FLUSH")
	f.loadFunctions()
	did("", "", "")
	for _, master := range masters {
		c.InSync(master)
	}

	f.bridge(quick())
	produce := func(name string) {
		for _, s := range f.queues {
			s.fcallProducer(name, 10, "ok", "retry", "release")
		}
	}
	for _, s := range f.queues {
		s.fcallWorker("g")
	}
	produce("before")
	f.awaitSettled(40 * time.Second)
	slot := c.Slot(f.queues[0].keys().Due)
	master := c.Owner(slot)
	c.InSync(master)
	master.Kill()
	c.Promoted(slot, master)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { // until the client follows
		_, err := f.queues[0].fcall("cancel", "nothing")
		return err == nil, fmt.Sprint(err)
	})
	produce("after")
	t.Logf("%v", f.awaitSettled(40*time.Second))
}

// The server stores the library with the data, in an append-only file and in a snapshot, and FLUSHALL does not delete
// it.
func TestFunctionsSurviveARestart(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"AOF": {"--appendonly", "yes"}, "RDB": {"--save", "3600 1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, redistest.Own(t, args...))
			s.loadFunctions()
			s.raw("FLUSHALL")
			if name == "RDB" {
				if err := s.raw("SAVE").Error(); err != nil {
					t.Fatal(err)
				}
			}
			s.server.Kill()
			s.server.Start()
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				rows := redistest.Must(admin.New(s.redis, "")).ShowFunctions(t.Context(), "")
				return len(rows) == 1 && rows[0].Err == nil && rows[0].State == admin.LibraryCurrent, fmt.Sprintf("%+v", rows)
			})
			if got, err := s.fcall("cancel", "nothing"); err != nil || got[0] != 0 {
				t.Error(got, err)
			}
		})
	}
}
