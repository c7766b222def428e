package deadletter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/keeper"
)

// A redriven message must come back to its group only, with its data, from attempt 1, and without its old expiry.
func TestRedriveSchedulesALetterForItsGroupFromAttemptOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("g")
		r.Enqueue(lua.Item{
			ID: "a", When: lua.After(0), Payload: []byte("p\x00\xff"),
			Meta: lua.EncodeMeta(map[string]string{"kind": "k"}, 4, time.Now().Add(time.Hour)),
		})
		ids := r.Take("g", "c", 1)
		if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", policy.Default().Attempts(), []lua.Failure{{
			Held: lua.Held{Entry: ids[0]}, Action: lua.ActionDead, Delay: -1, Reason: lua.ReasonDeadLetter, Error: "e",
		}}); err != nil {
			t.Fatal(err)
		}
		letter := r.letters()[0]
		redistest.Want(t, "expiry of the letter", letter.Expires.IsZero(), false)
		got, err := r.deadLetters().Redrive(t.Context(), r.Queue, []string{letter.Letter, "1-1"}, RedriveOptions{})
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "result", fmt.Sprint(got), fmt.Sprint(RedriveResult{Scheduled: 1, Gone: 1}))
		entries := r.Next("g")
		if len(entries) != 1 {
			t.Fatalf("%d entries", len(entries))
		}
		e := entries[0]
		redistest.Want(t, "id", e.ID, "a")
		redistest.Want(t, "payload", string(e.Payload), "p\x00\xff")
		redistest.Want(t, "attempt", e.Attempt, 1)
		redistest.Want(t, "for", e.For, "g")
		redistest.Want(t, "header", e.Headers["kind"], "k")
		redistest.Want(t, "max attempts", e.MaxAttempts, 4)
		redistest.Want(t, "expires", e.Expires.IsZero(), true)
		redistest.Want(t, "letters left", len(r.letters()), 0)

		got, err = r.deadLetters().Redrive(t.Context(), r.Queue, []string{letter.Letter}, RedriveOptions{})
		redistest.Want(t, "again", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Gone: 1}, nil))
	})
}

// A redrive of many letters takes several calls, and must report its progress after each.
func TestRedriveOfAllReportsProgress(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var ids []string
	for i := range 450 {
		ids = append(ids, fmt.Sprint("d-", i))
	}
	r.Kill("g", lua.ReasonDeadLetter, "broken", ids...)
	var steps []string
	got, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{
		Delay: time.Hour, Progress: func(done, total int) { steps = append(steps, fmt.Sprint(done, "/", total)) },
	})
	redistest.Want(t, "result", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 450}, nil))
	redistest.Want(t, "progress", strings.Join(steps, " "), "100/450 200/450 300/450 400/450 450/450")
	redistest.Want(t, "scheduled", r.Number("ZCARD", r.Keys.Due), int64(450))
	first, err := r.Client.Do(t.Context(),
		r.Client.B().Zrange().Key(r.Keys.Due).Min("0").Max("0").Withscores().Build()).AsZScores()
	if err != nil || time.Until(view.ScoreTime(first[0].Score)) < 50*time.Minute {
		t.Errorf("delay: %v, %v", first, err)
	}
}

// A redrive must take only the letters that match, and no letter that is added during the redrive: messages that fail
// again at once would keep it running for ever. A dry run must change nothing.
func TestRedriveByFilterTouchesOnlyWhatMatchesAndWasThereAtTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Kill("mail", lua.ReasonDeadLetter, "no such user", "a-1", "a-2", "b-1")
	r.Kill("sms", lua.ReasonDeadLetter, "no such user", "a-3")
	f := Filter{Group: "mail", ID: "a-*", ErrorText: "user"}
	got, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, f, RedriveOptions{DryRun: true})
	redistest.Want(t, "dry run", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 2}, nil))
	redistest.Want(t, "nothing happened", len(r.letters()), 4)
	redistest.Want(t, "nothing scheduled", r.Number("ZCARD", r.Keys.Due), int64(0))

	got, err = r.deadLetters().RedriveMatching(t.Context(), r.Queue, f, RedriveOptions{
		Rate: 20, // with this rate a call takes two letters, so the letter below is added during the redrive
		Progress: func(int, int) {
			r.Do("XADD", r.Keys.Dead, "*", "id", "a-9", "payload", "p", "group", "mail", "error", "no such user")
		},
	})
	redistest.Want(t, "result", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 2}, nil))
	var left []string
	for _, l := range r.letters() {
		left = append(left, l.ID)
	}
	redistest.Want(t, "letters left", fmt.Sprint(left), "[b-1 a-3 a-9]")
}

// A redrive must not exceed its rate, and must end soon when its context is cancelled while it waits for the rate.
func TestRedriveKeepsTheRate(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Kill("g", lua.ReasonDeadLetter, "broken", "a", "b", "c", "d", "e", "f")
	start, calls := time.Now(), 0
	got, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{Rate: 20, Delay: time.Hour,
		Progress: func(int, int) { calls++ }})
	redistest.Want(t, "result", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 6}, nil))
	if took := time.Since(start); took < 180*time.Millisecond || calls != 3 { // three calls of two, 100 ms apart
		t.Errorf("6 letters at 20 per second took %s in %d calls", took, calls)
	}

	r.Kill("g", lua.ReasonDeadLetter, "broken", "u", "v", "w")
	ctx, cancel := context.WithCancel(t.Context())
	got, err = r.deadLetters().RedriveMatching(ctx, r.Queue, Filter{},
		RedriveOptions{Rate: 0.01, Progress: func(int, int) { cancel() }})
	if !errors.Is(err, context.Canceled) || got.Scheduled != 1 {
		t.Errorf("cancelled: %+v, %v", got, err)
	}
	redistest.Want(t, "left", len(r.letters()), 2)
}

// If a redrive or a purge is interrupted, the current call must finish, so that the result counts exactly what was
// done.
func TestRedriveThatIsInterruptedCountsWhatItDid(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var ids []string
	for i := range 450 {
		ids = append(ids, fmt.Sprint("d-", i))
	}
	r.Kill("g", lua.ReasonDeadLetter, "broken", ids...)
	ctx, cancel := context.WithCancel(t.Context())
	got, err := r.deadLetters().RedriveMatching(ctx, r.Queue, Filter{},
		RedriveOptions{Delay: time.Hour, Progress: func(done, _ int) {
			if done == 200 {
				cancel()
			}
		}})
	if !errors.Is(err, context.Canceled) || got.Scheduled != 200 {
		t.Errorf("%+v, %v", got, err)
	}
	redistest.Want(t, "scheduled", r.Number("ZCARD", r.Keys.Due), int64(200))
	redistest.Want(t, "letters left", len(r.letters()), 250)
	rest, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{Delay: time.Hour})
	redistest.Want(t, "the rest", fmt.Sprint(rest, err), fmt.Sprint(RedriveResult{Scheduled: 250}, nil))
	redistest.Want(t, "all", r.Number("ZCARD", r.Keys.Due), int64(450))

	r.Kill("g", lua.ReasonDeadLetter, "broken", append(ids, ids...)...)
	ctx, cancel = context.WithCancel(t.Context())
	purged, err := r.deadLetters().PurgeProgress(ctx, r.Queue, Filter{Group: "g"}, func(int) { cancel() })
	if !errors.Is(err, context.Canceled) || purged != 500 {
		t.Errorf("purged %d, %v", purged, err)
	}
	redistest.Want(t, "not purged", len(r.letters()), 400)
}

// With Spread, the delays must be spread over the whole time after Delay.
func TestSpreadIsOverTheWholeTime(t *testing.T) {
	o := RedriveOptions{Delay: time.Minute, Spread: time.Hour}
	least, most := o.delay(), o.delay()
	for range 1000 {
		d := o.delay()
		least, most = min(least, d), max(most, d)
	}
	if least < time.Minute || least > 5*time.Minute || most < 56*time.Minute || most >= 61*time.Minute {
		t.Errorf("from %s to %s", least, most)
	}
	redistest.Want(t, "delay without a spread", RedriveOptions{Delay: time.Minute}.delay(), time.Minute)
}

// A redrive may change the payload, the headers, the attempts and the expiry of a message. Everything else must stay,
// also fields of other programs.
func TestRedriveEdits(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	addLetter := func() string {
		r.Do("XADD", r.Keys.Dead, "*", "id", "a", "payload", "old", "h:keep", "1", "max_attempts", "7", "group", "g",
			"colour", "green")
		all := r.letters()
		return all[len(all)-1].Letter
	}
	redrive := func(o RedriveOptions) lua.Entry {
		t.Helper()
		got, err := r.deadLetters().Redrive(t.Context(), r.Queue, []string{addLetter()}, o)
		redistest.Want(t, "result", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 1}, nil))
		entries := r.Next("g")
		if len(entries) != 1 {
			t.Fatalf("%d entries", len(entries))
		}
		return entries[0]
	}
	e := redrive(RedriveOptions{Payload: new([]byte("new"))})
	redistest.Want(t, "payload", string(e.Payload), "new")
	redistest.Want(t, "headers", fmt.Sprint(e.Headers), "map[keep:1]")

	e = redrive(RedriveOptions{Payload: new([]byte{})})
	redistest.Want(t, "empty payload", string(e.Payload), "")

	e = redrive(RedriveOptions{Headers: new(map[string]string{"other": "2"})})
	redistest.Want(t, "payload", string(e.Payload), "old")
	redistest.Want(t, "headers", fmt.Sprint(e.Headers), "map[other:2]")
	redistest.Want(t, "max attempts are kept", e.MaxAttempts, 7)
	redistest.Want(t, "fields nobody knows are kept", e.Extra["colour"], "green")

	e = redrive(RedriveOptions{Headers: new(map[string]string{})})
	redistest.Want(t, "no headers", fmt.Sprint(e.Headers), "map[]")

	expires := time.UnixMilli(4_000_000_000_000)
	e = redrive(RedriveOptions{MaxAttempts: 3, Expires: expires})
	redistest.Want(t, "headers are kept", e.Headers["keep"], "1")
	redistest.Want(t, "max attempts", e.MaxAttempts, 3)
	redistest.Want(t, "expires", e.Expires.UTC(), expires.UTC())
	redistest.Want(t, "fields nobody knows are kept", e.Extra["colour"], "green")
	_, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{MaxAttempts: -1})
	redistest.Want(t, "negative", errors.Is(err, lua.ErrInvalid), true)

	r.Do("XADD", r.Keys.Dead, "*", "id", "a", "payload", "old", "h:keep", "\xff", "group", "g")
	for _, dry := range []bool{true, false} {
		o := RedriveOptions{MaxAttempts: 3, DryRun: dry}
		got, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, o)
		redistest.Want(t, "headers that are no text", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Unreadable: 1}, nil))
	}
}

// The letter of an entry that somebody deleted has no payload, so a redrive must refuse it unless it gets a payload.
func TestRedriveOfALostBodyNeedsAPayload(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("a")
	ids := r.Take("g", "c", 1)
	r.Age("g", "c", ids...)
	r.Do("XDEL", r.Keys.Stream, ids[0])
	reclaimer := keeper.NewReclaimer(keeper.ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue})
	if got, err := reclaimer.Reclaim(t.Context()); err != nil || got.Dead != 1 {
		t.Fatal(got, err)
	}
	dry, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{DryRun: true})
	redistest.Want(t, "dry run", fmt.Sprint(dry, err), fmt.Sprint(RedriveResult{NoPayload: 1}, nil))
	got, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{})
	redistest.Want(t, "without a payload", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{NoPayload: 1}, nil))
	redistest.Want(t, "still there", len(r.letters()), 1)
	got, err = r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{Payload: new([]byte("p"))})
	redistest.Want(t, "with a payload", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 1}, nil))
	entries := r.Next("g")
	redistest.Want(t, "delivered", len(entries), 1)
}

// Regression: a redriven message kept its expiry. If it had died because it expired, it became a dead letter again at
// once.
func TestRedriveOfAnExpiredMessageIsDelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("one", "two")
	r.Enqueue(lua.Item{ID: "a", When: lua.After(time.Millisecond), Payload: []byte("p"),
		Meta: lua.EncodeMeta(nil, 0, time.UnixMilli(1000))})
	r.DrainAll()
	letters := r.letters()
	if len(letters) != 1 || letters[0].Reason != lua.ReasonExpired || letters[0].Group != "" {
		t.Fatalf("letters %+v", letters)
	}
	got, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{Reason: lua.ReasonExpired}, RedriveOptions{})
	redistest.Want(t, "result", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 1}, nil))
	for _, g := range []string{"one", "two"} { // the letter has no group, so all groups get the message
		entries := r.Next(g)
		if len(entries) != 1 || entries[0].ID != "a" || entries[0].For != "" {
			t.Errorf("group %s: %+v", g, entries)
		}
	}
	redistest.Want(t, "letters", len(r.letters()), 0)
}

// Invalid options, or one invalid letter ID, must be refused before any letter is redriven.
func TestRedriveIsRefusedBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Kill("g", lua.ReasonDeadLetter, "broken", "a")
	_, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{
		Payload: new(make([]byte, lua.MaxPayloadBytes+1)), Headers: new(map[string]string{"": "x"}), Delay: -1,
		Rate: math.NaN(),
	})
	for _, part := range []string{"payload", "header", "delay", "rate"} {
		if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	if _, err := r.deadLetters().Redrive(t.Context(), r.Queue, []string{r.letters()[0].Letter, "nonsense"},
		RedriveOptions{}); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("letter ID: %v", err)
	}
	redistest.Want(t, "letters", len(r.letters()), 1)
}

// A purge must delete exactly the letters that are named or match, and count them.
func TestPurge(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		d := r.deadLetters()
		var ids []string
		for i := range 1200 {
			ids = append(ids, fmt.Sprint("d-", i))
		}
		r.Kill("g", lua.ReasonDeadLetter, "broken", ids...)
		r.Kill("h", lua.ReasonDeadLetter, "broken", "h-1", "h-2")
		all := r.letters()

		n, err := d.Purge(t.Context(), r.Queue, []string{all[0].Letter, all[1].Letter, all[1].Letter, "1-1"})
		redistest.Want(t, "by ID", fmt.Sprint(n, err), "2 <nil>")
		if _, err := d.Purge(t.Context(), r.Queue, []string{all[2].Letter, "x"}); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("nonsense: %v", err)
		}
		n, err = d.PurgeProgress(t.Context(), r.Queue, Filter{ID: "d-*", Limit: 598}, func(int) {})
		redistest.Want(t, "by filter", fmt.Sprint(n, err), "598 <nil>")
		n, err = d.PurgeProgress(t.Context(), r.Queue, Filter{OlderThan: time.Hour}, func(int) {})
		redistest.Want(t, "old ones", fmt.Sprint(n, err), "0 <nil>")
		r.Do("XADD", r.Keys.Dead, fmt.Sprint(lua.EntryTime(all[len(all)-1].Letter).Add(time.Hour).UnixMilli(), "-7"), "id",
			"later")
		n, err = d.PurgeProgress(t.Context(), r.Queue, Filter{OlderThan: time.Nanosecond}, func(int) {})
		redistest.Want(t, "all but the latest", fmt.Sprint(n, err), "602 <nil>")
		n, err = d.PurgeProgress(t.Context(), r.Queue, Filter{}, func(int) {})
		redistest.Want(t, "all", fmt.Sprint(n, err), "1 <nil>")
		n, err = d.PurgeProgress(t.Context(), r.Queue, Filter{}, func(int) {})
		redistest.Want(t, "none", fmt.Sprint(n, err), "0 <nil>")
	})
}

// nextEntryID must return the smallest entry ID behind the given one, because the next page of a listing begins there.
func TestFollowing(t *testing.T) {
	for id, expected := range map[string]string{"5-3": "5-4", "5-0": "5-1", "5": "6-0", "5-18446744073709551615": "6-0"} {
		got, err := nextEntryID(id)
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, id, got, expected)
	}
}

// If a redrive and a purge run at once, each letter must be either redriven or purged, not both and not neither.
func TestRedriveRacingPurgeIsWonByOneSide(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var ids []string
	for i := range 1000 {
		ids = append(ids, fmt.Sprint("d-", i))
	}
	r.Kill("g", lua.ReasonDeadLetter, "broken", ids...)
	d, letters := r.deadLetters(), r.letters()
	var redriven RedriveResult
	var purged int
	var failed [2]error
	var both sync.WaitGroup
	both.Go(func() {
		redriven, failed[0] = d.RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{Delay: time.Hour})
	})
	both.Go(func() {
		// The purge begins with the newest letter, the redrive with the oldest.
		for i := len(letters) - 1; i >= 0 && failed[1] == nil; i -= 10 {
			var batch []string
			for _, l := range letters[max(0, i-9) : i+1] {
				batch = append(batch, l.Letter)
			}
			var n int
			n, failed[1] = d.Purge(t.Context(), r.Queue, batch)
			purged += n
		}
	})
	both.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		t.Fatal(err)
	}
	t.Logf("redriven %d, purged %d, gone %d", redriven.Scheduled, purged, redriven.Gone)
	redistest.Want(t, "each letter once", redriven.Scheduled+purged, 1000)
	redistest.Want(t, "scheduled", r.Number("ZCARD", r.Keys.Due), int64(redriven.Scheduled))
	redistest.Want(t, "letters left after both", len(r.letters()), 0)
}

// A letter with an ordering key must go to the partition that the key has now. Regression: after a growth it went to
// the partition in which it had died, while other messages of its key went to another one.
func TestRedriveGoesWhereTheKeyBelongsNow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		counts := lua.Counts{1, 8}
		key := queuetest.IDOf(counts, 5)
		letter := func(at, id string, more ...string) {
			t.Helper()
			r.Do(append([]string{"XADD", r.Keys.Dead, at, "id", id, "payload", "p-" + id, "attempt", "3", "due_ms", "5",
				"group", "g", "entry", "1-1", "reason", "max_attempts", "dead_ms", "1000", "error", "boom"}, more...)...)
		}
		letter("1000-1", "keyed", "key", key, "h:tenant", "acme", "max_attempts", "4")
		letter("1000-2", "plain")
		letter("1000-3", "edited", "key", key)
		letter("1000-4", "other", "key", queuetest.IDOf(counts, 0))
		letter("1000-5", "foreign", "key", key, "group", "gone")
		r.grow(8)
		d := r.deadLetters()
		five := r.Part(5)
		dry, err := d.RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{DryRun: true})
		if err != nil || dry.Scheduled != 4 || dry.GroupGone != 1 {
			t.Errorf("dry run: %+v, %v", dry, err)
		}
		body := []byte("new")
		result, err := d.Redrive(t.Context(), r.Queue, []string{"1000-3"}, RedriveOptions{Payload: &body})
		if err != nil || result.Scheduled != 1 {
			t.Errorf("redrive with a payload: %+v, %v", result, err)
		}
		result, err = d.RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{})
		if err != nil || result.Scheduled != 3 || result.GroupGone != 1 {
			t.Errorf("redrive: %+v, %v", result, err)
		}
		redistest.Want(t, "scheduled in partition 0", r.Number("ZCARD", r.Keys.Due), int64(2))
		redistest.Want(t, "scheduled in partition 5", r.Number("ZCARD", five.Keys.Due), int64(2))
		redistest.Want(t, "dead", r.Number("XLEN", r.Keys.Dead), int64(1))
		if drained, err := lua.Drain(t.Context(), r.Client, five.Keys, 10, 1<<20); err != nil || drained.Moved != 1 {
			t.Fatalf("drain: %+v, %v", drained, err)
		}
		entries := queuetest.Entries(t, r.Client, r.Prefix, lua.PartitionName(r.Queue, 5))
		redistest.Want(t, "messages of the key that are ready at once", len(entries), 1)
		redistest.Want(t, "the first one", fmt.Sprint(entries[0].ID, " ", string(entries[0].Payload), " ", entries[0].For,
			entries[0].Attempt), "edited new g1")
	})
}

// A letter that is redriven into another partition keeps its progress if it keeps its payload. Progress belongs to a
// payload: with another one the work begins anew. The message asks for its result as before.
func TestProgressGoesWithALetterThatKeepsItsPayload(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.grow(8)
	for i, c := range []struct {
		field, value string
		edited       bool
		want         string
	}{
		{lua.FieldProgress, "page 7", false, "page 7"},
		{lua.FieldProgress, "page 7", true, ""},
		{"b64:progress", "/w==", false, "\xff"},
		{"b64:progress", "/w==", true, ""},
	} {
		id, key, part := fmt.Sprint("m", i), queuetest.IDOf(lua.Counts{1, 8}, i+1), r.Part(i+1)
		r.Do("XADD", r.Keys.Dead, fmt.Sprint("1000-", i+1), "id", id, "payload", "old", "attempt", "3", "due_ms", "5",
			"group", "g", "entry", "1-1", "reason", "max_attempts", "dead_ms", "1000", "key", key, c.field, c.value,
			lua.FieldResult, "60000")
		options, payload := RedriveOptions{}, "old"
		if c.edited {
			payload = "new"
			options.Payload = new([]byte(payload))
		}
		result, err := r.deadLetters().Redrive(t.Context(), r.Queue, []string{fmt.Sprint("1000-", i+1)}, options)
		if err != nil || result.Scheduled != 1 {
			t.Fatalf("redrive: %+v, %v", result, err)
		}
		again := part.Next("g")[0]
		redistest.Want(t, "message", again.ID+" "+string(again.Payload), id+" "+payload)
		redistest.Want(t, "age of the result", again.Extra[lua.FieldResult], "60000")
		redistest.Want(t, fmt.Sprintf("progress of %+v", c), string(again.TakeProgress()), c.want)
	}
}

// A redrive with a rate runs for hours. Regression: if the queue grew meanwhile, letters with an ordering key went into
// the partition that the key had when the redrive began, while new messages of the key went into another one.
func TestARedriveFollowsAGrowthThatHappensMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	key := queuetest.IDOf(lua.Counts{1, 8}, 5)
	for i := range 4 {
		r.Do("XADD", r.Keys.Dead, fmt.Sprint("1000-", i+1), "id", fmt.Sprint("m-", i), "payload", "p", "attempt", "3",
			"due_ms", "5", "group", "g", "entry", "1-1", "reason", "max_attempts", "dead_ms", "1000", "key", key)
	}
	grown := false
	result, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{
		Rate: 10, // with this rate a call takes one letter
		Progress: func(int, int) {
			if !grown {
				grown = true
				r.grow(8)
			}
		},
	})
	redistest.Want(t, "redriven", fmt.Sprintf("%+v %v", result, err),
		fmt.Sprintf("%+v %v", RedriveResult{Scheduled: 4}, nil))
	redistest.Want(t, "in partition 0", r.Number("ZCARD", r.Keys.Due), int64(1))
	redistest.Want(t, "in the partition of the key", r.Number("ZCARD", r.Part(5).Keys.Due), int64(3))
}

// A redrive may stop after it has added the message in the partition of its key, and before it has deleted the letter.
// A second redrive must then schedule nothing new, and delete the letter.
func TestRepeatedRedriveIntoAnotherPartitionSchedulesOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	counts := lua.Counts{1, 8}
	key := queuetest.IDOf(counts, 5)
	fields := []string{"id", "m", "payload", "p", "attempt", "3", "due_ms", "5", "key", key, "group", "g", "entry", "1-1",
		"reason", "max_attempts", "dead_ms", "1000"}
	r.grow(8)
	five, d := r.Part(5), r.deadLetters()
	for range 2 {
		// In the second round: as if the letter had not been deleted.
		r.Do(append([]string{"XADD", r.Keys.Dead, "1000-1"}, fields...)...)
		result, err := d.Redrive(t.Context(), r.Queue, []string{"1000-1"}, RedriveOptions{Delay: time.Hour})
		if err != nil || result.Scheduled != 1 {
			t.Errorf("redrive: %+v, %v", result, err)
		}
		redistest.Want(t, "dead", r.Number("XLEN", r.Keys.Dead), int64(0))
		redistest.Want(t, "scheduled", r.Number("ZCARD", five.Keys.Due), int64(1))
		r.Do("DEL", r.Keys.Dead)
	}
	member := r.Texts("ZRANGE", five.Keys.Due, "0", "0")[0]
	redistest.Want(t, "member", member, lua.Member{Kind: lua.MemberRedriven, ID: "m", Group: "g", Of: "1000-1"}.String())
	result, err := d.Redrive(t.Context(), r.Queue, []string{"1000-1"}, RedriveOptions{})
	if err != nil || result.Gone != 1 {
		t.Errorf("redrive of a letter that is gone: %+v, %v", result, err)
	}
}
