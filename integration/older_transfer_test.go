package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
)

// fillWithAllKinds fills a queue with one message of each kind that an export contains. It returns, by message ID,
// which attempt a copy of the queue must deliver. The queue is then paused, and no bridge runs.
func (s *stack) fillWithAllKinds(t *testing.T) map[string]int {
	t.Helper()
	all, stopWorker := s.collectUntil("g", func(_ context.Context, m *bridge.Message) error {
		switch {
		case m.ID == "snoozed":
			return bridge.Snooze(time.Hour)
		case m.ID == "dead":
			return bridge.DeadLetter(errors.New("no good"))
		}
		return bridge.RetryAfter(time.Hour, errors.New("later"))
	})
	stopBridge := s.bridge(patient())
	put := func(id string, options ...bridge.Option) {
		t.Helper()
		if err := s.scheduleOne(id, options...); err != nil {
			t.Fatal(err)
		}
	}
	put("snoozed", bridge.MaxSnoozes(3))
	put("retried", bridge.RetryFor(24*time.Hour), bridge.RetryDelays(time.Second, time.Minute), bridge.MaxCrashes(2))
	put("retried-k", bridge.Key("retries"))
	put("dead", bridge.HandlerTimeout(time.Minute))
	for range 4 {
		next(t, all)
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		due, dead := s.number("ZCARD", s.keys().Due), s.number("XLEN", s.keys().Dead)
		return due == 3 && dead == 1, fmt.Sprint(due, " are scheduled, ", dead, " are dead")
	})
	stopWorker()
	if _, err := s.client.Recur(t.Context(), bridge.Recurrence{Queue: s.queue, Name: "tick", Every: time.Second,
		Count: 1, Overlap: bridge.OverlapSkip}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return s.number("XLEN", s.keys().Stream) == 1, "the first occurrence is not ready"
	})
	occurrence := s.abandon("g")
	if _, err := s.operator().Pause(t.Context(), s.queue, true); err != nil {
		t.Fatal(err)
	}
	stopBridge()
	put("scheduled", bridge.In(time.Hour), bridge.Header("trace", "abc"), bridge.HandlerTimeout(time.Minute),
		bridge.ExpiresIn(24*time.Hour), bridge.MaxAttempts(7))
	put("waits-k", bridge.Key("waits"), bridge.In(time.Hour))
	for _, id := range []string{"ready", "held"} { // two entries, of which abandon then reads one
		added := s.raw("XADD", s.keys().Stream, "*", "id", id, "attempt", "1", "due_ms", fmt.Sprint(s.serverNow()),
			"handler_timeout_ms", "60000")
		if err := added.Error(); err != nil {
			t.Fatal(err)
		}
	}
	s.abandon("g")
	tick := s.raw("XRANGE", s.keys().Stream, occurrence, occurrence)
	entries, err := tick.AsXRange()
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	return map[string]int{"snoozed": 1, "retried": 2, "retried-k": 2, "dead": 1, "scheduled": 1, "waits-k": 1, "ready": 1,
		"held": 1, entries[0].FieldValues["id"]: 1}
}

// wantDeliveries makes everything in a queue ready, also messages that are due much later and dead letters, and lets a
// worker handle it. Each message must be delivered once, with the attempt in want.
func (s *stack) wantDeliveries(t *testing.T, program string, want map[string]int) {
	t.Helper()
	deliveries := s.collect("g", nil)
	if out, complaints, code := s.runWithInput(program, "", "dead", "redrive", s.queue, "--all"); code != 0 {
		t.Errorf("redrive: exit code %d: %s%s", code, out, complaints)
	}
	bulk, messagesAndRetries := s.operator().Bulk(), admin.BulkFilter{Retries: true}
	_, err := bulk.Reschedule(t.Context(), s.queue, messagesAndRetries, 100*time.Millisecond, time.Time{},
		admin.BulkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for range want {
		m := next(t, deliveries)
		if got[m.ID] > 0 {
			t.Errorf("%s is delivered twice", m.ID)
		}
		got[m.ID] = m.Attempt
	}
	redistest.Want(t, "delivered", fmt.Sprint(got), fmt.Sprint(want))
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return s.empty("g") })
	redistest.Want(t, "delivered once more", len(deliveries), 0)
}

// A queue moves to a deployment of an older release, and from there to one of this release. Each release's command
// imports what the other exported. Each message is delivered once, with its attempt, and nothing is left. The command
// of a release that does not know recurrences refuses the two lines that name them, and imports all others.
func TestCommandsOfAllReleasesImportEachOthersExports(t *testing.T) {
	t.Parallel()
	thisOne := build(t)
	for name, release := range olderReleases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			older := before.Build(t, release)
			from, through := newStack(t, redistest.Shared(t)), newStack(t, redistest.Shared(t))
			to, back := newStack(t, redistest.Shared(t)), newStack(t, redistest.Shared(t))
			from.groups("g")
			want := from.fillWithAllKinds(t)
			// move exports a queue with one release, and imports it with another, which must refuse this number of
			// lines.
			move := func(source, target *stack, exporter, importer string, refused int) {
				t.Helper()
				export, complaints, code := source.runWithInput(exporter, "", "export", source.queue)
				if code != 0 {
					t.Fatalf("export: exit code %d: %s", code, complaints)
				}
				out, complaints, code := target.runWithInput(importer, export, "import", target.queue)
				// The exit code is 6 if lines were refused, and else 0.
				if !strings.Contains(out, fmt.Sprintf("duplicates 0, refused %d of", refused)) || code != min(6, 6*refused) ||
					strings.Count(complaints, "line ") < refused {
					t.Fatalf("import: exit code %d: %s%s\n%s", code, out, complaints, export)
				}
				if refused > 0 && (!strings.Contains(complaints, `unknown field "plan"`) ||
					!strings.Contains(complaints, `unknown field "recurrences"`)) {
					t.Fatal(complaints)
				}
			}
			unknown := 2 // the recurrence, and the last line, which counts it
			if name == "before" {
				unknown = 0
			}
			move(from, through, thisOne, thisOne, 0)
			move(through, to, thisOne, older, unknown)
			move(to, back, older, thisOne, 0)
			old := to.serve(t, older)
			to.awaitBridges(1)
			to.wantDeliveries(t, older, want)
			to.takeOver(old)
			back.serve(t, thisOne)
			back.awaitBridges(1)
			back.wantDeliveries(t, thisOne, want)
		})
	}
}
