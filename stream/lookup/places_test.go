package lookup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

// locate returns the places of a message in the queue.
func (r *rig) locate(id string) []Place {
	r.T.Helper()
	places, err := Locate(r.T.Context(), r.Client, r.Prefix, r.Queue, id)
	if err != nil {
		r.T.Fatal(err)
	}
	return places
}

// Locate must find a message in each state, with the data of that state. Other messages whose IDs match the ID as a
// pattern are not places of it.
func TestLocateFollowsAMessageThroughAllStates(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("one", "two", "three")
		const id = `a*?[b]\` // must be taken literally, not as a pattern
		r.Ready("a", "b", "axxb")
		r.Xack("three", r.Take("three", "c", 3)...)
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		meta := lua.EncodeMeta(map[string]string{"k": "v"}, 5, time.Time{})
		r.Enqueue(lua.Item{ID: id, When: lua.At(due), Payload: []byte("p"), Meta: meta})
		places := r.locate(id)
		if len(places) != 1 {
			t.Fatalf("scheduled: %+v", places)
		}
		p := places[0]
		redistest.Want(t, "state", p.State, StateScheduled)
		redistest.Want(t, "due", p.Due.Equal(due), true)
		redistest.Want(t, "payload", string(p.Payload), "p")
		redistest.Want(t, "header", p.Headers["k"], "v")
		redistest.Want(t, "max attempts", p.MaxAttempts, 5)

		if _, _, err := lua.Reschedule(t.Context(), r.Client, r.Keys, id, lua.After(0), lua.Durability{}); err != nil {
			t.Fatal(err)
		}
		r.DrainAll()
		p = r.locate(id)[0]
		redistest.Want(t, "state", p.State, StateReady)
		redistest.Want(t, "groups", fmt.Sprint(sorted(p.Groups)), "[one three two]")

		ids := r.Take("one", "worker", 4)
		r.Take("two", "other", 4)
		states := map[string]Place{}
		for _, p := range r.locate(id) {
			states[string(p.State)+" "+p.Group+strings.Join(p.Groups, ",")] = p
		}
		redistest.Want(t, "places", fmt.Sprint(sortedKeys(states)), "[pending one pending two ready three]")
		redistest.Want(t, "consumer", states["pending one"].Consumer, "worker")
		redistest.Want(t, "entry", states["pending one"].Entry, ids[3])
		redistest.Want(t, "attempt", states["pending one"].Attempt, 1)

		fail := func(entry string, action lua.Action) {
			t.Helper()
			out, err := lua.Retry(t.Context(), r.Client, r.Keys, "one", policy.Default().Attempts(), []lua.Failure{{
				Held: lua.Held{Entry: entry}, Action: action, Delay: time.Millisecond, Reason: lua.ReasonDeadLetter,
				Error: "boom",
			}})
			if err != nil || out[0] == lua.Lost {
				t.Fatal(out, err)
			}
		}
		fail(ids[3], lua.ActionRetry)
		retry := inState(r.locate(id), StateRetrying)
		redistest.Want(t, "retrying", len(retry), 1)
		redistest.Want(t, "group", retry[0].Group, "one")
		redistest.Want(t, "attempt", retry[0].Attempt, 2)
		redistest.Want(t, "error", retry[0].Error, "boom")
		redistest.Want(t, "payload", string(retry[0].Payload), "p")

		r.DrainAll()
		ready := inState(r.locate(id), StateReady)
		redistest.Want(t, "the retry is ready for its group alone", fmt.Sprint(ready[len(ready)-1].Groups), "[one]")
		again := r.Take("one", "worker", 1)
		fail(again[0], lua.ActionDead)
		dead := inState(r.locate(id), StateDead)
		redistest.Want(t, "dead", len(dead), 1)
		redistest.Want(t, "group", dead[0].Group, "one")
		redistest.Want(t, "reason", dead[0].Reason, lua.ReasonDeadLetter)
		redistest.Want(t, "error", dead[0].Error, "boom")
		redistest.Want(t, "attempt", dead[0].Attempt, 2)
		redistest.Want(t, "letter", dead[0].Letter, r.letters()[0].Letter)
		redistest.Want(t, "entry", dead[0].Entry, again[0])
	})
}

// inState returns the places of one state.
func inState(places []Place, state State) (found []Place) {
	for _, p := range places {
		if p.State == state {
			found = append(found, p)
		}
	}
	return found
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

func sortedKeys[T any](m map[string]T) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	return sorted(keys)
}

// For a message that never existed, or that all groups have acknowledged, the error must be ErrNotFound.
func TestLocateOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for _, id := range []string{"a", `x*`} {
		if _, err := Locate(t.Context(), r.Client, r.Prefix, r.Queue, id); !errors.Is(err, deadletter.ErrNotFound) {
			t.Errorf("%s: %v", id, err)
		}
	}
	r.Groups("g")
	r.Ready("a")
	r.Xack("g", r.Take("g", "c", 1)...) // acknowledged, and not trimmed yet
	if places, err := Locate(t.Context(), r.Client, r.Prefix, r.Queue, "a"); !errors.Is(err, deadletter.ErrNotFound) {
		t.Errorf("acknowledged: %+v, %v", places, err)
	}
	if _, err := Locate(t.Context(), r.Client, r.Prefix, "a/b", ""); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("invalid: %v", err)
	}
}

// An entry of a stream without groups must be found as ready for nobody, and an entry without an ID by its entry ID.
func TestLocateWithoutGroupsAndOfForeignEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Fill(3000)
	entry, _ := func() (string, error) { m := r.Do("XADD", r.Keys.Stream, "*", "colour", "green"); return m.ToString() }()
	for _, id := range []string{"m-2999", entry} {
		places := r.locate(id)
		if len(places) != 1 || places[0].State != StateReady || len(places[0].Groups) != 0 {
			t.Errorf("%s: %+v", id, places)
		}
	}
}

// A retry must be found among so many that the search takes several steps.
func TestLocateFindsARetryAmongMany(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(3000)
	var fail []lua.Failure
	for _, id := range r.Take("g", "c", 3000) {
		fail = append(fail, lua.Failure{Held: lua.Held{Entry: id}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"})
	}
	for len(fail) > 0 {
		_, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", policy.Default().Attempts(), fail[:500])
		if err != nil {
			t.Fatal(err)
		}
		fail = fail[500:]
	}
	places := r.locate("m-1234")
	if len(places) != 1 || places[0].State != StateRetrying || places[0].Group != "g" ||
		string(places[0].Payload) != "payload of m-1234" {
		t.Errorf("%+v", places)
	}
	text, err := json.Marshal(places[0])
	if err != nil || !strings.HasPrefix(string(text), `{"state":"retrying","group":"g","due":"`) {
		t.Errorf("%s, %v", text, err)
	}
	// Once a message is scheduled again under the same ID, the ID has two places.
	r.Enqueue(lua.Item{ID: "m-1234", When: lua.After(time.Hour), Dedup: lua.Refuse})
	redistest.Want(t, "places", len(r.locate("m-1234")), 2)
}

// A message with an ordering key is in the partition of its key. Regression: the search looked in the partition of the
// ID. With 8 partitions it reported seven of eight scheduled messages as messages that never existed.
func TestEveryLookFindsAMessageWhereverItsKeyPutIt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		r.grow(8)
		for i := range 8 {
			p, id := r.Part(i), fmt.Sprint("m-", i)
			p.Do("HSET", p.Keys.Meta, id, `{"key":"customer-7"}`)
			p.Do("ZADD", p.Keys.Due, "9999999999999", id)
			p.Do("ZADD", p.Keys.Seen, "9999999999999", id)
			p.Do("XADD", p.Keys.History, "*", "by", "client c", "scheduled", fmt.Sprintf(`{"id":%q,"due_ms":"5"}`, id))

			places := r.locate(id)
			redistest.Want(t, id+": places", len(places), 1)
			redistest.Want(t, id+": partition", places[0].Partition, i)
			found, err := r.find(id, r.Queue)
			if err != nil || len(found.Places) != 1 || found.Places[0].Partition != i || len(found.Windows) != 1 {
				t.Errorf("find %s: %+v, %v", id, found, err)
			}
			until, err := Remembered(t.Context(), r.Client, r.Prefix, r.Queue, id)
			if err != nil || until.UnixMilli() != 9999999999999 {
				t.Errorf("%s is remembered until %v, %v", id, until, err)
			}
			story, err := ReadStory(t.Context(), r.Client, r.Prefix, id, StoryOptions{Queues: []string{r.Queue}})
			if err != nil || len(story.Changes) != 1 {
				t.Errorf("story of %s: %+v, %v", id, story, err)
			}
		}
	})
}

// An ended dedup window stays until it is swept, but refuses nothing. Regression: it was shown as if it were open.
func TestADedupWindowThatHasEndedIsNotTold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Do("ZADD", r.Keys.Due, "9999999999999", "m")
		r.Do("ZADD", r.Keys.Seen, "1000000000000", "m")
		if found, err := r.find("m", r.Queue); err != nil || len(found.Windows) != 0 {
			t.Errorf("find: %+v, %v", found.Windows, err)
		}
		if until, err := Remembered(t.Context(), r.Client, r.Prefix, r.Queue, "m"); err != nil || !until.IsZero() {
			t.Errorf("remembered until %v, %v", until, err)
		}
	})
}

// A producer that does not know the newest partition count puts a message into the partition that an older count gives
// for the ID. Locate must look in the partitions of all counts that the queue has had.
func TestLocateLooksWhereverTheIDMayBe(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.grow(3)
	counts := r.grow(8)
	id, candidates := "", []int(nil) // an ID with a different partition for each of the counts 1, 3 and 8
	for n := 0; len(candidates) < 3; n++ {
		id = fmt.Sprint("m-", n)
		candidates = counts.Candidates(id)
	}
	for _, i := range candidates {
		p := r.Part(i)
		p.Do("ZADD", p.Keys.Due, "9999999999999", id)
		places := r.locate(id)
		redistest.Want(t, "places", len(places), 1)
		redistest.Want(t, "partition", places[0].Partition, i)
		p.Do("ZREM", p.Keys.Due, id)
	}
	last := candidates[0]
	r.DeadIn(last, 1000, id)
	// DeadIn adds a letter with the entry ID <ms>-7.
	redistest.Want(t, "letter", r.locate(id)[0].Letter, deadletter.LetterName(last, "1000-7"))
	if _, err := Locate(context.WithoutCancel(t.Context()), r.Client, r.Prefix, r.Queue, "nowhere"); !errors.Is(err,
		deadletter.ErrNotFound) {
		t.Error(err)
	}
}

// Another program may write any number as a time. JSON has no year after 9999, so such a time must not make a finding
// or a peek unreadable. Regression: `duestream find --json` and the download of the dashboard failed.
func TestTimesBeyondJSONAreShownAsTheLatest(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("one")
	r.Do("ZADD", r.Keys.Due, "900000000000000", "far")
	r.Do("XADD", r.Keys.Stream, "900000000000000-1", "id", "far", "due_ms", "900000000000000",
		"expires_ms", "900000000000001")
	r.Take("one", "worker", 1)
	f, err := Find(t.Context(), r.Client, r.Prefix, "far", FindOptions{Queues: []string{r.Queue}})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "places", len(f.Places), 2)
	peeked, err := Peek(t.Context(), r.Client, r.Prefix, r.Queue, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []any{f, peeked.Next} {
		if _, err := json.Marshal(one); err != nil {
			t.Error(err)
		}
	}
}
