package bridgetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// The plan of TestAdvanceDoesWhatARealRunDoes has 400 days in units that are a millisecond in the real run.
const (
	planUnits    = 20_000
	kitUnit      = 400 * 24 * time.Hour / planUnits
	realUnit     = time.Millisecond
	planSingle   = 650
	planRecur    = 30
	planMessages = 1000 // at least
)

// planned is one message, or one recurrence, of the plan. All times are in units.
type planned struct {
	name   string
	due    int
	fails  int   // attempts that fail
	most   int   // attempts until the message becomes a dead letter
	delays []int // after failed attempts
	snooze int   // if above 0, the first attempt snoozes the message so long
	every  int   // of a recurrence
}

// event is the delivery of one attempt.
type event struct {
	name string // of the message, or the recurrence with the number of the occurrence
	what string // "1" for the first attempt; "1 again" after a snooze
	unit int    // when it is due
}

func (e event) key() string { return e.name + " " + e.what }

// makePlan makes a plan from a seed, and the events that it leads to.
func makePlan(seed uint64) (plan []planned, events []event) {
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range planSingle {
		p := planned{name: fmt.Sprintf("m%d", i), due: 1 + random.IntN(planUnits*3/4), most: 25, delays: []int{500}}
		switch i % 5 {
		case 0:
			p.fails = 1 + random.IntN(3)
			p.delays = []int{200 + random.IntN(300), 300 + random.IntN(900)}
		case 1:
			p.snooze = 100 + random.IntN(2000)
		}
		if i%25 == 0 {
			p.fails, p.most = 3, 3
		}
		plan = append(plan, p)
	}
	for i := range planRecur {
		plan = append(plan, planned{name: fmt.Sprintf("r%d", i), due: 1 + random.IntN(900),
			every: 1000 + 100*random.IntN(10)})
	}
	for _, p := range plan {
		events = append(events, p.events()...)
	}
	return plan, events
}

func (p planned) events() (all []event) {
	if p.every > 0 {
		for i, at := 0, p.due; at <= planUnits; i, at = i+1, at+p.every {
			all = append(all, event{fmt.Sprintf("%s/%d", p.name, i), "1", at})
		}
		return all
	}
	at := p.due
	all = append(all, event{p.name, "1", at})
	if p.snooze > 0 {
		at += p.snooze
		all = append(all, event{p.name, "1 again", at})
	}
	for attempt := 1; attempt <= p.fails && attempt < p.most; attempt++ {
		at += p.delays[min(attempt, len(p.delays))-1]
		all = append(all, event{p.name, strconv.Itoa(attempt + 1), at})
	}
	return all
}

// run is the execution of a plan, with a clock and a length of the unit.
type run struct {
	unit  time.Duration
	start time.Time
	now   func() time.Time

	mu  sync.Mutex
	got []delivered
}

// delivered is a call of the handler.
type delivered struct {
	event
	at  time.Time // by the clock of the run
	due time.Time
}

func (r *run) units(n int) time.Duration { return time.Duration(n) * r.unit }

// schedule sends the whole plan.
func (r *run) schedule(t *testing.T, c *bridge.Client, queue string, plan []planned) {
	t.Helper()
	var batch []bridge.NewMessage
	for _, p := range plan {
		if p.every > 0 {
			every := r.units(p.every)
			first := r.start.Add(r.units(p.due))
			phase := time.Duration(first.UnixMilli()%every.Milliseconds()) * time.Millisecond
			_, err := c.Recur(t.Context(), bridge.Recurrence{Name: p.name, Queue: queue, Every: every, Phase: phase,
				Start: first, End: r.start.Add(r.units(planUnits))})
			ok(t, err)
			continue
		}
		m := bridge.NewMessage{ID: p.name, At: r.start.Add(r.units(p.due)), MaxAttempts: p.most}
		var delays []time.Duration
		for _, d := range p.delays {
			delays = append(delays, r.units(d))
		}
		bridge.RetryDelays(delays...)(&m)
		batch = append(batch, m)
	}
	results, err := c.SendBatch(t.Context(), queue, batch)
	ok(t, err)
	for _, one := range results {
		ok(t, one.Err)
	}
}

// handler returns a handler that fails and snoozes as the plan says, and notes each call.
func (r *run) handler(plan []planned) bridge.Handler {
	byName := map[string]planned{}
	for _, p := range plan {
		byName[p.name] = p
	}
	return func(_ context.Context, m *bridge.Message) error {
		at := r.now()
		name, occurrence, recurs := strings.Cut(m.ID, "@")
		p := byName[name]
		d := delivered{event{m.ID, strconv.Itoa(m.Attempt), 0}, at, m.Due}
		if recurs {
			ms, _ := strconv.ParseInt(occurrence, 10, 64)
			since := time.UnixMilli(ms).Sub(r.start) - r.units(p.due)
			d.name = fmt.Sprintf("%s/%d", name, int(since/r.units(p.every)))
		}
		snoozed := m.Extra["snoozes"] != ""
		if snoozed && m.Attempt == 1 {
			d.what += " again"
		}
		r.mu.Lock()
		r.got = append(r.got, d)
		r.mu.Unlock()
		switch {
		case p.snooze > 0 && !snoozed:
			return bridge.Snooze(r.units(p.snooze))
		case m.Attempt <= p.fails:
			return errors.New("as planned")
		}
		return nil
	}
}

func (r *run) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

// A plan of 400 days with 1,000 scheduled, recurring, snoozed and retried messages. In process and on a server, Advance
// delivers each of them at the time that follows from the plan. A real bridge and a worker run the same plan in 20
// seconds. They deliver the same attempts, none early, and in the order of their due times. A first attempt has the due
// time of the plan. That of a retry is later by the time that the attempt before it took.
func TestAdvanceDoesWhatARealRunDoes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	plan, events := makePlan(seed)
	messages := 0
	for _, e := range events {
		if e.what == "1" {
			messages++
		}
	}
	if messages < planMessages {
		t.Fatalf("the plan has %d messages", messages)
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.unit, b.unit), cmp.Compare(a.key(), b.key()))
	})
	const queue = "plan"

	t.Run("kits", func(t *testing.T) {
		everywhere(t, func(t *testing.T, cfg Config) {
			cfg.Start = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
			k := NewWith(t, cfg)
			r := &run{unit: kitUnit, start: k.Now(), now: k.Now}
			r.schedule(t, k.Client(), queue, plan)
			k.Run(bridge.WorkerConfig{Queue: queue, Group: "g", Handler: r.handler(plan)})
			began := time.Now()
			k.Advance(r.units(planUnits))
			took := time.Since(began).Round(time.Millisecond)
			t.Logf("%s: %d messages, %d attempts in %s", k.Server(), messages, len(r.got), took)
			redistest.Want(t, "attempts", len(r.got), len(events))
			slices.SortStableFunc(r.got, func(a, b delivered) int { // interchanges handlers of one time alone
				return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.key(), b.key()))
			})
			for i, d := range r.got {
				want := r.start.Add(r.units(events[i].unit))
				if d.key() != events[i].key() || !d.at.Equal(want) || !d.due.Equal(want) {
					t.Fatalf("attempt %d is %s, at %s, due %s; want %s at %s", i, d.key(), d.at, d.due, events[i].key(), want)
				}
			}
			k.RequireNothingIn(queue)
		})
	})
	t.Run("real run", func(t *testing.T) {
		t.Parallel()
		url, prefix, end := redistest.Lend()
		t.Cleanup(end)
		ctx, stop := context.WithCancel(t.Context())
		conn := redistest.Must(bridge.Dial(ctx, url))
		t.Cleanup(conn.Close)
		c := redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: conn, Prefix: prefix}))
		r := &run{unit: realUnit, start: time.Now().Add(time.Second).Truncate(time.Millisecond), now: time.Now}
		b := redistest.Must(bridge.NewBridge(bridge.Config{Redis: conn, Prefix: prefix, AnyServer: true}))
		w := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{Redis: conn, Prefix: prefix, Queue: queue, Group: "g",
			Handler: r.handler(plan), Concurrency: 1}))
		var running sync.WaitGroup
		t.Cleanup(running.Wait)
		t.Cleanup(stop)
		running.Go(func() { _ = b.Run(ctx) })
		running.Go(func() { _ = w.Run(ctx) })
		r.schedule(t, c, queue, plan)
		redistest.Eventually(t, 2*time.Minute, func() (bool, string) {
			n := r.count()
			return n >= len(events), fmt.Sprintf("%d of %d attempts", n, len(events))
		})
		r.mu.Lock()
		defer r.mu.Unlock()
		compareWithPlan(t, r, events)
	})
}

// compareWithPlan compares a real run with the events of the plan. The speed of the machine has no effect on the
// result.
func compareWithPlan(t *testing.T, r *run, events []event) {
	t.Helper()
	units := map[string]int{}
	for _, e := range events {
		units[e.key()] = e.unit
	}
	redistest.Want(t, "attempts", len(r.got), len(events))
	var latest, slowest time.Duration
	lastDue, asPlanned, before := time.Time{}, 0, 0
	last := map[string]delivered{} // of each message
	for _, d := range r.got {
		unit, known := units[d.key()]
		if !known {
			t.Fatalf("%s is not planned, or came twice", d.key())
		}
		delete(units, d.key())
		d.unit = unit
		late := d.at.Sub(d.due)
		if late < 0 {
			t.Errorf("%s came %s early", d.key(), -late)
		}
		latest = max(latest, late)
		if d.due.Before(lastDue) {
			t.Errorf("%s, due at %s, came after an attempt that was due at %s", d.key(), d.due, lastDue)
		}
		lastDue = d.due
		if former, again := last[d.name]; again {
			// How long after its due time the former attempt had failed.
			slip := d.due.Sub(former.due) - r.units(d.unit-former.unit)
			if slip < 0 {
				t.Errorf("%s was due %s too early", d.key(), -slip)
			}
			slowest = max(slowest, slip)
		} else if want := r.start.Add(r.units(unit)); !d.due.Equal(want) {
			t.Errorf("%s was due at %s, want %s", d.key(), d.due, want)
		}
		last[d.name] = d
		if unit >= before {
			asPlanned++
		}
		before = max(before, unit)
	}
	t.Logf("real run: %d attempts, %d of them in the order of the plan, at most %s late, failed at most %s after due",
		len(r.got), asPlanned, latest.Round(time.Millisecond), slowest.Round(time.Millisecond))
}
