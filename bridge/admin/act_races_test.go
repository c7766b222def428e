package admin_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Letters that are added while an action runs, also those that the action itself brings back, must stay.
func TestActLeavesLettersThatCameLater(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		for _, kind := range []admin.ActionKind{admin.ActPurge, admin.ActRedrive} {
			t.Run(string(kind), func(t *testing.T) {
				r := newActRig(t, s)
				r.Groups("g")
				for i := range 600 {
					r.DeadIn(0, 1_700_000_000_000+i, fmt.Sprint("old-", i))
				}
				added := 0
				o := admin.ActOptions{Load: 1, Progress: func(admin.ActResult) {
					r.Do("XADD", r.Keys.Dead, "*", "id", fmt.Sprint("old-", added), "payload", "p", "attempt", "1", "group", "g",
						"reason", "dead_letter")
					added++
				}}
				f := admin.SearchFilter{Queues: []string{r.Queue}, States: []admin.State{admin.StateDead}}
				res, err := r.Act(t.Context(), f, admin.Action{Kind: kind, Delay: map[bool]time.Duration{
					true: time.Hour}[kind == admin.ActRedrive]}, o)
				redistest.Want(t, "result", counts(res, err), "changed 600 unchanged 0 gone 0 refused 0 unfit 0 <nil>")
				redistest.Want(t, "letters that stay", r.Length(r.Keys.Dead), int64(added))
			})
		}
	})
}

// Each message must be either cancelled or delivered, never both and never neither, while a bridge drains the queue.
func TestActRacesWithADrain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newActRig(t, s)
		r.Groups("g")
		const n = 3000
		var items []lua.Item
		for i := range n {
			items = append(items, lua.Item{ID: fmt.Sprint("m-", i), When: lua.After(time.Duration(i/10) * time.Millisecond),
				Payload: []byte("red")})
		}
		r.Enqueue(items...)
		ctx, stop := context.WithCancel(t.Context())
		var draining sync.WaitGroup
		draining.Go(func() {
			for ctx.Err() == nil {
				lua.Drain(ctx, r.Client, r.Keys, 50, 1<<20)
			}
		})
		f := admin.SearchFilter{Queues: []string{r.Queue}, Text: "red", States: []admin.State{admin.StateScheduled}}
		res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, admin.ActOptions{Load: 1})
		stop()
		draining.Wait()
		if err != nil {
			t.Fatal(err)
		}
		r.DrainAll()
		redistest.Want(t, "cancelled and ready", res.Changed+r.Length(r.Keys.Stream), int64(n))
		redistest.Want(t, "left in the schedule", r.Number("ZCARD", r.Keys.Due), int64(0))
	})
}

// Messages that become ready, run, fail and wait for a retry must be cancelled in the end, whatever state an action
// meets them in. What a worker finished or dead-lettered stays so, and nothing else is left.
func TestActCancelsWhatMoves(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newActRig(t, s)
		r.Groups("g")
		const n = 600
		for i := range n {
			due := lua.After(time.Duration(i) * time.Millisecond)
			r.Enqueue(lua.Item{ID: fmt.Sprint("m-", i), When: due, Payload: []byte("red")})
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { // a bridge
			for ctx.Err() == nil {
				lua.Drain(ctx, r.Client, r.Keys, 20, 1<<20)
			}
		})
		acked := int64(0)
		running.Go(func() { acked = r.workUntil(ctx) })
		cancelled, quiet := int64(0), 0
		f := admin.SearchFilter{Queues: []string{r.Queue}, Text: "red", States: admin.ActCancel.States()}
		for quiet < 3 { // a message that fails at this moment may be missed once
			res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, admin.ActOptions{Load: 1})
			if err != nil {
				t.Error(err)
				break
			}
			cancelled += res.Changed
			quiet++
			if res.Found > 0 {
				quiet = 0
			}
		}
		stop()
		running.Wait()
		redistest.Want(t, "scheduled", r.Number("ZCARD", r.Keys.Due), int64(0))
		redistest.Want(t, "pending", r.Rig.Pending("g"), int64(0))
		redistest.Want(t, "entries", r.Length(r.Keys.Stream), int64(0))
		dead := r.Length(r.Keys.Dead)
		if cancelled == 0 || acked+dead+cancelled < n { // one that was held when it was cancelled may be acknowledged
			t.Errorf("%d acknowledged, %d dead, %d cancelled", acked, dead, cancelled)
		}
	})
}

// workUntil reads entries for group g until ctx ends, and acknowledges, retries or dead-letters each. It returns how
// many it acknowledged.
func (r *actRig) workUntil(ctx context.Context) (acked int64) {
	alive := ctx
	ctx = context.WithoutCancel(ctx) // it settles what it reads
	for i := 0; alive.Err() == nil; {
		read := r.Client.B().Xreadgroup().Group("g", "c").Count(3).Streams().Key(r.Keys.Stream).Id(">").Build()
		streams, err := r.Client.Do(ctx, read).AsXReadSlices()
		if err != nil && !rueidis.IsRedisNil(err) {
			r.T.Error(err)
			return acked
		}
		for _, one := range streams[r.Keys.Stream] {
			held := lua.Held{Entry: one.ID, ID: lua.ParseEntry(one.ID, one.FieldValues).ID}
			switch i++; i % 4 {
			case 0:
				done, err := lua.Ack(ctx, r.Client, r.Keys, "g", []lua.Held{held})
				if err != nil {
					r.T.Error(err)
				} else if done[0] {
					acked++
				}
			default:
				failure := lua.Failure{Held: held, Action: lua.ActionRetry, Delay: time.Millisecond, Error: "boom"}
				if i%4 == 1 {
					failure.Action, failure.Reason = lua.ActionDead, lua.ReasonDeadLetter
				}
				attempts := bridge.DefaultPolicy().Attempts()
				if _, err := lua.Retry(ctx, r.Client, r.Keys, "g", attempts, []lua.Failure{failure}); err != nil {
					r.T.Error(err)
				}
			}
		}
	}
	return acked
}

// A message that does not match any more when its turn comes must stay, and be counted as gone.
func TestActLooksAgainBeforeAChange(t *testing.T) {
	t.Parallel()
	r := newActRig(t, redistest.Shared(t))
	for i := range 20 {
		r.Enqueue(lua.Item{ID: fmt.Sprint("m-", i), When: lua.At(far(i)), Payload: []byte("red")})
	}
	replaced := false
	o := admin.ActOptions{Load: 1, Rate: 100, Progress: func(res admin.ActResult) {
		if res.Changed == 0 || replaced {
			return
		}
		replaced = true
		for i := range 20 { // those that are cancelled already are not in the hash
			if r.Number("HEXISTS", r.Keys.Payload, fmt.Sprint("m-", i)) == 1 {
				r.Do("HSET", r.Keys.Payload, fmt.Sprint("m-", i), "blue")
			}
		}
	}}
	f := admin.SearchFilter{Queues: []string{r.Queue}, Text: "red"}
	res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, o)
	redistest.Want(t, "result", counts(res, err), "changed 10 unchanged 0 gone 10 refused 0 unfit 0 <nil>")
	redistest.Want(t, "left", r.Number("ZCARD", r.Keys.Due), int64(10))
}

// A scheduled message must be changed soon after it was found. It must not become ready while the search goes on
// through a stream in which nothing matches.
func TestActDoesNotKeepHitsUntilTheEnd(t *testing.T) {
	t.Parallel()
	r := newActRig(t, redistest.Shared(t))
	r.Groups("g")
	for i := range 3 {
		r.Enqueue(lua.Item{ID: fmt.Sprint("m-", i), When: lua.At(far(i)), Payload: []byte("red")})
	}
	for i := range 1000 {
		r.Ready(fmt.Sprint("r-", i))
	}
	early := false
	o := admin.ActOptions{Load: 0.002, Progress: func(res admin.ActResult) {
		early = early || res.Changed == 3 && res.Looked < res.Total
	}}
	f := admin.SearchFilter{Queues: []string{r.Queue}, Prefix: "m-"}
	res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, o)
	redistest.Want(t, "result", counts(res, err), "changed 3 unchanged 0 gone 0 refused 0 unfit 0 <nil>")
	redistest.Want(t, "changed before the search ended", early, true)
}

// If only ready messages are to be cancelled, one that a group has taken meanwhile must run on, and count as gone.
func TestActOnReadyMessagesStopsNothingThatRuns(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newActRig(t, s)
		r.Groups("g")
		for i := range 3 {
			r.Ready(fmt.Sprint("r-", i))
		}
		ready := []admin.State{admin.StateReady}
		var chosen []admin.Hit
		taken := false
		o := admin.ActOptions{Load: 1, Rate: 10, Progress: func(res admin.ActResult) {
			if res.Changed == 1 && !taken {
				taken = true
				r.Take("g", "worker", 2)
			}
		}}
		f := admin.SearchFilter{Queues: []string{r.Queue}, States: ready}
		if _, err := r.Search(t.Context(), f, admin.SearchOptions{}, func(h admin.Hit) error {
			chosen = append(chosen, h)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, o)
		redistest.Want(t, "result", counts(res, err), "changed 1 unchanged 0 gone 2 refused 0 unfit 0 <nil>")
		for _, dry := range []bool{true, false} {
			res, err = r.ActOn(t.Context(), chosen, admin.Action{Kind: admin.ActCancel}, admin.ActOptions{DryRun: dry})
			redistest.Want(t, "chosen hits", counts(res, err), "changed 0 unchanged 0 gone 3 refused 0 unfit 0 <nil>")
		}
		redistest.Want(t, "places", r.places(), "pending r-1, pending r-2")
	})
}

// A key of a wrong type in one queue must not keep an action from the other queues.
func TestActGoesOnBehindAQueueThatIsBroken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		for _, key := range []string{"stream", "due", "payload"} {
			r := newActRig(t, s)
			r.Groups("g")
			r.DeadIn(0, 1_700_000_000_000, "d")
			broken := lua.NewKeys(r.Prefix, "a-first")
			r.Do("XADD", broken.Dead, "*", "id", "x", "payload", "p", "group", "g", "reason", "expired")
			keys := map[string]string{"stream": broken.Stream, "due": broken.Due, "payload": broken.Payload}
			r.Do("SET", keys[key], "of another program")
			f := admin.SearchFilter{Queues: []string{"a-first", r.Queue}, States: []admin.State{admin.StateDead}}
			res, err := r.Act(t.Context(), f, admin.Action{Kind: admin.ActRedrive, Delay: time.Hour}, admin.ActOptions{Load: 1})
			redistest.Want(t, key+": changed", fmt.Sprint(res.Changed, res.Complete), "1 false")
			if !errors.Is(err, bridge.ErrWrongType) {
				t.Errorf("%s: %v", key, err)
			}
		}
	})
}

// When the context ends, the counts must be those of the changes that were made, and a repeat must do the rest.
func TestActCountsWhatItDidWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newActRig(t, s)
		r.Groups("g")
		const n = 900
		for i := range n / 3 {
			r.Enqueue(lua.Item{ID: fmt.Sprint("s-", i), When: lua.At(far(i)), Payload: []byte("red")})
			r.Ready(fmt.Sprint("r-", i))
			r.DeadIn(0, 1_700_000_000_000+i, fmt.Sprint("d-", i))
		}
		left := func() int64 {
			return r.Number("ZCARD", r.Keys.Due) + r.Length(r.Keys.Stream) + r.Length(r.Keys.Dead)
		}
		for _, kind := range []admin.ActionKind{admin.ActCancel, admin.ActPurge} {
			f := admin.SearchFilter{Queues: []string{r.Queue}}
			for { // ends when nothing is left to change
				before := left()
				ctx, cancel := context.WithCancel(t.Context())
				o := admin.ActOptions{Load: 1, Progress: func(res admin.ActResult) {
					if res.Changed > 0 {
						cancel()
					}
				}}
				res, err := r.Act(ctx, f, admin.Action{Kind: kind}, o)
				cancel()
				redistest.Want(t, "changes that were counted", res.Changed, before-left())
				if err == nil {
					break
				}
				if !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			}
		}
		redistest.Want(t, "left", left(), int64(0))
	})
}
