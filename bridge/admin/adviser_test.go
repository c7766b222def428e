package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream/sizes"
)

// behindSample is a sample of a queue whose group does as much as becomes ready, and has a backlog.
func behindSample(queue string, consumers int64) QueueSample {
	half, waiting, unread := 0.5, view.Millis(787*time.Second), view.Millis(time.Second)
	if consumers == 0 {
		unread = waiting
	}
	return QueueSample{Queue: queue, Partitions: 1, PerSecond: &QueueRates{Out: &half}, Groups: []GroupSample{{Done: &half,
		GroupSizes: GroupSizes{Name: "resizer", Lag: 648, Consumers: consumers, Waiting: &waiting, Unread: &unread}}}}
}

// waitingLines returns the lines of findings about groups whose entries wait.
func waitingLines(findings []doctor.Finding) string {
	var lines []string
	for _, f := range findings {
		if waits(f) {
			lines = append(lines, fmt.Sprint(f.Code, " ", f.Line()))
		}
	}
	return strings.Join(lines, "\n")
}

// An Adviser must know a speed only after a minute, and must forget it when nobody looks.
func TestAdviserSeesSlowWorkers(t *testing.T) {
	t.Parallel()
	v := &Adviser{speeds: map[doctor.Group]*groupSpeed{}, noted: map[string]time.Time{}}
	at := time.Now()
	note := func(after time.Duration) (doctor.Rates, bool) {
		at = at.Add(after)
		v.note([]QueueSample{behindSample("q", 1)}, at)
		speed := v.speeds[doctor.Group{Queue: "q", Group: "resizer"}]
		if speed == nil {
			return doctor.Rates{}, false
		}
		return speed.rates()
	}
	for i := range 300 {
		rates, known := note(time.Second)
		redistest.Want(t, fmt.Sprint("whether the speed is known after ", i, " s"), known, i >= 60)
		if known && rates != (doctor.Rates{Ready: 0.5, Done: 0.5}) {
			t.Fatalf("after %d s the rates are %+v", i, rates)
		}
	}
	_, known := note(2 * time.Minute)
	redistest.Want(t, "whether the speed is known after a pause", known, false)
	v.note(nil, at.Add(2*time.Minute))
	redistest.Want(t, "queues that are remembered", len(v.noted)+len(v.speeds), 0)
}

// A group with a target must never be advised to be destroyed, also if its targets cannot be read. The targets are read
// once in ten seconds, and only if entries wait.
func TestAdviserNeverDestroysAGroupWithATarget(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := queuetest.New(t, server)
	a, err := New(&bridge.Redis{Client: r.Client}, r.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	target := PushTarget{Queue: "hooks", Group: "resizer", URL: "https://example.com/"}
	if _, err := a.SetPushTarget(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	v := a.Adviser()
	before := server.Calls(t)
	quiet := QueueSample{Queue: "quiet", Partitions: 1, Groups: []GroupSample{{GroupSizes: sizes.GroupSizes{Name: "g"}}}}
	v.Advise(t.Context(), Seen{Samples: []QueueSample{quiet}})
	redistest.Want(t, "requests while nothing waits", server.Calls(t)["exists"]-before["exists"], 0)
	samples := []QueueSample{behindSample("hooks", 0), behindSample("plain", 0)}
	for range 20 {
		lines := waitingLines(v.Advise(t.Context(), Seen{Samples: samples}))
		hooks, plain, _ := strings.Cut(lines, "\n")
		if strings.HasPrefix(hooks, "D402") {
			hooks, plain = plain, hooks
		}
		if !strings.HasPrefix(hooks, "D415") || strings.Contains(hooks, "DESTROY") || !strings.Contains(plain, "DESTROY") {
			t.Fatalf("the advice is\n%s", lines)
		}
	}
	calls := server.Calls(t)
	if n := calls["exists"] + calls["hkeys"] - before["exists"] - before["hkeys"]; n > 5 {
		t.Errorf("20 looks sent %d commands", n)
	}
	r.Do("DEL", r.Prefix+":{plain}:push")
	r.Do("SET", r.Prefix+":{plain}:push", "x")
	lines := waitingLines(a.Adviser().Advise(t.Context(), Seen{Samples: samples[1:]}))
	if strings.Contains(lines, "DESTROY") {
		t.Errorf("the targets cannot be read, and the advice is\n%s", lines)
	}
}

// A caller must not wait longer than its time for another one that asks Redis, and must not wait at all if it needs no
// targets. Regression: a lock was held meanwhile.
func TestAdviserDoesNotWaitForAnotherCaller(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	a, err := New(&bridge.Redis{Client: r.Client}, r.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	v := a.Adviser()
	v.asking <- struct{}{} // another caller asks
	ctx, end := context.WithCancel(t.Context())
	advised := make(chan []doctor.Finding)
	go func() { advised <- v.Advise(ctx, Seen{Samples: []QueueSample{behindSample("a", 0)}}) }()
	v.Advise(t.Context(), Seen{Samples: []QueueSample{{Queue: "quiet", Partitions: 1}}})
	end()
	if waitingLines(<-advised) == "" {
		t.Error("there is no advice without targets")
	}
}
