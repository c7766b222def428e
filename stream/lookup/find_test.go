package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
)

// find searches for a message, and checks that Seen was called once for each place.
func (r *rig) find(id string, queues ...string) (Finding, error) {
	r.T.Helper()
	seen := 0
	f, err := Find(r.T.Context(), r.Client, r.Prefix, id, FindOptions{Queues: queues, Seen: func(Sighting) { seen++ }})
	redistest.Want(r.T, "seen", seen, len(f.Places))
	return f, err
}

// states returns the places of a finding as a text, sorted: the state of each, and its group or groups.
func states(f Finding) string {
	var all []string
	for _, p := range f.Places {
		all = append(all, strings.TrimSpace(fmt.Sprint(p.State, " ", p.Group, strings.Join(sorted(p.Groups), ","))))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// historyOf returns the history of a finding as a text: for each event its name, attempt (0 = none) and group.
func historyOf(f Finding) string {
	var all []string
	for _, m := range f.History {
		all = append(all, strings.TrimSpace(fmt.Sprint(m.What, m.Attempt, " ", m.Group)))
	}
	return strings.Join(all, ", ")
}

// waitForPlaces waits until a search finds a message in exactly these places, as states writes them.
func (r *rig) waitForPlaces(id, want string) (f Finding) {
	r.T.Helper()
	redistest.Eventually(r.T, 20*time.Second, func() (bool, string) {
		var err error
		f, err = Find(r.T.Context(), r.Client, r.Prefix, id, FindOptions{Queues: []string{r.Queue}})
		return states(f) == want, fmt.Sprint(states(f), ", ", err)
	})
	return f
}

// Find must show where a message is and what has happened to it, at each step of its life: scheduled, ready, held,
// retried, dead, redriven, and gone.
func TestFindTellsTheLifeOfAMessage(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g", "idle")
		r.Policy(map[string]string{policy.SettingMaxAttempts: "2", policy.SettingRetryMin: "3600000",
			policy.SettingRetryMax: "3600000"})
		made := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
		id := ulid.MustNew(ulid.Timestamp(made), strings.NewReader(strings.Repeat("x", 16))).String()
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		r.Enqueue(lua.Item{ID: id, When: lua.At(due), Payload: []byte("p"), Meta: lua.EncodeMeta(map[string]string{"k": "v"}, 0,
			due.Add(time.Hour))})
		r.Ready("another")
		f, err := r.find(id, r.Queue)
		redistest.Want(t, "scheduled", fmt.Sprint(states(f), "; ", err), "scheduled; <nil>")
		redistest.Want(t, "history", historyOf(f), "made0, due1, expires0")
		redistest.Want(t, "made at the time in the ULID", f.History[0].At.Equal(made), true)
		redistest.Want(t, "due", f.History[1].At.Equal(due), true)
		redistest.Want(t, "header", f.Places[0].Headers["k"], "v")
		redistest.Want(t, "queue", f.Places[0].Queue, r.Queue)

		if _, _, err := lua.Reschedule(t.Context(), r.Client, r.Keys, id, lua.After(0), lua.Durability{}); err != nil {
			t.Fatal(err)
		}
		r.DrainAll()
		f, _ = r.find(id, r.Queue)
		redistest.Want(t, "ready", states(f), "ready g,idle")
		redistest.Want(t, "history", historyOf(f), "made0, due1, ready1, expires0")
		redistest.Want(t, "ready at the time of the entry", f.History[2].At.Equal(lua.EntryTime(f.Places[0].Entry)), true)

		began, fail := make(chan struct{}, 10), make(chan struct{})
		_, stop := r.start(stream.WorkerConfig{Group: "g", Consumer: "me",
			Handler: func(_ context.Context, m *stream.Message) error {
				if m.ID != id {
					return nil
				}
				began <- struct{}{}
				<-fail
				return fmt.Errorf("failed attempt %d", m.Attempt)
			}})
		<-began
		f, _ = r.find(id, r.Queue)
		redistest.Want(t, "pending", states(f), "pending g; ready idle")
		redistest.Want(t, "history", historyOf(f), "made0, due1, ready1, delivered1 g, expires0")
		for _, p := range f.Places {
			if p.State == StatePending {
				redistest.Want(t, "consumer", fmt.Sprint(p.Consumer, p.Deliveries), "me1")
			}
		}
		entry := f.Places[0].Entry
		fail <- struct{}{}
		f = r.waitForPlaces(id, "ready idle; retrying g")
		redistest.Want(t, "history", historyOf(f), "made0, due1, ready1, ready0 g, due2 g, expires0")
		retry := f.Places[slices.IndexFunc(f.Places, func(p Sighting) bool { return p.State == StateRetrying })]
		redistest.Want(t, "entry before the retry", retry.Before, entry)
		redistest.Want(t, "error", retry.Error, "failed attempt 1")

		r.Do("ZADD", r.Keys.Due, "1", id+lua.Separator+"g"+lua.Separator+entry) // due now
		r.DrainAll()
		<-began
		f = r.waitForPlaces(id, "pending g; ready idle")
		fail <- struct{}{}
		f = r.waitForPlaces(id, "dead g; ready idle")
		redistest.Want(t, "end of the history", historyOf(f)[strings.LastIndex(historyOf(f), "dead"):], "dead2 g, expires0")
		dead := f.History[len(f.History)-2]
		redistest.Want(t, "reason and error of the death", dead.Detail, "max_attempts: failed attempt 2")
		if err := stop(); err != nil {
			t.Error(err)
		}
		r.Xack("idle", r.Take("idle", "c", 10)...)
		got, err := r.find(id, r.Queue)
		redistest.Want(t, "only the dead letter is left", fmt.Sprint(states(got), err), "dead g<nil>")
		letter := got.Places[0].Letter

		if _, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, deadletter.Filter{ID: id},
			deadletter.RedriveOptions{Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		got, _ = r.find(id, r.Queue)
		redistest.Want(t, "redriven", states(got), "retrying g")
		redistest.Want(t, "letter before the redrive", got.Places[0].Before, letter)
		r.Do("DEL", r.Keys.Due, r.Keys.Meta, r.Keys.Payload)
		got, err = r.find(id, r.Queue)
		redistest.Want(t, "nowhere", fmt.Sprint(errors.Is(err, deadletter.ErrNotFound), len(got.Places), got.Queues, " ",
			historyOf(got)), "true 0 1 made0")
	})
}

// In a stream of many steps, a search must find every entry of the ID. An entry of another message that only contains
// the ID in its payload, or in a field, is no place of the message.
func TestFindInLongStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g", "h")
	r.Fill(5000)
	r.Do("XADD", r.Keys.Stream, "*", "id", "other", "payload", "m-17", "h:m-17", "m-17")
	foreign, _ := func() (string, error) { m := r.Do("XADD", r.Keys.Stream, "*", "colour", "green"); return m.ToString() }()
	for _, id := range []string{"m-0", "m-1", "m-17", "m-2500", "m-4998", "m-4999", "other", foreign} {
		f, err := r.find(id, r.Queue)
		if err != nil || states(f) != "ready g,h" {
			t.Errorf("%s: %s, %v, %+v", id, states(f), err, f.Places)
		}
	}
	entries := r.Take("g", "c", 5002) // 5000 of Fill, then "other" and the foreign one
	r.Age("g", "c", entries[17])
	r.Do("XADD", r.Keys.Stream, "*", "id", "m-17", "payload", "again", "attempt", "1", "due_ms", "1")
	f, _ := r.find("m-17", r.Queue)
	redistest.Want(t, "places", states(f), "pending g; ready g,h; ready h")
	if idle := time.Duration(f.Places[0].Idle); idle < time.Hour {
		t.Errorf("idle %s", idle)
	}
	f, err := r.find("m-5000", r.Queue)
	redistest.Want(t, "entries looked at, not found", fmt.Sprint(f.Looked, errors.Is(err, deadletter.ErrNotFound)),
		"5003 true")
	other := r.On("wrong")
	other.Do("SET", other.Keys.Dead, "x")
	if _, err := Find(t.Context(), r.Client, r.Prefix, "m-1", FindOptions{Queues: []string{"wrong"}}); !errors.Is(err,
		lua.ErrWrongType) || !strings.Contains(err.Error(), other.Keys.Dead) {
		t.Errorf("%v", err)
	}

	s, found := newFinder(r.Client, r.Prefix, "m-4999"), 0
	searchAfter := func(after string) string {
		found = 0
		count := func(context.Context, rueidis.XRangeSlice) error { found++; return nil }
		newest, err := s.eachEntry(t.Context(), r.Keys.Stream, after, count)
		return fmt.Sprint(found, " ", newest, " ", err)
	}
	newest := strings.Fields(searchAfter(entries[4000]))[1]
	redistest.Want(t, "after an entry before it", searchAfter(entries[4000]), "1 "+newest+" <nil>")
	redistest.Want(t, "after the entry itself", searchAfter(entries[4999]), "0 "+newest+" <nil>")
	redistest.Want(t, "after the newest entry", searchAfter(newest), "0 "+newest+" <nil>")
	added := false
	calls := 0
	_, err = s.eachEntry(t.Context(), r.Keys.Stream, "", func(context.Context, rueidis.XRangeSlice) error {
		calls++
		if !added {
			added = true
			r.Do("XADD", r.Keys.Stream, "*", "id", s.id)
		}
		return nil
	})
	redistest.Want(t, "found with an entry added during the search", fmt.Sprint(calls, " ", err), "2 <nil>")
	broken := errors.New("broken")
	_, err = s.eachEntry(t.Context(), r.Keys.Stream, "",
		func(context.Context, rueidis.XRangeSlice) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

// Regression: a search among large messages made the server send all of them.
func TestFindReadsNoPayloadOfAnotherMessage(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Groups("g")
	large := strings.Repeat("x", 1<<20)
	for i := range 20 {
		r.Do("XADD", r.Keys.Stream, "*", "id", fmt.Sprint("other-", i), "payload", large)
	}
	r.Do("XADD", r.Keys.Stream, "*", "id", "m", "payload", "small")
	sent := func() int64 {
		info, err := view.ReadInfo(t.Context(), r.Client, "stats")
		if err != nil {
			t.Fatal(err)
		}
		return info.Number("total_net_output_bytes")
	}
	before := sent()
	f, err := r.find("m", r.Queue)
	redistest.Want(t, "found", fmt.Sprint(states(f), err), "ready g<nil>")
	redistest.Want(t, "payload", string(f.Places[0].Payload), "small")
	if n := sent() - before; n == 0 || n > 1<<20 { // less than one of the 20 large payloads
		t.Errorf("the server sent %d bytes", n)
	}
}

// Without a queue, a search must look in all partitions of all registered queues.
func TestFindLooksInAllQueuesAndPartitions(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.grow(4)
	other := r.On(r.Queue + "-other")
	other.Groups("g")
	if _, err := lua.Register(t.Context(), r.Client, lua.NewGlobals(r.Prefix), []string{other.Queue}); err != nil {
		t.Fatal(err)
	}
	counts := lua.Counts{1, 4}
	ids := map[int]string{}
	for i := 0; len(ids) < 4; i++ {
		ids[counts.Of(fmt.Sprint("m-", i))] = fmt.Sprint("m-", i)
	}
	for partition, id := range ids {
		p := r.Part(partition)
		p.Ready(id)
		other.Enqueue(lua.Item{ID: id, When: lua.After(time.Hour), Dedup: lua.Window(time.Hour)})
		f, err := r.find(id)
		redistest.Want(t, "places", fmt.Sprint(states(f), err), "ready g; scheduled<nil>")
		redistest.Want(t, "queues", f.Queues, 2)
		redistest.Want(t, "window", fmt.Sprint(len(f.Windows), " ", f.Windows[0].Queue), "1 "+other.Queue)
		for _, one := range f.Places {
			if one.State == StateReady {
				redistest.Want(t, "partition", one.Partition, partition)
			}
		}
		if entries := p.Take("g", "c", 1); len(entries) == 1 {
			out, err := lua.Retry(t.Context(), r.Client, p.Keys, "g", policy.Default().Attempts(), []lua.Failure{{
				Held: lua.Held{Entry: entries[0]}, Action: lua.ActionDead, Reason: lua.ReasonDeadLetter, Error: "boom"}})
			if err != nil {
				t.Fatal(out, err)
			}
		}
		f, _ = r.find(id, r.Queue)
		redistest.Want(t, "dead", states(f), "dead g")
		if _, name, _ := deadletter.SplitLetter(f.Places[0].Letter); deadletter.LetterName(partition,
			name) != f.Places[0].Letter {
			t.Errorf("letter %s of partition %d", f.Places[0].Letter, partition)
		}
	}
	for _, bad := range []string{"", "a" + lua.Separator} {
		if _, err := Find(t.Context(), r.Client, r.Prefix, bad, FindOptions{}); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Find(ended, r.Client, r.Prefix, "m-1", FindOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// To find retries, Find scans the meta hash or the schedule, whichever is smaller. Both must give the same retries,
// also for an ID that looks like a pattern. Each round adds fields, so that the other one becomes smaller.
func TestFindLooksThroughMetaOrSchedule(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	retry := func(id string) {
		r.Ready(id)
		if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", policy.Default().Attempts(), []lua.Failure{{
			Held: lua.Held{Entry: r.Take("g", "c", 1)[0]}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"}}); err != nil {
			t.Fatal(err)
		}
	}
	retry("*")
	retry("m")
	for range 3 {
		f, err := r.find("*", r.Queue)
		redistest.Want(t, "places", fmt.Sprint(states(f), err), "retrying g<nil>")
		if r.Number("HLEN", r.Keys.Meta) == 2 {
			r.Enqueue(lua.Item{ID: "no meta", When: lua.After(time.Hour), Dedup: lua.Refuse})
			// Fields without a member of the schedule. A bridge would delete them later.
			r.Do("HSET", r.Keys.Meta, "orphan", "{}", "*"+lua.Separator+"g"+lua.Separator+"1-1", "{}")
		}
	}
}

// A message may move during a search, from a place that is still to be read to one that was read already. So the search
// must look a second time, at the data added since.
func TestFindLooksAgainAtWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(20)
	if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", policy.Default().Attempts(), []lua.Failure{{
		Held: lua.Held{Entry: r.Take("g", "c", 1)[0]}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"}}); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{r.Keys.Stream, r.Keys.Dead} {
		moved := false
		id := "moved to " + to
		f, err := Find(t.Context(), r.Client, r.Prefix, id, FindOptions{Queues: []string{r.Queue},
			Progress: func(looked, total int64) {
				if looked == total && !moved { // the first look at the streams and retries is over
					moved = true
					r.Do("XADD", to, "*", "id", id, "payload", "p", "attempt", "1", "group", "g")
				}
			}})
		if err != nil || len(f.Places) != 1 || !moved {
			t.Errorf("%s: %+v, %v", id, f.Places, err)
		}
	}
}
