package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// actRig is a queue with an Admin for it.
type actRig struct {
	*queuetest.Rig
	*admin.Admin
}

func newActRig(t *testing.T, s *redistest.Server) *actRig {
	t.Helper()
	r := queuetest.New(t, s)
	a, err := admin.New(&bridge.Redis{Client: r.Client, Blocking: r.Blocking}, r.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	return &actRig{r, a}
}

// far returns a due time far in the future; n orders them.
func far(n int) time.Time { return time.UnixMilli(4e12).Add(time.Duration(n) * time.Second) }

// fill adds a message to each state, all with the payload "red": s scheduled, t retrying for g, p held by g and not
// read by h, r not read by g, d dead for g.
func (r *actRig) fill() {
	r.T.Helper()
	r.Groups("g", "h")
	r.Enqueue(lua.Item{ID: "s", When: lua.At(far(1)), Payload: []byte("red")})
	member := lua.Member{Kind: lua.MemberRetry, ID: "t", Group: "g", Of: "1-1"}.String()
	r.Do("HSET", r.Keys.Payload, member, "red")
	r.Do("HSET", r.Keys.Meta, member, `{"id":"t","for":"g","attempt":"2","error":"boom"}`)
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(far(2).UnixMilli()), member)
	r.Do("XADD", r.Keys.Stream, "*", "id", "p", "payload", "red", "attempt", "1", "due_ms", "1", "for", "g")
	r.Take("g", "worker", 1)
	r.Do("XADD", r.Keys.Stream, "*", "id", "r", "payload", "red", "attempt", "1", "due_ms", "1", "for", "g")
	r.Do("XADD", r.Keys.Dead, "*", "id", "d", "payload", "red", "attempt", "1", "group", "g", "reason", "max_attempts",
		"error", "boom", "dead_ms", "1700000000000", "entry", "5-1")
}

// places returns "state id" of everything in the queue, sorted; with the due times of the schedule.
func (r *actRig) places() string {
	r.T.Helper()
	var all []string
	_, err := r.Search(r.T.Context(), admin.SearchFilter{Queues: []string{r.Queue}}, admin.SearchOptions{Load: 1},
		func(h admin.Hit) error {
			text := fmt.Sprint(h.State, " ", h.ID)
			if h.State == admin.StateScheduled || h.State == admin.StateRetrying {
				text += fmt.Sprint("@", h.Due.UnixMilli())
			}
			if h.Cancelled {
				text += " cancelled"
			}
			all = append(all, text)
			return nil
		})
	if err != nil {
		r.T.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// counts formats the counts of a result, and the error.
func counts(res admin.ActResult, err error) string {
	return fmt.Sprintf("changed %d unchanged %d gone %d refused %d unfit %d %v", res.Changed, res.Unchanged, res.Gone,
		res.Refused, res.Unfit, err)
}

// Each action must change the messages of the states to which it applies, and no others. A dry run must count the same
// and change nothing. A repeat must change nothing.
func TestActChangesWhatItAppliesTo(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		const s1, t2 = "scheduled s@4000000001000", "retrying t@4000000002000"
		for _, c := range []struct {
			action            admin.Action
			dry, first, again string
			places            string
		}{
			{
				admin.Action{Kind: admin.ActCancel},
				"changed 4 unchanged 0 gone 0 refused 0 unfit 1 <nil>", "changed 4 unchanged 0 gone 0 refused 0 unfit 1 <nil>",
				"changed 0 unchanged 1 gone 0 refused 0 unfit 1 <nil>", "dead d, pending p cancelled",
			},
			{
				admin.Action{Kind: admin.ActReschedule, At: far(9)},
				"changed 2 unchanged 0 gone 0 refused 0 unfit 3 <nil>", "changed 2 unchanged 0 gone 0 refused 0 unfit 3 <nil>",
				"changed 0 unchanged 2 gone 0 refused 0 unfit 3 <nil>",
				"dead d, pending p, ready r, retrying t@4000000009000, scheduled s@4000000009000",
			},
			{
				admin.Action{Kind: admin.ActPurge},
				"changed 1 unchanged 0 gone 0 refused 0 unfit 4 <nil>", "changed 1 unchanged 0 gone 0 refused 0 unfit 4 <nil>",
				"changed 0 unchanged 0 gone 0 refused 0 unfit 4 <nil>", "pending p, ready r, " + t2 + ", " + s1,
			},
		} {
			t.Run(string(c.action.Kind), func(t *testing.T) {
				r := newActRig(t, s)
				r.fill()
				f := admin.SearchFilter{Queues: []string{r.Queue}, Text: "red"}
				before := r.places()
				dry := admin.ActOptions{Load: 1, DryRun: true}
				redistest.Want(t, "dry run", counts(r.Act(t.Context(), f, c.action, dry)), c.dry)
				redistest.Want(t, "places after a dry run", r.places(), before)
				redistest.Want(t, "run", counts(r.Act(t.Context(), f, c.action, admin.ActOptions{Load: 1})), c.first)
				redistest.Want(t, "places", r.places(), c.places)
				redistest.Want(t, "repeat", counts(r.Act(t.Context(), f, c.action, admin.ActOptions{Load: 1})), c.again)
				redistest.Want(t, "places after a repeat", r.places(), c.places)
			})
		}
	})
}

// Expired messages must become dead letters of reason expired; redriven letters must be scheduled again. Neither may
// change anything else.
func TestActExpiresAndRedrives(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newActRig(t, s)
		r.fill()
		r.Do("XADD", r.Keys.Dead, "*", "id", "lost", "attempt", "1", "group", "g", "reason", "body_lost", "entry", "5-2")
		f := admin.SearchFilter{Queues: []string{r.Queue}}
		redrive := admin.Action{Kind: admin.ActRedrive, Delay: time.Hour}
		const want = "changed 1 unchanged 0 gone 0 refused 1 unfit 4 <nil>" // the lost body is refused
		dry := admin.ActOptions{Load: 1, DryRun: true}
		redistest.Want(t, "dry redrive", counts(r.Act(t.Context(), f, redrive, dry)), want)
		redistest.Want(t, "redrive", counts(r.Act(t.Context(), f, redrive, admin.ActOptions{Load: 1})), want)
		f.Text = "red"
		expire := admin.Action{Kind: admin.ActExpire}
		redistest.Want(t, "dry expiry", counts(r.Act(t.Context(), f, expire, dry)),
			"changed 3 unchanged 0 gone 0 refused 0 unfit 2 <nil>")
		redistest.Want(t, "expiry", counts(r.Act(t.Context(), f, expire, admin.ActOptions{Load: 1})),
			"changed 3 unchanged 0 gone 0 refused 0 unfit 2 <nil>")
		r.DrainAll()
		var reasons []string
		for letter, err := range r.DeadLetters().List(t.Context(), r.Queue, admin.LetterFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			reasons = append(reasons, letter.ID+" "+letter.Reason)
		}
		slices.Sort(reasons)
		redistest.Want(t, "dead letters", strings.Join(reasons, ", "), "d expired, lost body_lost, s expired, t expired")
	})
}

// ActOn must change the chosen hits and nothing else, and count as gone those that are not there any more.
func TestActOnChangesChosenHits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		for _, c := range []struct {
			action              admin.Action
			first, again, other string
		}{
			{admin.Action{Kind: admin.ActCancel}, "changed 4 unchanged 0 gone 0 refused 0 unfit 1 <nil>",
				"changed 0 unchanged 1 gone 3 refused 0 unfit 1 <nil>",
				"dead d, dead other, pending p cancelled, scheduled other@"},
			{admin.Action{Kind: admin.ActExpire}, "changed 2 unchanged 0 gone 0 refused 0 unfit 3 <nil>",
				"changed 0 unchanged 2 gone 0 refused 0 unfit 3 <nil>",
				"dead d, dead other, pending p, ready r, retrying t@"},
			{admin.Action{Kind: admin.ActRedrive, Delay: time.Hour}, "changed 1 unchanged 0 gone 0 refused 0 unfit 4 <nil>",
				"changed 0 unchanged 0 gone 1 refused 0 unfit 4 <nil>", "dead other, pending p, ready r, retrying d@"},
			{admin.Action{Kind: admin.ActPurge}, "changed 1 unchanged 0 gone 0 refused 0 unfit 4 <nil>",
				"changed 0 unchanged 0 gone 1 refused 0 unfit 4 <nil>", "dead other, pending p, ready r, retrying t@"},
		} {
			t.Run(string(c.action.Kind), func(t *testing.T) {
				r := newActRig(t, s)
				r.fill()
				var hits []admin.Hit
				f := admin.SearchFilter{Queues: []string{r.Queue}}
				_, err := r.Search(t.Context(), f, admin.SearchOptions{}, func(h admin.Hit) error {
					hits = append(hits, throughJSON(t, h))
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				r.Enqueue(lua.Item{ID: "other", When: lua.At(far(3)), Payload: []byte("red")})
				r.DeadIn(0, 1_900_000_000_000, "other")
				before := r.places()
				dry := admin.ActOptions{DryRun: true}
				redistest.Want(t, "dry run", counts(r.ActOn(t.Context(), hits, c.action, dry)), c.first)
				redistest.Want(t, "places after a dry run", r.places(), before)
				redistest.Want(t, "run", counts(r.ActOn(t.Context(), hits, c.action, admin.ActOptions{})), c.first)
				places := r.places()
				if !strings.HasPrefix(places, c.other) {
					t.Errorf("places: %s, want %s", places, c.other)
				}
				redistest.Want(t, "dry repeat", counts(r.ActOn(t.Context(), hits, c.action, dry)), c.again)
				redistest.Want(t, "repeat", counts(r.ActOn(t.Context(), hits, c.action, admin.ActOptions{})), c.again)
				redistest.Want(t, "places after a repeat", r.places(), places)
			})
		}
	})
}

// throughJSON returns a hit as it comes back from a browser.
func throughJSON(t *testing.T, h admin.Hit) (back admin.Hit) {
	t.Helper()
	text, err := json.Marshal(h)
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil {
		t.Fatal(err)
	}
	return back
}

// An entry that another group needs must not be cancelled for one group. Without a group it is cancelled for all.
func TestActCancelsAnEntryForAGroup(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newActRig(t, s)
		r.Groups("g", "h")
		r.Ready("both", "half")
		r.Xack("h", r.Take("h", "c", 2)[1])
		f := admin.SearchFilter{Queues: []string{r.Queue}, Group: "g"}
		cancel := admin.Action{Kind: admin.ActCancel}
		const want = "changed 1 unchanged 0 gone 0 refused 1 unfit 0 <nil>"
		dry := admin.ActOptions{Load: 1, DryRun: true}
		redistest.Want(t, "dry run", counts(r.Act(t.Context(), f, cancel, dry)), want)
		redistest.Want(t, "run", counts(r.Act(t.Context(), f, cancel, admin.ActOptions{Load: 1})), want)
		redistest.Want(t, "places", r.places(), "pending both, ready both")
		f.Group = ""
		redistest.Want(t, "for all", counts(r.Act(t.Context(), f, cancel, admin.ActOptions{Load: 1})),
			"changed 2 unchanged 0 gone 0 refused 0 unfit 0 <nil>")
		redistest.Want(t, "entries", r.Length(r.Keys.Stream), int64(0))
	})
}

// A fault must be refused before Redis is touched, with its field, value and rule.
func TestActRefusesFaults(t *testing.T) {
	a, err := admin.New(&bridge.Redis{Client: untouchable{}}, "p")
	if err != nil {
		t.Fatal(err)
	}
	hit := admin.Hit{Queue: "q", State: admin.StateScheduled, ID: "m"}
	for _, c := range []struct {
		action  admin.Action
		options admin.ActOptions
		hit     admin.Hit
		want    string
	}{
		{admin.Action{Kind: "drop"}, admin.ActOptions{}, hit, `action "drop": must be one of [cancel reschedule`},
		{admin.Action{Kind: admin.ActPurge, Delay: 1}, admin.ActOptions{}, hit, `delay "1ns": must be zero for purge`},
		{admin.Action{Kind: admin.ActCancel, Spread: 1e9}, admin.ActOptions{}, hit, `spread "1s": must be zero for cancel`},
		{admin.Action{Kind: admin.ActExpire, To: "g"}, admin.ActOptions{}, hit, `to "g": must be empty for expire`},
		{admin.Action{Kind: admin.ActRedrive, To: "\n"}, admin.ActOptions{}, hit, `group "\n": must not hold control`},
		{admin.Action{Kind: admin.ActRedrive, At: far(1).UTC()}, admin.ActOptions{}, hit,
			`at "2096-10-02T07:06:41Z": must be zero for redrive`},
		{admin.Action{Kind: admin.ActReschedule, At: far(1), Delay: 1e9}, admin.ActOptions{}, hit,
			`delay "1s": must be zero when a point in time is given`},
		{admin.Action{Kind: admin.ActReschedule, At: time.Unix(5, 0)}, admin.ActOptions{}, hit, `must be between 2001-09-09`},
		{admin.Action{Kind: admin.ActReschedule, Delay: -1}, admin.ActOptions{}, hit, `delay "-1ns": must be between 0`},
		{admin.Action{Kind: admin.ActCancel}, admin.ActOptions{Rate: -1}, hit, `rate "-1": must be a number of messages`},
		{admin.Action{Kind: admin.ActCancel}, admin.ActOptions{Rate: math.NaN()}, hit, `rate "NaN": must be a number`},
		{admin.Action{Kind: admin.ActCancel}, admin.ActOptions{Rate: math.Inf(1)}, hit, `rate "+Inf": must be a number`},
		{admin.Action{Kind: admin.ActCancel}, admin.ActOptions{}, admin.Hit{State: "lost"}, `state "lost": must be one of`},
		{admin.Action{Kind: admin.ActCancel}, admin.ActOptions{}, admin.Hit{Queue: "q", State: admin.StateRetrying, ID: "m",
			Group: "g"}, `member "": must be the name of m in the schedule`},
		{admin.Action{Kind: admin.ActCancel}, admin.ActOptions{}, admin.Hit{Queue: "q", State: admin.StateScheduled, ID: "m",
			Partition: 256}, `partition "256": must be between 0 and 255`},
		{admin.Action{Kind: admin.ActCancel}, admin.ActOptions{}, admin.Hit{Queue: "q", State: admin.StateReady, ID: "m"},
			`entry "": must be <milliseconds>-<sequence>`},
		{admin.Action{Kind: admin.ActCancel}, admin.ActOptions{}, admin.Hit{Queue: "q", State: admin.StatePending, ID: "m",
			Entry: "1-1"}, `group "": must not be empty`},
		{admin.Action{Kind: admin.ActPurge}, admin.ActOptions{}, admin.Hit{Queue: "q", State: admin.StateDead, ID: "m",
			Letter: "x/1-1"}, `letter "x/1-1": must be`},
	} {
		_, err := a.ActOn(t.Context(), []admin.Hit{c.hit}, c.action, c.options)
		if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
	long := admin.SearchFilter{Text: strings.Repeat("x", 257)}
	_, err = a.Act(t.Context(), long, admin.Action{}, admin.ActOptions{Load: 2})
	for _, want := range []string{"must be at most 256 bytes", `load "2"`, `action ""`} {
		if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// untouchable is a client whose calls panic.
type untouchable struct{ rueidis.Client }

// The rate must hold over all queues, states and kinds of keys together.
func TestActKeepsItsRateOverAllQueues(t *testing.T) {
	t.Parallel()
	r := newActRig(t, redistest.Shared(t))
	var queues []string
	for i := range 4 {
		queue := r.On(fmt.Sprint(r.Queue, "-", i))
		queue.Groups("g")
		queue.Ready("r")
		queue.Enqueue(lua.Item{ID: "s", When: lua.At(far(1)), Payload: []byte("red")})
		queues = append(queues, queue.Queue)
	}
	began := time.Now()
	f := admin.SearchFilter{Queues: queues}
	res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, admin.ActOptions{Load: 1, Rate: 10})
	redistest.Want(t, "result", counts(res, err), "changed 8 unchanged 0 gone 0 refused 0 unfit 0 <nil>")
	if took := time.Since(began); took < 650*time.Millisecond { // 7 messages wait 100 ms each; it is never faster
		t.Errorf("8 messages at 10 per second took %s", took)
	}
}

// An observer must learn of each message that an action cancels, in whatever state it was, and of each letter.
func TestActReportsToTheObserver(t *testing.T) {
	t.Parallel()
	r := newActRig(t, redistest.Shared(t))
	r.fill()
	counter := &eventCounter{counts: map[bridge.Event]int{}}
	a := r.Observed(counter)
	f := admin.SearchFilter{Queues: []string{r.Queue}}
	for _, what := range []admin.Action{{Kind: admin.ActCancel}, {Kind: admin.ActRedrive, Delay: time.Hour}} {
		for _, dry := range []bool{true, false} {
			if _, err := a.Act(t.Context(), f, what, admin.ActOptions{Load: 1, DryRun: dry}); err != nil {
				t.Fatal(err)
			}
		}
	}
	redistest.Want(t, "cancelled", counter.counts[bridge.EventCancelled], 4)
	redistest.Want(t, "redriven", counter.counts[bridge.EventRedriven], 1)
}

// eventCounter is an observer that counts events.
type eventCounter struct {
	mu     sync.Mutex
	counts map[bridge.Event]int
}

func (c *eventCounter) Series(bridge.Part, string, string) bridge.Series { return c }
func (c *eventCounter) Call(string, time.Duration, error)                {}
func (c *eventCounter) BridgeStarted(bridge.BridgeView) func()           { return nil }
func (c *eventCounter) AddTimed(e bridge.Event, n int, _ time.Duration)  { c.Add(e, n) }
func (c *eventCounter) AddSized(e bridge.Event, n, _ int)                { c.Add(e, n) }
func (c *eventCounter) Add(e bridge.Event, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[e] += n
}

// Beside an older bridge, a dry run of a cancellation must be refused as the run itself is.
func TestADryRunIsRefusedBesideAnOlderBridge(t *testing.T) {
	t.Parallel()
	r := newActRig(t, redistest.Shared(t))
	r.fill()
	const old = "01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v1.2.3"
	r.Do("ZADD", lua.NewGlobals(r.Prefix).Bridges, fmt.Sprint(time.Now().UnixMilli()), old)
	f := admin.SearchFilter{Queues: []string{r.Queue}}
	for _, dry := range []bool{true, false} {
		res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, admin.ActOptions{DryRun: dry})
		if !errors.Is(err, bridge.ErrOldBridge) || res.Changed != 0 {
			t.Errorf("dry run %t: %+v, %v", dry, res, err)
		}
	}
}

// A dry run must count every message that matches, also one that became ready after the beginning: else its numbers do
// not add up. The result must say where the changes are, and in which states the others are.
func TestTheNumbersOfADryRunAddUp(t *testing.T) {
	t.Parallel()
	r := newActRig(t, redistest.Shared(t))
	r.fill()
	r.Do("XADD", r.Keys.Stream, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli(), "-1"), "id", "new", "payload", "x",
		"attempt", "1", "due_ms", "1000")
	f := admin.SearchFilter{Queues: []string{r.Queue}}
	res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActReschedule, At: far(9)}, admin.ActOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "found", res.Found, res.Changed+res.Unchanged+res.Gone+res.Refused+res.Unfit)
	redistest.Want(t, "changed in", fmt.Sprint(res.ChangedIn), fmt.Sprintf("map[%s:2]", r.Queue))
	redistest.Want(t, "unfit in", fmt.Sprint(res.UnfitIn), "map[dead:1 pending:1 ready:2]")
}

// A key must select in each state. A message that got another key since it was found must be left alone.
func TestActByKey(t *testing.T) {
	t.Parallel()
	r := newActRig(t, redistest.Shared(t))
	for id, key := range map[string]string{"mine": "c-7", "changes": "c-7", "other": "c-70"} {
		r.Enqueue(lua.Item{ID: id, When: lua.At(far(5)), Meta: fmt.Sprintf(`{"key":%q}`, key)})
	}
	f := admin.SearchFilter{Queues: []string{r.Queue}, Key: "c-7"}
	found := false
	o := admin.ActOptions{Load: 1, Progress: func(res admin.ActResult) {
		if res.Found == 2 && !found { // the hits wait for their batch
			found = true
			r.Do("HSET", r.Keys.Meta, "changes", `{"key":"c-8"}`)
		}
	}}
	res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActReschedule, At: far(9)}, o)
	want := "changed 1 unchanged 0 gone 1 refused 0 unfit 0 <nil>"
	redistest.Want(t, "outcome", counts(res, err), want)
}
