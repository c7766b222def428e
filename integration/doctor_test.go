package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/doctor"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// soundServer are the arguments of a server that the doctor has nothing to say of.
var soundServer = []string{"--appendonly", "yes", "--maxmemory", "1gb"}

// bustle is a system at work: producers, two groups, of which one fails, is slow and abandons, and bridges that come and go.
type bustle struct {
	*stack
	plain *redistest.Ledger // of the group of plain commands, nil when there is none
	sent  atomic.Int64
	stop  func()
}

// newBustle starts the work. The group of plain commands reads partition 0, so it is for queues that have no other.
func newBustle(s *stack, partitions int, plain bool) *bustle {
	l := &bustle{stack: s}
	s.groups("ours")
	if plain {
		s.groups("plain")
		l.plain = &redistest.Ledger{}
		s.plainReader("plain", l.plain)
	}
	if partitions > 1 {
		if _, err := bridge.SetPartitions(s.t.Context(), s.redis, s.prefix, s.queue, partitions, nil); err != nil {
			s.t.Fatal(err)
		}
	}
	s.bridge(quick())
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	l.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	s.t.Cleanup(l.stop)
	again := func(every time.Duration, do func(n int)) {
		all.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					do(n)
				}
			}
		})
	}
	var coming, going func()
	again(1500*time.Millisecond, func(int) { // one bridge stays, one is always new
		coming = s.start(func() (func(context.Context) error, error) {
			b, err := bridge.NewBridge(bridge.Config{Redis: s.redis, Prefix: s.prefix, Defaults: quick(), Logger: s.log, AnyServer: true})
			return b.Run, err
		})
		if going != nil {
			going()
		}
		going = coming
	})
	var attempts sync.Map
	handle := func(ctx context.Context, m *bridge.Message) error {
		n, _ := attempts.LoadOrStore(m.ID, new(atomic.Int64))
		switch k := n.(*atomic.Int64).Add(1); {
		case strings.HasSuffix(m.ID, "3") && k == 1:
			return errors.New("once more")
		case strings.HasSuffix(m.ID, "77"):
			return bridge.DeadLetter(errors.New("no good"))
		case strings.HasSuffix(m.ID, "5") && k == 1:
			timer := time.NewTimer(1500 * time.Millisecond) // longer than the visibility timeout
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		return nil
	}
	s.worker("ours", 50, handle)
	var leaving func()
	again(2*time.Second, func(int) { // and one worker that comes and goes
		if leaving != nil {
			leaving()
		}
		leaving = s.start(func() (func(context.Context) error, error) {
			w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: s.redis, Prefix: s.prefix, Queue: s.queue, Group: "ours", Concurrency: 10, Logger: s.log,
				Handler: func(ctx context.Context, m *bridge.Message) error {
					s.ledger.Delivered("ours", m.ID, lua.EntryTime(m.EntryID).UnixMilli(), m.Due.UnixMilli())
					return handle(ctx, m)
				}})
			return w.Run, err
		})
	})
	for p := range 3 {
		again(3*time.Millisecond, func(n int) {
			id := fmt.Sprintf("%d-%d", p, n)
			options := []bridge.Option{bridge.WithID(id), bridge.In(within(400 * time.Millisecond)(n))}
			if n%7 == 0 {
				options = append(options, bridge.Dedup(2*time.Second))
			}
			receipt, err := s.client.Schedule(context.Background(), s.queue, []byte(id), options...)
			if err != nil {
				s.t.Error(err)
				return
			}
			s.ledger.Sent(id, receipt.Due.UnixMilli())
			if l.plain != nil {
				l.plain.Sent(id, receipt.Due.UnixMilli())
			}
			l.sent.Add(1)
			if n%11 == 0 {
				gone := fmt.Sprintf("gone-%d-%d", p, n)
				if _, err := s.client.Schedule(context.Background(), s.queue, nil, bridge.WithID(gone), bridge.In(time.Minute)); err != nil {
					s.t.Error(err)
				}
				if err := s.client.Cancel(context.Background(), s.queue, gone); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	return l
}

// start runs what is made until it is stopped, or the test ends.
func (s *stack) start(make func() (func(context.Context) error, error)) (stop func()) {
	run, err := make()
	if err != nil {
		s.t.Error(err)
		return func() {}
	}
	return s.run("part", run)
}

// abandoning reads as a consumer that never acknowledges, now and then.
func (l *bustle) abandoning(group string) {
	key := l.keys().Stream
	l.raw("XREADGROUP", "GROUP", group, "gone", "COUNT", "3", "STREAMS", key, ">")
}

// ended waits until everything was delivered, in all partitions.
func (l *bustle) ended(partitions int) {
	l.t.Helper()
	groups := []string{"ours"}
	if l.plain != nil {
		groups = append(groups, "plain")
	}
	redistest.Eventually(l.t, 60*time.Second, func() (bool, string) {
		if r := l.ledger.Summary("ours"); r.Lost > 0 {
			return false, fmt.Sprintf("%+v, missing %v", r, l.ledger.Missing("ours", 5))
		}
		if l.plain != nil && l.plain.Summary("plain").Lost > 0 {
			return false, fmt.Sprint("plain: missing ", l.plain.Missing("plain", 5))
		}
		for i := range partitions {
			if ok, left := l.part(i).empty(groups...); !ok {
				return false, fmt.Sprintf("partition %d: %s", i, left)
			}
		}
		return true, ""
	})
	l.ledger.Check(l.t, "ours")
	if l.plain != nil {
		l.plain.Check(l.t, "plain")
	}
}

// A system at work has no findings: while messages are scheduled, delivered, cancelled, fail, die and are abandoned, in one partition and
// in several, with two groups, and while bridges and workers come and go.
func TestDoctorFindsNothingInASystemThatWorks(t *testing.T) {
	t.Parallel()
	const runs, least, atOnce = 20, 15 * time.Second, 2
	for _, partitions := range []int{1, 4} {
		t.Run(fmt.Sprint("partitions ", partitions), func(t *testing.T) {
			t.Parallel()
			s := newStack(t, redistest.Own(t, soundServer...))
			l := newBustle(s, partitions, partitions == 1)
			began := time.Now()
			var count atomic.Int64
			var all sync.WaitGroup
			for range atOnce {
				all.Go(func() {
					for run := count.Add(1); run <= runs || time.Since(began) < least; run = count.Add(1) {
						l.abandoning("ours")
						report, err := doctor.Examine(context.Background(), doctor.Config{Redis: s.redis, Prefix: s.prefix})
						if err != nil || len(report.Findings)+len(report.LeftOut) > 0 || report.Queues != 1 || report.Partitions != partitions {
							t.Errorf("run %d: %v, %+v", run, err, report)
						}
					}
				})
			}
			all.Wait()
			l.stop()
			l.ended(partitions)
			t.Logf("%d messages, %d runs", l.sent.Load(), count.Load()-atOnce)
		})
	}
}

// While the system works, everything that can be repaired is planted in it, and repaired: nothing is lost or early, and nothing of it is
// found afterwards.
func TestDoctorRepairsUnderLoad(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Own(t, soundServer...))
	l := newBustle(s, 2, false)
	k, g := s.keys(), lua.NewGlobals(s.prefix)
	do := func(args ...string) {
		t.Helper()
		if err := s.raw(args...).Error(); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return l.sent.Load() > 300, "nothing is sent" })

	now := time.Now()
	ms := func(t time.Time) string { return fmt.Sprint(t.UnixMilli()) }
	beyond := lua.NewKeys(s.prefix, s.queue+"/3")
	stray := lua.NewKeys(s.prefix, "stray")
	do("HSET", k.Payload, "orphan", "x")                          // D305
	do("HSET", s.part(1).keys().Meta, "orphan", `{"a":"b"}`)      // D305
	do("EXPIRE", k.Stream, "600")                                 // D302
	do("EXPIRE", g.Queues, "600")                                 // D302
	do("HSET", k.Policy, "max_attempts", "9")                     // D208
	do("HSET", g.Queues, s.queue, "2,none")                       // D205
	do("ZADD", beyond.Due, ms(now.Add(time.Second)), "beyond")    // D206, then D207 while the new partitions have no groups
	do("XADD", k.Wake, "*", "a", "b")                             // D203
	do("ZADD", k.Seen, ms(now.Add(-time.Hour)), "ended")          // D511
	do("HSET", stray.Payload, "stray", "x")                       // D204
	do("ZADD", stray.Due, ms(now.Add(time.Hour)), "stray")        // D204, D202
	do("XGROUP", "CREATE", stray.Stream, "ours", "0", "MKSTREAM") //
	for i := range 100 {
		do("XGROUP", "CREATECONSUMER", s.part(1).keys().Stream, "ours", fmt.Sprint("gone-", i)) // D409
	}
	s.ledger.Sent("beyond", now.Add(time.Second).UnixMilli())

	cfg := doctor.Config{Redis: s.redis, Prefix: s.prefix, Settle: time.Second, OrphanAge: 4 * time.Second, Idle: time.Second}
	mended := map[string]bool{}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		report, err := doctor.Examine(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, f := range report.Findings {
			if f.Repair == "" && f.Code != "D209" {
				t.Errorf("%+v", f)
			}
			left = append(left, f.Code)
		}
		if err := doctor.Mend(context.Background(), report, func(r doctor.Repair) { mended[r.Code] = true; t.Log(r.Code, r.Did) }); err != nil {
			t.Fatal(err)
		}
		return len(left) == 0, fmt.Sprint(left)
	})
	for _, code := range []string{"D208", "D302", "D305", "D409"} { // which no bridge mends so soon
		if !mended[code] {
			t.Errorf("%s was not repaired: %v", code, mended)
		}
	}
	counts, err := bridge.Partitions(t.Context(), s.redis, s.prefix, s.queue)
	if err != nil || counts.Latest() != 4 {
		t.Errorf("%v: %v", counts, err)
	}
	before := l.sent.Load()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return l.sent.Load() > before+300, "nothing is sent" })
	l.stop()
	l.ended(4)
}

// On a cluster, where the keys of a queue, the registry and the heartbeats are on different servers.
func TestDoctorOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0, soundServer...)
	p := newParted(t, c, 8)
	p.bridge(quick())
	do := func(args ...string) {
		t.Helper()
		if err := p.raw(args...).Error(); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
	}
	for i := range 8 { // a group has a consumer, as it has with a worker
		do("XGROUP", "CREATECONSUMER", p.keysOf(i).Stream, "g", "c")
	}
	p.schedule(100, "m", func(int) time.Duration { return time.Hour })
	cfg := doctor.Config{Redis: p.redis, Prefix: p.prefix}
	report, err := doctor.Examine(t.Context(), cfg)
	if err != nil || len(report.Findings)+len(report.LeftOut) > 0 || len(report.Servers) != 3 || report.Partitions != 8 {
		t.Fatalf("%v, %+v", err, report)
	}
	do("XGROUP", "DESTROY", p.keysOf(5).Stream, "g")
	do("HSET", p.keysOf(2).Payload, "orphan", "x")
	do("EXPIRE", p.keysOf(3).Due, "600")
	do("ZADD", p.keysOf(7).Due, "1e15", "never")
	do("SET", p.prefix+":{foreign}:key", "x")
	cfg.OrphanAge = time.Second
	found := func(want string) doctor.Report {
		t.Helper()
		report, err := doctor.Examine(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		var codes []string
		for _, f := range report.Findings {
			codes = append(codes, f.Code)
		}
		if slices.Sort(codes); strings.Join(codes, " ") != want {
			t.Fatalf("found %v, want %s: %+v", codes, want, report)
		}
		return report
	}
	if err := doctor.Mend(t.Context(), found("D207 D209 D302 D305 D307"), func(doctor.Repair) {}); err != nil {
		t.Fatal(err)
	}
	found("D209 D307")
	cfg.Queues = []string{p.queue}
	found("D307")
}

// A user who may not write anything examines; the operator repairs. On every server.
func TestDoctorNeedsNoMoreThanItsUser(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		k, all := lua.NewKeys(g.prefix, "emails"), lua.NewGlobals(g.prefix)
		for _, command := range []string{
			"HSET " + all.Queues + " emails 1,2", "HSET " + all.Defaults + " max_attempts 3", "ZADD " + k.Due + " 1e15 never 5 overdue", "HSET " + k.Payload + " orphan x", "HSET " + k.Meta + " never {",
			"XGROUP CREATE " + k.Stream + " g 0 MKSTREAM", "XADD " + k.Stream + " 1-1 id a", "XADD " + k.Stream + " 1-2 id b", "XREADGROUP GROUP g c COUNT 1 STREAMS " + k.Stream + " >",
			"XADD " + k.Dead + " * a b", "ZADD " + k.Seen + " 5 a", "EXPIRE " + k.Seen + " 1000",
		} {
			if err := g.do(strings.Fields(command)...).Error(); err != nil {
				t.Fatal(command, err)
			}
		}
		cfg := doctor.Config{Redis: g.dial("doctor"), Prefix: g.prefix, Settle: 100 * time.Millisecond, FreeWithin: 100 * time.Millisecond, OrphanAge: time.Second}
		const want = "D201 D202 D207 D302 D304 D305 D307 D309 D404 D511 D523"
		examine := func() (report doctor.Report, codes string) {
			report, err := doctor.Examine(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			var list []string
			for _, f := range report.Findings {
				if !strings.HasPrefix(f.Code, "D1") { // what a shared server's settings are worth
					list = append(list, f.Code)
				}
			}
			slices.Sort(list)
			return report, strings.Join(slices.Compact(list), " ")
		}
		report, codes := examine()
		if codes != want || len(report.LeftOut) != 1 || !strings.Contains(report.LeftOut[0], "CONFIG GET") {
			t.Errorf("found %s\nwant  %s\n%q", codes, want, report.LeftOut)
		}
		if err := doctor.Mend(t.Context(), report, func(doctor.Repair) {}); !errors.Is(err, bridge.ErrDenied) {
			t.Errorf("a user who may not write repairs: %v", err)
		}
		cfg.Redis = g.dial("operator")
		report, _ = examine()
		if err := doctor.Mend(t.Context(), report, func(doctor.Repair) {}); err != nil {
			t.Error(err)
		}
		if _, codes := examine(); codes != "D201 D304 D307 D309 D404 D523" {
			t.Errorf("after the repair: %s", codes)
		}
	})
}
