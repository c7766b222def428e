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
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// soundServer are arguments of a server in whose settings the doctor finds nothing wrong.
var soundServer = []string{"--appendonly", "yes", "--maxmemory", "1gb"}

// The doctor finds nothing wrong in a system that works, although messages are scheduled, delivered, cancelled and
// abandoned, fail and become dead letters, and bridges and workers start and stop: in a queue with one partition and
// two groups, and in a queue with four partitions.
func TestDoctorFindsNothingInASystemThatWorks(t *testing.T) {
	t.Parallel()
	const runs, least, atOnce = 8, 8 * time.Second, 2 // at least so many runs, for at least so long, two at a time
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
						l.readAndAbandon("ours")
						report, err := examine(context.Background(), doctor.Config{Client: s.redis.Client, Prefix: s.prefix})
						if err != nil || len(report.Findings)+len(report.LeftOut) > 0 || report.Queues != 1 ||
							report.Partitions != partitions {
							t.Errorf("run %d: %v, %+v", run, err, report)
						}
					}
				})
			}
			all.Wait()
			l.stop()
			l.awaitAllDelivered(partitions)
			t.Logf("%d messages, %d runs", l.sent.Load(), count.Load()-atOnce)
		})
	}
}

// The test makes every fault that the doctor can repair in a running system, and the doctor repairs it. No message is
// lost or early, and the doctor finds nothing afterwards. The comments name the code of the finding that each command
// causes.
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
	beyond := lua.NewKeys(s.prefix, s.queue+"/3")                 // a partition beyond the registered ones
	stray := lua.NewKeys(s.prefix, "stray")                       // a queue that is not registered
	do("HSET", k.Payload, "orphan", "x")                          // D305
	do("HSET", s.part(1).keys().Meta, "orphan", `{"a":"b"}`)      // D305
	do("EXPIRE", k.Stream, "600")                                 // D302
	do("EXPIRE", g.Queues, "600")                                 // D302
	do("HSET", k.Policy, "max_attempts", "9")                     // D208
	do("HSET", g.Queues, s.queue, "2,none")                       // D205
	do("ZADD", beyond.Due, ms(now.Add(time.Second)), "beyond")    // D206
	do("XADD", k.Wake, "*", "a", "b")                             // D203
	do("ZADD", k.Seen, ms(now.Add(-time.Hour)), "ended")          // D511
	do("HSET", stray.Payload, "stray", "x")                       // D204
	do("ZADD", stray.Due, ms(now.Add(time.Hour)), "stray")        // D204, D202
	do("XGROUP", "CREATE", stray.Stream, "ours", "0", "MKSTREAM") // no fault: a queue has a group
	for i := range 100 {
		do("XGROUP", "CREATECONSUMER", s.part(1).keys().Stream, "ours", fmt.Sprint("gone-", i)) // D409
	}
	s.ledger.Sent("beyond", now.Add(time.Second).UnixMilli())

	cfg := doctor.Config{Client: s.redis.Client, Prefix: s.prefix, Settle: time.Second, OrphanAge: 4 * time.Second,
		Idle: time.Second}
	mended := map[string]bool{}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		report, err := examine(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, f := range report.Findings {
			if f.Repair == "" && f.Code != "D209" { // D209 is the only finding here that the doctor cannot repair
				t.Errorf("%+v", f)
			}
			left = append(left, f.Code)
		}
		if err := report.Mend(context.Background(),
			func(r doctor.Repair) { mended[r.Code] = true; t.Log(r.Code, r.Did) }); err != nil {
			t.Fatal(err)
		}
		return len(left) == 0, fmt.Sprint(left)
	})
	for _, code := range []string{"D208", "D302", "D305", "D409"} { // no bridge repairs these so soon
		if !mended[code] {
			t.Errorf("%s was not repaired: %v", code, mended)
		}
	}
	counts, err := s.operator().Partitions(t.Context(), s.queue)
	if err != nil || counts.Latest() != 2 { // only the unregistered partition was emptied
		t.Errorf("%v: %v", counts, err)
	}
	before := l.sent.Load()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return l.sent.Load() > before+300, "nothing is sent" })
	l.stop()
	l.awaitAllDelivered(2)
}

// The doctor examines and repairs a queue on a cluster, where the partitions, the registry and the heartbeats are on
// different servers. Queues in its configuration limit the examination to these.
func TestDoctorOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 1, soundServer...)
	p := newParted(t, c, 8)
	p.bridge(quick())
	do := func(args ...string) {
		t.Helper()
		if err := p.raw(args...).Error(); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
	}
	for i := range 8 { // every group has a consumer, as with a worker
		do("XGROUP", "CREATECONSUMER", p.keysOf(i).Stream, "g", "c")
	}
	p.schedule(100, "m", func(int) time.Duration { return time.Hour })
	cfg := doctor.Config{Client: p.redis.Client, Prefix: p.prefix}
	report, err := examine(t.Context(), cfg)
	if err != nil || len(report.Findings)+len(report.LeftOut) > 0 || len(report.Servers) != 3 || report.Partitions != 8 {
		t.Fatalf("%v, %+v", err, report)
	}
	do("XGROUP", "DESTROY", p.keysOf(5).Stream, "g")
	do("HSET", p.keysOf(2).Payload, "orphan", "x")
	do("EXPIRE", p.keysOf(3).Due, "600")
	do("ZADD", p.keysOf(7).Due, "1e15", "never")
	do("SET", p.prefix+":{foreign}:key", "x")
	cfg.OrphanAge = time.Second
	wantFindings := func(want string) doctor.Report {
		t.Helper()
		report, err := examine(t.Context(), cfg)
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
	if err := wantFindings("D207 D209 D302 D305 D307").Mend(t.Context(), func(doctor.Repair) {}); err != nil {
		t.Fatal(err)
	}
	wantFindings("D209 D307") // the foreign key, and a due time beyond all times: neither can be repaired
	cfg.Queues = []string{p.queue}
	wantFindings("D307")
}

// Behind Sentinel, the doctor examines the master, and checks that its replicas follow.
func TestDoctorBehindSentinel(t *testing.T) {
	t.Parallel()
	w := redistest.Sentinels(t, redistest.SentinelOptions{Args: soundServer})
	s := newStack(t, w.Server())
	s.groups("ours")
	s.bridge(quick())
	s.worker("ours", 5, nil)
	s.schedule(100, "m", spreadOver(500*time.Millisecond))
	report, err := examine(t.Context(), doctor.Config{Client: s.redis.Client, Prefix: s.prefix})
	if err != nil || len(report.Findings)+len(report.LeftOut) > 0 || len(report.Servers) != 1 || report.Servers[0].Replicas != 2 {
		t.Errorf("%v, %+v", err, report)
	}
	if err := s.raw("CONFIG", "SET", "min-replicas-to-write", "2").Error(); err != nil {
		t.Fatal(err)
	}
	// D110: min-replicas-to-write is set. The server counts its good replicas once a second.
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		report, err = examine(t.Context(), doctor.Config{Client: s.redis.Client, Prefix: s.prefix})
		return err == nil && len(report.Findings) == 1 && report.Findings[0].Code == "D110", fmt.Sprintf("%v, %+v", err, report)
	})
	s.awaitSettled(20*time.Second, "ours")
}

// On every server, the documented user "doctor" can examine although it may not write, and the documented user
// "operator" can repair. The doctor names what it is not allowed to look at.
func TestDoctorNeedsNoMoreThanItsUser(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		k, all := lua.NewKeys(g.prefix, "emails"), lua.NewGlobals(g.prefix)
		for _, command := range []string{
			"HSET " + all.Queues + " emails 1,2", "HSET " + all.Defaults + " max_attempts 3", "ZADD " + k.Due +
				" 1e15 never 5 overdue", "HSET " + k.Payload + " orphan x", "HSET " + k.Meta + " never {",
			"XGROUP CREATE " + k.Stream + " g 0 MKSTREAM", "XADD " + k.Stream + " 1-1 id a", "XADD " + k.Stream + " 1-2 id b",
			"XREADGROUP GROUP g c COUNT 1 STREAMS " + k.Stream + " >",
			"XADD " + k.Dead + " * a b", "ZADD " + k.Seen + " 5 a", "EXPIRE " + k.Seen + " 1000",
		} {
			if err := g.do(strings.Fields(command)...).Error(); err != nil {
				t.Fatal(command, err)
			}
		}
		cfg := doctor.Config{Client: g.dial("doctor").Client, Prefix: g.prefix, Settle: 100 * time.Millisecond,
			FreeWithin: 100 * time.Millisecond, OrphanAge: time.Second}
		const want = "D201 D202 D207 D302 D304 D305 D307 D309 D404 D511 D523"
		examine := func() (report doctor.Report, codes string) {
			report, err := examine(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			var list []string
			for _, f := range report.Findings {
				if !strings.HasPrefix(f.Code, "D1") { // settings of a shared server
					list = append(list, f.Code)
				}
			}
			slices.Sort(list)
			return report, strings.Join(slices.Compact(list), " ")
		}
		report, codes := examine()
		denied := ""
		for _, f := range report.Findings {
			if f.Code == "D114" { // names what the doctor is not allowed to look at
				denied += fmt.Sprintf("%+v\n", f)
			}
		}
		if codes != want || !strings.Contains(denied, "config|get") || !strings.Contains(denied, "function|list") {
			t.Errorf("found %s\nwant  %s\n%s", codes, want, denied)
		}
		if err := report.Mend(t.Context(), func(doctor.Repair) {}); !errors.Is(err, bridge.ErrDenied) {
			t.Errorf("a user who may not write repairs: %v", err)
		}
		cfg.Client = g.dial("operator").Client
		report, _ = examine()
		if err := report.Mend(t.Context(), func(doctor.Repair) {}); err != nil {
			t.Error(err)
		}
		if _, codes := examine(); codes != "D201 D304 D307 D309 D404 D523" {
			t.Errorf("after the repair: %s", codes)
		}
	})
}

// examine runs doctor.Examine, and leaves out the findings about policies that give up early (D503) and about new dead
// letters (D524), because tests cause both on purpose.
func examine(ctx context.Context, cfg doctor.Config) (doctor.Report, error) {
	report, err := doctor.Examine(ctx, cfg)
	report.Findings = slices.DeleteFunc(report.Findings, func(f doctor.Finding) bool {
		return f.Code == "D503" || f.Code == "D524"
	})
	return report, err
}
