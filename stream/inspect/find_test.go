package inspect

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
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
)

// find searches twice, through the client and over connections of its own, and expects the same result.
func (r *rig) find(id string, queues ...string) (Finding, error) {
	r.T.Helper()
	var connect rueidis.ClientOption
	r.Server.Client(r.T, func(o *rueidis.ClientOption) { connect = *o })
	seen := 0
	own, err := Find(r.T.Context(), r.Client, r.Prefix, id, FindOptions{Queues: queues, Connect: &connect,
		Seen: func(Sighting) { seen++ }})
	plain, failed := Find(r.T.Context(), r.Client, r.Prefix, id, FindOptions{Queues: queues})
	if fmt.Sprint(err) != fmt.Sprint(failed) || states(own) != states(plain) {
		r.T.Errorf("%s: on a connection of its own %s, %v; else %s, %v", id, states(own), err, states(plain), failed)
	}
	redistest.Want(r.T, "seen", seen, len(own.Places))
	return own, err
}

// states names the places of a finding.
func states(f Finding) string {
	var all []string
	for _, p := range f.Places {
		all = append(all, strings.TrimSpace(fmt.Sprint(p.State, " ", p.Group, strings.Join(sorted(p.Groups), ","))))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// told returns the history of a finding as text.
func told(f Finding) string {
	var all []string
	for _, m := range f.History {
		all = append(all, strings.TrimSpace(fmt.Sprint(m.What, m.Attempt, " ", m.Group)))
	}
	return strings.Join(all, ", ")
}

func (r *rig) eventually(id, where string) (f Finding) {
	r.T.Helper()
	redistest.Eventually(r.T, 20*time.Second, func() (bool, string) {
		var err error
		f, err = Find(r.T.Context(), r.Client, r.Prefix, id, FindOptions{Queues: []string{r.Queue}})
		return states(f) == where, fmt.Sprint(states(f), ", ", err)
	})
	return f
}

func TestFindTellsTheLifeOfAMessage(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g", "idle")
		r.Policy(map[string]string{stream.SettingMaxAttempts: "2", stream.SettingRetryMin: "3600000",
			stream.SettingRetryMax: "3600000"})
		made := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
		id := ulid.MustNew(ulid.Timestamp(made), strings.NewReader(strings.Repeat("x", 16))).String()
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		r.Enqueue(lua.Item{ID: id, When: lua.At(due), Payload: []byte("p"), Meta: lua.EncodeMeta(map[string]string{"k": "v"}, 0,
			due.Add(time.Hour))})
		r.Ready("another")
		f, err := r.find(id, r.Queue)
		redistest.Want(t, "scheduled", fmt.Sprint(states(f), "; ", err), "scheduled; <nil>")
		redistest.Want(t, "history", told(f), "made0, due1, expires0")
		redistest.Want(t, "made", f.History[0].At.Equal(made), true)
		redistest.Want(t, "due", f.History[1].At.Equal(due), true)
		redistest.Want(t, "header", f.Places[0].Headers["k"], "v")
		redistest.Want(t, "queue", f.Places[0].Queue, r.Queue)

		if _, _, err := lua.Reschedule(t.Context(), r.Client, r.Keys, id, lua.After(0), lua.Durability{}); err != nil {
			t.Fatal(err)
		}
		r.DrainAll()
		f, _ = r.find(id, r.Queue)
		redistest.Want(t, "ready", states(f), "ready g,idle")
		redistest.Want(t, "history", told(f), "made0, due1, ready1, expires0")
		redistest.Want(t, "drained", f.History[2].At.Equal(lua.EntryTime(f.Places[0].Entry)), true)

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
		redistest.Want(t, "history", told(f), "made0, due1, ready1, delivered1 g, expires0")
		for _, p := range f.Places {
			if p.State == StatePending {
				redistest.Want(t, "consumer", fmt.Sprint(p.Consumer, p.Deliveries), "me1")
			}
		}
		entry := f.Places[0].Entry
		fail <- struct{}{}
		f = r.eventually(id, "ready idle; retrying g")
		redistest.Want(t, "history", told(f), "made0, due1, ready1, ready0 g, due2 g, expires0")
		retry := f.Places[slices.IndexFunc(f.Places, func(p Sighting) bool { return p.State == StateRetrying })]
		redistest.Want(t, "the entry before", retry.Before, entry)
		redistest.Want(t, "error", retry.Error, "failed attempt 1")

		r.Do("ZADD", r.Keys.Due, "1", id+lua.Separator+"g"+lua.Separator+entry) // due now
		r.DrainAll()
		<-began
		f = r.eventually(id, "pending g; ready idle")
		fail <- struct{}{}
		f = r.eventually(id, "dead g; ready idle")
		redistest.Want(t, "end", told(f)[strings.LastIndex(told(f), "dead"):], "dead2 g, expires0")
		dead := f.History[len(f.History)-2]
		redistest.Want(t, "why", dead.Detail, "max_attempts: failed attempt 2")
		if err := stop(); err != nil {
			t.Error(err)
		}
		r.Xack("idle", r.Take("idle", "c", 10)...)
		got, err := r.find(id, r.Queue)
		redistest.Want(t, "the letter alone", fmt.Sprint(states(got), err), "dead g<nil>")
		letter := got.Places[0].Letter

		if _, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, deadletter.Filter{ID: id},
			deadletter.RedriveOptions{Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		got, _ = r.find(id, r.Queue)
		redistest.Want(t, "redriven", states(got), "retrying g")
		redistest.Want(t, "the letter before", got.Places[0].Before, letter)
		r.Do("DEL", r.Keys.Due, r.Keys.Meta, r.Keys.Payload)
		got, err = r.find(id, r.Queue)
		redistest.Want(t, "nowhere", fmt.Sprint(errors.Is(err, deadletter.ErrNotFound), len(got.Places), got.Queues, " ",
			told(got)), "true 0 1 made0")
	})
}

// An ID that occurs in the text of another message does not make that a place of the message.
func TestFindInLongStreamsFromBothEnds(t *testing.T) {
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
	twice := r.Take("g", "c", 5002)
	r.Age("g", "c", twice[17])
	r.Do("XADD", r.Keys.Stream, "*", "id", "m-17", "payload", "again", "attempt", "1", "due_ms", "1")
	f, _ := r.find("m-17", r.Queue)
	redistest.Want(t, "places", states(f), "pending g; ready g,h; ready h")
	if idle := time.Duration(f.Places[0].Idle); idle < time.Hour {
		t.Errorf("idle %s", idle)
	}
	f, err := r.find("m-5000", r.Queue)
	redistest.Want(t, "looked", fmt.Sprint(f.Looked, errors.Is(err, deadletter.ErrNotFound)), "5003 true")
	f, err = Find(t.Context(), r.Client, r.Prefix, "m-4999",
		FindOptions{Connect: &rueidis.ClientOption{InitAddress: []string{"127.0.0.1:1"}, ForceSingleClient: true},
			Queues: []string{r.Queue}})
	redistest.Want(t, "no connection of its own to be had", fmt.Sprint(states(f), err), "pending g; ready h<nil>")
	other := r.On("wrong")
	other.Do("SET", other.Keys.Dead, "x")
	if _, err := Find(t.Context(), r.Client, r.Prefix, "m-1", FindOptions{Queues: []string{"wrong"}}); !errors.Is(err,
		lua.ErrWrongType) || !strings.Contains(err.Error(), other.Keys.Dead) {
		t.Errorf("%v", err)
	}

	s, found := streamSearch{c: r.Client, id: "m-4999"}, 0
	behind := func(after string) string {
		found = 0
		newest, err := s.all(t.Context(), r.Keys.Stream, after, func(lua.Entry) error { found++; return nil })
		return fmt.Sprint(found, " ", newest, " ", err)
	}
	newest := strings.Fields(behind(twice[4000]))[1]
	redistest.Want(t, "behind an entry", behind(twice[4000]), "1 "+newest+" <nil>")
	redistest.Want(t, "behind it", behind(twice[4999]), "0 "+newest+" <nil>")
	redistest.Want(t, "behind the last", behind(newest), "0 "+newest+" <nil>")
	added := false
	twiceFound := 0
	_, err = s.all(t.Context(), r.Keys.Stream, "", func(lua.Entry) error {
		twiceFound++
		if !added {
			added = true
			r.Do("XADD", r.Keys.Stream, "*", "id", s.id)
		}
		return nil
	})
	redistest.Want(t, "with what was added meanwhile", fmt.Sprint(twiceFound, " ", err), "2 <nil>")
	broken := errors.New("broken")
	if _, err := s.all(t.Context(), r.Keys.Stream, "", func(lua.Entry) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

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
			out, err := lua.Retry(t.Context(), r.Client, p.Keys, "g", stream.DefaultPolicy().Attempts(), []lua.Failure{{
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

// Find scans the smaller one of meta and schedule: both give the same retries.
func TestFindLooksThroughMetaOrSchedule(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	retry := func(id string) {
		r.Ready(id)
		if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", stream.DefaultPolicy().Attempts(), []lua.Failure{{
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
			// orphans, which the bridge sweeps
			r.Do("HSET", r.Keys.Meta, "orphan", "{}", "*"+lua.Separator+"g"+lua.Separator+"1-1", "{}")
		}
	}
}

// A message that moved past the first look is found by the second one, in the data added since.
func TestFindLooksAgainAtWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(20)
	if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", stream.DefaultPolicy().Attempts(), []lua.Failure{{
		Held: lua.Held{Entry: r.Take("g", "c", 1)[0]}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"}}); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{r.Keys.Stream, r.Keys.Dead} {
		moved := false
		id := "moved to " + to
		f, err := Find(t.Context(), r.Client, r.Prefix, id, FindOptions{Queues: []string{r.Queue},
			Progress: func(looked, total int64) {
				if looked == total && !moved { // streams and retries were read
					moved = true
					r.Do("XADD", to, "*", "id", id, "payload", "p", "attempt", "1", "group", "g")
				}
			}})
		if err != nil || len(f.Places) != 1 || !moved {
			t.Errorf("%s: %+v, %v", id, f.Places, err)
		}
	}
}
