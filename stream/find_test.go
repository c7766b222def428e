package stream

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
)

// find looks twice, through the client and over connections of its own, and wants the same answer.
func (r *rig) find(id string, queues ...string) (Finding, error) {
	r.t.Helper()
	var connect rueidis.ClientOption
	r.s.Client(r.t, func(o *rueidis.ClientOption) { connect = *o })
	seen := 0
	own, err := Find(r.t.Context(), r.c, r.prefix, id, FindOptions{Queues: queues, Connect: &connect, Seen: func(Sighting) { seen++ }})
	plain, failed := Find(r.t.Context(), r.c, r.prefix, id, FindOptions{Queues: queues})
	if fmt.Sprint(err) != fmt.Sprint(failed) || states(own) != states(plain) {
		r.t.Errorf("%s: on a connection of its own %s, %v; else %s, %v", id, states(own), err, states(plain), failed)
	}
	want(r.t, "seen", seen, len(own.Places))
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

// told returns the history of a finding in words.
func told(f Finding) string {
	var all []string
	for _, m := range f.History {
		all = append(all, strings.TrimSpace(fmt.Sprint(m.What, m.Attempt, " ", m.Group)))
	}
	return strings.Join(all, ", ")
}

func (r *rig) eventually(id, where string) (f Finding) {
	r.t.Helper()
	redistest.Eventually(r.t, 20*time.Second, func() (bool, string) {
		var err error
		f, err = Find(r.t.Context(), r.c, r.prefix, id, FindOptions{Queues: []string{r.queue}})
		return states(f) == where, fmt.Sprint(states(f), ", ", err)
	})
	return f
}

func TestFindTellsTheLifeOfAMessage(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.groups("g", "idle")
		r.policy(map[string]string{SettingMaxAttempts: "2", SettingRetryMin: "3600000", SettingRetryMax: "3600000"})
		made := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
		id := ulid.MustNew(ulid.Timestamp(made), strings.NewReader(strings.Repeat("x", 16))).String()
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		r.enqueue(lua.Item{ID: id, When: lua.At(due), Payload: []byte("p"), Meta: lua.EncodeMeta(map[string]string{"k": "v"}, 0, due.Add(time.Hour))})
		r.ready("another")
		f, err := r.find(id, r.queue)
		want(t, "scheduled", fmt.Sprint(states(f), "; ", err), "scheduled; <nil>")
		want(t, "history", told(f), "made0, due1, expires0")
		want(t, "made", f.History[0].At.Equal(made), true)
		want(t, "due", f.History[1].At.Equal(due), true)
		want(t, "header", f.Places[0].Headers["k"], "v")
		want(t, "queue", f.Places[0].Queue, r.queue)

		if _, _, err := lua.Reschedule(t.Context(), r.c, r.k, id, lua.After(0)); err != nil {
			t.Fatal(err)
		}
		r.drainAll()
		f, _ = r.find(id, r.queue)
		want(t, "ready", states(f), "ready g,idle")
		want(t, "history", told(f), "made0, due1, ready1, expires0")
		want(t, "drained", f.History[2].At.Equal(lua.EntryTime(f.Places[0].Entry)), true)

		began, fail := make(chan struct{}, 10), make(chan struct{})
		_, stop := r.start(WorkerConfig{Group: "g", Consumer: "me", Handler: func(_ context.Context, m *Message) error {
			if m.ID != id {
				return nil
			}
			began <- struct{}{}
			<-fail
			return fmt.Errorf("failed attempt %d", m.Attempt)
		}})
		<-began
		f, _ = r.find(id, r.queue)
		want(t, "pending", states(f), "pending g; ready idle")
		want(t, "history", told(f), "made0, due1, ready1, delivered1 g, expires0")
		for _, p := range f.Places {
			if p.State == StatePending {
				want(t, "consumer", fmt.Sprint(p.Consumer, p.Deliveries), "me1")
			}
		}
		entry := f.Places[0].Entry
		fail <- struct{}{}
		f = r.eventually(id, "ready idle; retrying g")
		want(t, "history", told(f), "made0, due1, ready1, ready0 g, due2 g, expires0")
		retry := f.Places[slices.IndexFunc(f.Places, func(p Sighting) bool { return p.State == StateRetrying })]
		want(t, "the entry before", retry.Before, entry)
		want(t, "error", retry.Error, "failed attempt 1")

		r.do("ZADD", r.k.Due, "1", id+lua.Separator+"g"+lua.Separator+entry) // due now
		r.drainAll()
		<-began
		f = r.eventually(id, "pending g; ready idle")
		fail <- struct{}{}
		f = r.eventually(id, "dead g; ready idle")
		want(t, "end", told(f)[strings.LastIndex(told(f), "dead"):], "dead2 g, expires0")
		dead := f.History[len(f.History)-2]
		want(t, "why", dead.Detail, "max_attempts: failed attempt 2")
		if err := stop(); err != nil {
			t.Error(err)
		}
		r.xack("idle", r.take("idle", "c", 10)...)
		got, err := r.find(id, r.queue)
		want(t, "the letter alone", fmt.Sprint(states(got), err), "dead g<nil>")
		letter := got.Places[0].Letter

		if _, err := r.deadLetters().RedriveMatching(t.Context(), r.queue, Filter{ID: id}, RedriveOptions{Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		got, _ = r.find(id, r.queue)
		want(t, "redriven", states(got), "retrying g")
		want(t, "the letter before", got.Places[0].Before, letter)
		r.do("DEL", r.k.Due, r.k.Meta, r.k.Payload)
		got, err = r.find(id, r.queue)
		want(t, "nowhere", fmt.Sprint(errors.Is(err, ErrNotFound), len(got.Places), got.Queues, " ", told(got)), "true 0 1 made0")
	})
}

// What a message's ID is in the text of others does not make them its places.
func TestFindInLongStreamsFromBothEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g", "h")
	r.fill(5000)
	r.do("XADD", r.k.Stream, "*", "id", "other", "payload", "m-17", "h:m-17", "m-17")
	foreign, _ := func() (string, error) { m := r.do("XADD", r.k.Stream, "*", "colour", "green"); return m.ToString() }()
	for _, id := range []string{"m-0", "m-1", "m-17", "m-2500", "m-4998", "m-4999", "other", foreign} {
		f, err := r.find(id, r.queue)
		if err != nil || states(f) != "ready g,h" {
			t.Errorf("%s: %s, %v, %+v", id, states(f), err, f.Places)
		}
	}
	twice := r.take("g", "c", 5002)
	r.age("g", "c", twice[17])
	r.do("XADD", r.k.Stream, "*", "id", "m-17", "payload", "again", "attempt", "1", "due_ms", "1")
	f, _ := r.find("m-17", r.queue)
	want(t, "places", states(f), "pending g; ready g,h; ready h")
	if idle := time.Duration(f.Places[0].Idle); idle < time.Hour {
		t.Errorf("idle %s", idle)
	}
	f, err := r.find("m-5000", r.queue)
	want(t, "looked", fmt.Sprint(f.Looked, errors.Is(err, ErrNotFound)), "5003 true")
	f, err = Find(t.Context(), r.c, r.prefix, "m-4999", FindOptions{Connect: &rueidis.ClientOption{InitAddress: []string{"127.0.0.1:1"}, ForceSingleClient: true}, Queues: []string{r.queue}})
	want(t, "no connection of its own to be had", fmt.Sprint(states(f), err), "pending g; ready h<nil>")
	other := *r
	other.k = lua.NewKeys(r.prefix, "wrong")
	other.do("SET", other.k.Dead, "x")
	if _, err := Find(t.Context(), r.c, r.prefix, "m-1", FindOptions{Queues: []string{"wrong"}}); !errors.Is(err, lua.ErrWrongType) || !strings.Contains(err.Error(), other.k.Dead) {
		t.Errorf("%v", err)
	}

	s, found := sifter{c: r.c, id: "m-4999"}, 0
	behind := func(after string) string {
		found = 0
		newest, err := s.all(t.Context(), r.k.Stream, after, func(lua.Entry) error { found++; return nil })
		return fmt.Sprint(found, " ", newest, " ", err)
	}
	newest := strings.Fields(behind(twice[4000]))[1]
	want(t, "behind an entry", behind(twice[4000]), "1 "+newest+" <nil>")
	want(t, "behind it", behind(twice[4999]), "0 "+newest+" <nil>")
	want(t, "behind the last", behind(newest), "0 "+newest+" <nil>")
	added := false
	twiceFound := 0
	_, err = s.all(t.Context(), r.k.Stream, "", func(lua.Entry) error {
		if twiceFound++; !added {
			added = true
			r.do("XADD", r.k.Stream, "*", "id", s.id)
		}
		return nil
	})
	want(t, "with what was added meanwhile", fmt.Sprint(twiceFound, " ", err), "2 <nil>")
	broken := errors.New("broken")
	if _, err := s.all(t.Context(), r.k.Stream, "", func(lua.Entry) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func TestFindLooksInAllQueuesAndPartitions(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.grow(4)
	other := *r
	other.queue += "-other"
	other.k = lua.NewKeys(r.prefix, other.queue)
	other.groups("g")
	if _, err := lua.Register(t.Context(), r.c, lua.NewGlobals(r.prefix), []string{other.queue}); err != nil {
		t.Fatal(err)
	}
	counts := lua.Counts{1, 4}
	ids := map[int]string{}
	for i := 0; len(ids) < 4; i++ {
		ids[counts.Of(fmt.Sprint("m-", i))] = fmt.Sprint("m-", i)
	}
	for partition, id := range ids {
		p := r.part(partition)
		p.ready(id)
		other.enqueue(lua.Item{ID: id, When: lua.After(time.Hour), Dedup: lua.Window(time.Hour)})
		f, err := r.find(id)
		want(t, "places", fmt.Sprint(states(f), err), "ready g; scheduled<nil>")
		want(t, "queues", f.Queues, 2)
		want(t, "window", fmt.Sprint(len(f.Windows), " ", f.Windows[0].Queue), "1 "+other.queue)
		for _, one := range f.Places {
			if one.State == StateReady {
				want(t, "partition", one.Partition, partition)
			}
		}
		if entries := p.take("g", "c", 1); len(entries) == 1 {
			out, err := lua.Retry(t.Context(), r.c, p.k, "g", DefaultPolicy().Attempts(), []lua.Failure{{
				Held: lua.Held{Entry: entries[0]}, Action: lua.ActionDead, Reason: lua.ReasonDeadLetter, Error: "boom"}})
			if err != nil {
				t.Fatal(out, err)
			}
		}
		f, _ = r.find(id, r.queue)
		want(t, "dead", states(f), "dead g")
		if _, name, _ := splitLetter(f.Places[0].Letter); letterName(partition, name) != f.Places[0].Letter {
			t.Errorf("letter %s of partition %d", f.Places[0].Letter, partition)
		}
	}
	for _, bad := range []string{"", "a" + lua.Separator} {
		if _, err := Find(t.Context(), r.c, r.prefix, bad, FindOptions{}); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Find(ended, r.c, r.prefix, "m-1", FindOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// The smaller of meta and schedule is looked through: both find the same retries.
func TestFindLooksThroughMetaOrSchedule(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	retry := func(id string) {
		r.ready(id)
		if _, err := lua.Retry(t.Context(), r.c, r.k, "g", DefaultPolicy().Attempts(), []lua.Failure{{
			Held: lua.Held{Entry: r.take("g", "c", 1)[0]}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"}}); err != nil {
			t.Fatal(err)
		}
	}
	retry("*")
	retry("m")
	for range 3 {
		f, err := r.find("*", r.queue)
		want(t, "places", fmt.Sprint(states(f), err), "retrying g<nil>")
		if r.number("HLEN", r.k.Meta) == 2 {
			r.enqueue(lua.Item{ID: "no meta", When: lua.After(time.Hour), Dedup: lua.Refuse})
			r.do("HSET", r.k.Meta, "orphan", "{}", "*"+lua.Separator+"g"+lua.Separator+"1-1", "{}") // those that the bridge sweeps
		}
	}
}

// A message that moved past the look is found by the second one, which is at what came meanwhile.
func TestFindLooksAgainAtWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.fill(20)
	if _, err := lua.Retry(t.Context(), r.c, r.k, "g", DefaultPolicy().Attempts(), []lua.Failure{{
		Held: lua.Held{Entry: r.take("g", "c", 1)[0]}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"}}); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{r.k.Stream, r.k.Dead} {
		moved := false
		id := "moved to " + to
		f, err := Find(t.Context(), r.c, r.prefix, id, FindOptions{Queues: []string{r.queue}, Progress: func(looked, total int64) {
			if looked == total && !moved { // streams and retries were looked through
				moved = true
				r.do("XADD", to, "*", "id", id, "payload", "p", "attempt", "1", "group", "g")
			}
		}})
		if err != nil || len(f.Places) != 1 || !moved {
			t.Errorf("%s: %+v, %v", id, f.Places, err)
		}
	}
}
