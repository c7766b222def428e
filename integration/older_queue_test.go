package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// The messages of a queue with partitions are delivered by an older bridge, by bridges of both releases together, by a
// bridge of this release, and by an older bridge that takes over.
func TestPartitionsBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		if _, err := s.operator().SetPartitions(t.Context(), s.queue, 4, nil); err != nil {
			t.Fatal(err)
		}
		s.worker("g", 20, nil)
		step := func(name string) {
			t.Helper()
			s.schedule(100, name, spreadOver(time.Second))
			s.awaitPartsSettled(4)
		}
		step("old")
		now := s.serve(t, build(t))
		s.awaitBridges(2)
		step("both")
		old.stop()
		step("new")
		s.serve(t, old.cmd.Path)
		s.awaitBridges(2)
		now.stop()
		step("old again")
	})
}

// A queue that an older bridge serves grows while producers of both releases schedule messages, and loses nothing. A
// queue that holds a message with an ordering key cannot grow, as beside a bridge of this release.
func TestGrowthBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		op := s.operator()
		s.worker("g", 20, nil)
		for step, n := range []int{1, 2, 4} {
			s.schedule(100, fmt.Sprint("before ", step), spreadOver(time.Second))
			if _, err := op.SetPartitions(t.Context(), s.queue, n, nil); err != nil {
				t.Fatal(err)
			}
			s.schedule(100, fmt.Sprint("behind ", step), spreadOver(time.Second))
			for i := range 5 {
				id := fmt.Sprint("older-", step, "-", i)
				s.ledger.Sent(id, s.serverNow())
				if out, err := s.runProgram(old.cmd.Path, "schedule", s.queue, "--id", id, "--in", "300ms", "x"); err != nil {
					t.Fatal(out, err)
				}
			}
		}
		s.awaitPartsSettled(4)
		client := s.clientBesideOldBridges()
		if _, err := client.Schedule(t.Context(), s.queue, nil, bridge.Key("k"), bridge.In(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := op.SetPartitions(t.Context(), s.queue, 8, nil); !errors.Is(err, admin.ErrKeyed) {
			t.Errorf("a queue with a keyed message grows: %v", err)
		}
		if out, err := s.runProgram(old.cmd.Path, "queue", "partitions", s.queue, "8"); err != nil {
			t.Errorf("the older command refuses: %s %v", out, err) // as documented, it does not check for keys
		}
	})
}

// Bulk changes work on scheduled messages and retries of a queue that an older bridge serves. A delivery that is
// cancelled while a worker holds it ends with that worker.
func TestBulkChangesBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, _ *releaseProcess) {
		bulk := s.operator().Bulk()
		wantTen := func(r admin.BulkResult, err error) { // each bulk change must change ten messages
			t.Helper()
			if err != nil || r.Changed != 10 {
				t.Fatalf("%+v %v", r, err)
			}
		}
		for _, name := range []string{"cancelled-", "moved-", "expired-"} {
			for i := range 10 {
				if err := s.scheduleOne(fmt.Sprint(name, i), bridge.In(time.Hour)); err != nil {
					t.Fatal(err)
				}
			}
		}
		wantTen(bulk.Cancel(t.Context(), s.queue, admin.BulkFilter{Prefix: "cancelled-"}, admin.BulkOptions{}))
		wantTen(bulk.Expire(t.Context(), s.queue, admin.BulkFilter{Prefix: "expired-"}, admin.BulkOptions{}))
		wantTen(bulk.Reschedule(t.Context(), s.queue, admin.BulkFilter{Prefix: "moved-"}, 100*time.Millisecond, time.Time{},
			admin.BulkOptions{}))
		all := s.collect("g", func(ctx context.Context, m *bridge.Message) error {
			if m.ID == "running" {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return bridge.RetryAfter(time.Hour, errors.New("later"))
		})
		for range 10 {
			if m := next(t, all); m.ID[:6] != "moved-" {
				t.Error(m.ID, " is delivered")
			}
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			dead, due := s.number("XLEN", s.keys().Dead), s.number("ZCARD", s.keys().Due)
			return dead == 10 && due == 10, fmt.Sprint(dead, " dead letters, ", due, " retries")
		})
		retries := admin.BulkFilter{Group: "g", Retries: true}
		wantTen(bulk.Reschedule(t.Context(), s.queue, retries, 2*time.Hour, time.Time{}, admin.BulkOptions{}))
		wantTen(bulk.Cancel(t.Context(), s.queue, retries, admin.BulkOptions{}))
		if err := s.raw("DEL", s.keys().Dead).Error(); err != nil {
			t.Fatal(err)
		}

		if err := s.scheduleOne("running"); err != nil {
			t.Fatal(err)
		}
		client := s.clientBesideOldBridges()
		// Until the worker holds the message, the verdict is another one.
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			r, err := client.CancelRunning(t.Context(), s.queue, "", "running")
			return err == nil && len(r) == 1 && r[0].Verdict == bridge.VerdictCancelling, fmt.Sprint(r, err)
		})
		next(t, all)
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { return s.empty("g") })
		redistest.Want(t, "dead letters of the message cancelled while it ran", s.number("XLEN", s.keys().Dead), 0)
	})
}

// If the worker that holds a cancelled message dies, an older bridge makes a dead letter of the message and delivers it
// to nobody. So the cancellation is refused beside an older bridge, unless the client allows old bridges.
func TestCancelledAndAbandonedBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, _ *releaseProcess) {
		if err := s.scheduleOne("order-42", bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		s.abandon("g")
		if r, err := s.client.CancelRunning(t.Context(), s.queue, "", "order-42"); !errors.Is(err, bridge.ErrOldBridge) {
			t.Error(r, err)
		}
		if r, err := s.clientBesideOldBridges().CancelRunning(t.Context(), s.queue, "", "order-42"); err != nil ||
			r[0].Verdict != bridge.VerdictCancelling {
			t.Fatal(r, err)
		}
		l := s.letter()
		redistest.Want(t, "letter", l.ID+" "+l.Reason, "order-42 "+lua.ReasonVisibilityTimeout)
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { return s.empty("g") })
	})
}

// A pause works with an older bridge, and the commands of both releases can end it. Commands of releases that do not
// know the pause of workers leave it in place.
func TestPauseBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		op := s.operator()
		all := s.collect("g", nil)
		for i, resume := range []func() (string, error){
			func() (string, error) { return s.runProgram(build(t), "resume", s.queue) },
			func() (string, error) { return s.runProgram(old.cmd.Path, "resume", s.queue) },
		} {
			if _, err := op.Pause(t.Context(), s.queue, true); err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprint("held-", i)
			if err := s.scheduleOne(id, bridge.In(100*time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			until := s.serverNow() + 1500 // long enough for a bridge that ignores the pause to deliver the message
			redistest.Eventually(t, 10*time.Second, func() (bool, string) { return s.serverNow() > until, "" })
			if n := s.number("ZCARD", s.keys().Due); n != 1 || len(all) != 0 {
				t.Errorf("%d messages wait in the pause", n)
			}
			if out, err := resume(); err != nil {
				t.Fatal(out, err)
			}
			redistest.Want(t, "delivered", next(t, all).ID, id)
		}
		if _, err := op.PauseWorkers(t.Context(), s.queue); err != nil {
			t.Fatal(err)
		}
		for _, program := range []string{old.cmd.Path, build(t)} {
			if out, err := s.runProgram(program, "resume", s.queue); err != nil {
				t.Fatal(out, err)
			}
			knowsPause := program != before.Build(t, before.Keyless) && program != before.Build(t, before.Planless)
			held, _ := s.raw("HGET", s.keys().Policy, "held_workers").ToString()
			redistest.Want(t, "workers stay paused after "+program, held == "1", !knowsPause)
		}
		if err := s.scheduleOne("last", bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "delivered", next(t, all).ID, "last")
	})
}

// Groups are created and deleted while an older bridge runs. A new group gets the messages that become ready after its
// creation, and a retry for a deleted group becomes a dead letter.
func TestGroupsBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		s.groups("h")
		ofG := s.collect("g", nil)
		ofH, stop := s.collectUntil("h", func(context.Context, *bridge.Message) error {
			return bridge.RetryAfter(time.Hour, errors.New("later"))
		})
		if err := s.scheduleOne("order-42", bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		next(t, ofG)
		next(t, ofH)
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			_, due, err := s.waiting()
			return due > 0, fmt.Sprint(err)
		})
		stop()
		if err := s.raw("XGROUP", "DESTROY", s.keys().Stream, "h").Error(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.client.Reschedule(t.Context(), s.queue, "order-42", bridge.In(0), bridge.RetriesOf("h")); err != nil {
			t.Fatal(err)
		}
		l := s.letter()
		redistest.Want(t, "letter", l.ID+" "+l.Group+" "+l.Reason, "order-42 h "+lua.ReasonGroupGone)
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { return s.empty("g") })
	})
}

// A bridge of this release writes notes about held deliveries. The notes do no harm while an older bridge serves the
// queue, and a bridge of this release that runs again deletes them.
func TestNotesOfDeliveriesOutliveAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		op := s.operator()
		long := time.Minute
		if err := op.WritePolicy(t.Context(), s.queue, "", admin.PolicyUpdate{VisibilityTimeout: &long}); err != nil {
			t.Fatal(err)
		}
		now := s.takeOver(old)
		if err := s.scheduleOne("order-42", bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		entry := s.abandon("g")
		note := func() string { text, _ := s.raw("HGET", s.keys().Calm, lua.HeldField("g")).ToString(); return text }
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { return note() != "", "no note" })
		again := s.serve(t, old.cmd.Path)
		s.awaitBridges(2)
		now.stop()
		s.awaitBridges(1)
		short := 300 * time.Millisecond
		if err := op.WritePolicy(t.Context(), s.queue, "", admin.PolicyUpdate{VisibilityTimeout: &short}); err != nil {
			t.Fatal(err)
		}
		all := s.collect("g", nil)
		m := next(t, all)
		redistest.Want(t, "attempt and entry", fmt.Sprint(m.Attempt, m.EntryID == entry), "2 false")
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { return s.empty("g") })
		redistest.Want(t, "the older bridge leaves the note", note() != "", true)
		s.takeOver(again)
		redistest.Eventually(t, 30*time.Second,
			func() (bool, string) { return s.number("EXISTS", s.keys().Calm) == 0, note() })
	})
}

// Deliveries with a lease of their own, as over HTTP, can be settled while an older bridge runs. An abandoned one comes
// back after at most a visibility timeout. A bridge of this release that takes over deletes the notes about such
// leases.
func TestLeasesBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		p := redistest.Must(pull.New(pull.Config{Client: s.redis.Client, Blocking: s.redis.Blocking, Prefix: s.prefix}))
		s.run("puller", func(ctx context.Context) error {
			p.Run(ctx)
			return nil
		})
		receive := func(lease time.Duration) pull.Delivery {
			t.Helper()
			all, err := p.Pull(t.Context(), pull.Request{Queues: []string{s.queue}, Group: "g", Count: 1, Within: lease,
				Wait: 30 * time.Second})
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			return all[0]
		}
		acknowledge := func(d pull.Delivery) bool {
			t.Helper()
			done, err := p.Ack(t.Context(), []pull.Token{d.Token})
			if err != nil {
				t.Fatal(err)
			}
			return done[0]
		}
		if err := s.scheduleOne("order-42", bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		first := receive(200 * time.Millisecond)
		second := receive(900 * time.Millisecond)
		redistest.Want(t, "attempts", fmt.Sprint(first.Attempt, second.Attempt), "1 2")
		redistest.Want(t, "the first is acknowledged", acknowledge(first), false)
		for !acknowledge(second) { // on a busy machine, the lease may have expired
			second = receive(900 * time.Millisecond)
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { return s.empty("g") })
		redistest.Want(t, "there are notes", s.number("EXISTS", s.keys().Leases), 1)
		s.takeOver(old)
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return s.number("EXISTS", s.keys().Leases) == 0, "the notes stay"
		})
	})
}

// Messages are posted to a target while an older bridge runs, by processes of both releases if the older one supports
// targets. Each release posts to a target that the other's command has written.
func TestPushBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		arrived := make(chan string, 1000)
		target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			arrived <- string(body)
		}))
		t.Cleanup(target.Close)
		program := old.cmd.Path
		knowsTargets := program == before.Build(t, before.Release)
		add := []string{"push", "add", s.queue, "--group", "g", "--url", target.URL, "--allow-http",
			"--allow-network", "127.0.0.0/8", "--allow-network", "::1/128"}
		// awaitPosted schedules n messages, and waits until all are posted.
		awaitPosted := func(n int) {
			t.Helper()
			wanted := map[string]bool{}
			for i := range n {
				id := fmt.Sprint(len(arrived), "-", i)
				wanted[id] = true
				if _, err := s.client.Schedule(t.Context(), s.queue, []byte(id), bridge.In(100*time.Millisecond)); err != nil {
					t.Fatal(err)
				}
			}
			for len(wanted) > 0 {
				select {
				case body := <-arrived:
					delete(wanted, body)
				case <-time.After(30 * time.Second):
					t.Fatal("not posted: ", wanted)
				}
			}
		}
		runner := func() (stop func()) {
			t.Helper()
			r, err := push.NewRunner(push.Config{Redis: s.redis, Prefix: s.prefix, LookInterval: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			return s.run("runner", r.Run)
		}
		if out, err := s.runProgram(build(t), append(add, "--rate", "100/s")...); err != nil {
			t.Fatal(out, err)
		}
		stop := runner()
		awaitPosted(20)
		if !knowsTargets {
			return
		}
		older := s.startProgram(t, program, "push", "run")
		awaitPosted(20)
		stop()
		awaitPosted(20)
		if out, err := s.runProgram(program, append(add, "--rate", "200/s")...); err != nil {
			t.Fatal(out, err)
		}
		older.stop()
		runner()
		awaitPosted(20)
	})
}

// At maxmemory, an older bridge delivers, retries and frees the messages that this release has scheduled before. A
// bridge of this release that takes over continues.
func TestFullServerBesideAnOlderBridge(t *testing.T) {
	t.Parallel()
	for _, release := range []string{before.Release, before.Keyless} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, redistest.Own(t, "--maxmemory-policy", "noeviction"))
			s.groups("g")
			s.quickQueue()
			old := s.serve(t, before.Build(t, release))
			s.awaitBridges(1)
			batch := make([]bridge.NewMessage, 3000)
			for i := range batch {
				delay := 2*time.Second + spreadOver(4*time.Second)(i)
				batch[i] = bridge.NewMessage{ID: fmt.Sprint("m", i), Payload: make([]byte, 512), Delay: delay}
			}
			s.send(batch)
			if err := s.raw("CONFIG", "SET", "maxmemory", "1mb").Error(); err != nil {
				t.Fatal(err)
			}
			if err := s.scheduleOne("refused"); !errors.Is(err, bridge.ErrFull) {
				t.Fatal(err)
			}
			s.abandon("g")
			s.worker("g", 50, func(_ context.Context, m *bridge.Message) error {
				if m.Attempt == 1 && m.ID[len(m.ID)-1] == '7' {
					return errors.New("every tenth fails once")
				}
				return nil
			})
			redistest.Eventually(t, 20*time.Second, func() (bool, string) {
				r := s.ledger.Summary("g")
				return r.Delivered > 500, r.String()
			})
			s.takeOver(old)
			s.awaitSettled(60*time.Second, "g")
			if err := s.scheduleOne("refused"); !errors.Is(err, bridge.ErrFull) {
				t.Errorf("the server was not full all the time: %v", err)
			}
		})
	}
}

// Partitions on all masters of a cluster are delivered by an older bridge, by both releases together, by this
// release, and by an older bridge again.
func TestClusterBesideAnOlderBridge(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	for _, release := range []string{before.Release, before.Keyless} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			p := newParted(t, c, 8)
			p.readers()
			client := p.producer()
			step := func(name string) {
				t.Helper()
				p.client = client
				p.schedule(100, name, spreadOver(time.Second))
				p.awaitAllOnce()
			}
			old := p.serve(t, before.Build(t, release))
			p.awaitBridges(1)
			step("old")
			now := p.serve(t, build(t))
			p.awaitBridges(2)
			step("both")
			old.stop()
			step("new")
			p.serve(t, before.Build(t, release))
			p.awaitBridges(2)
			now.stop()
			step("old again")
		})
	}
}
