package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// tellOf returns the events of a story, each with its group.
func tellOf(s Story) (list []string) {
	for _, c := range s.Changes {
		list = append(list, c.Event+" "+c.Group)
	}
	return list
}

// A record without an ID belongs to the message of its entry. A group that skipped a retry of another group did not
// acknowledge it. A due time before all calendars is none.
func TestStoryIsOfOneMessage(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	add := func(values ...string) {
		r.Do(append([]string{"XADD", r.Keys.History, "*", "by", "client c"}, values...)...)
	}
	add("scheduled", `{"id":"m","due_ms":"900000000000000000"}`, "scheduled", `{"id":"other","due_ms":"5"}`)
	add("ready", `{"id":"m","entry":"1-1","attempt":"1"}`, "ready", `{"id":"other","entry":"1-2"}`)
	add("acknowledged", `{"entry":"1-1","group":"h"}`, "acknowledged", `{"entry":"1-2","group":"h"}`)
	add("retried", `{"id":"m","entry":"1-1","group":"g"}`, "no JSON", "x")
	add("ready", `{"id":"m","entry":"1-3","group":"g","attempt":"2"}`)
	add("acknowledged", `{"entry":"1-3","group":"h"}`)
	add("dead", `{"letter":"7-1","id":"1-3","entry":"1-3","group":"g","reason":"body_lost"}`)
	s, err := ReadStory(t.Context(), r.Client, r.Prefix, "m", StoryOptions{Queues: []string{r.Queue}})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "the story", fmt.Sprint(tellOf(s)),
		"[scheduled  ready  acknowledged h retried g ready g dead g]")
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
	if _, err := ReadStory(t.Context(), r.Client, r.Prefix, "nobody", StoryOptions{Queues: []string{r.Queue}}); !errors.Is(err,
		ErrUntold) {
		t.Error(err)
	}
	if _, err := ReadStory(t.Context(), r.Client, r.Prefix, "m", StoryOptions{Queues: []string{r.Queue + "-"}}); !errors.Is(err,
		ErrNoHistory) {
		t.Error(err)
	}
}

// A story ends where the history ended at the time of the call, however fast the history grows.
func TestStoryOfAHistoryThatGrowsEnds(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	fill := func() {
		for range 5 {
			r.Do("XADD", r.Keys.History, "*", "by", "", "ready", fmt.Sprintf(`{"id":"m","reason":%q}`, strings.Repeat("x", 40_000)))
		}
	}
	fill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	steps := 0
	s, err := ReadStory(ctx, r.Client, r.Prefix, "m", StoryOptions{Queues: []string{r.Queue}, Progress: func(int64, int64) {
		if steps++; steps < 100 {
			fill()
		}
	}})
	if err != nil || len(s.Changes) > 10 {
		t.Errorf("%d changes, %v", len(s.Changes), err)
	}
}

// A group has no history of its own, and cannot switch off that of its queue.
func TestAGroupCannotClearTheHistory(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	keep := stream.PolicyUpdate{History: new(10)}
	if err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "", keep); err != nil {
		t.Fatal(err)
	}
	r.Do("XADD", r.Keys.History, "*", "by", "")
	for _, name := range []string{stream.SettingHistory, stream.SettingHistoryAge, stream.SettingHeld} {
		err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "g", stream.PolicyUpdate{Clear: []string{name}})
		if !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("clear %s of a group: %v", name, err)
		}
	}
	redistest.Want(t, "kept", r.Number("XLEN", r.Keys.History), int64(1))
	if err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "",
		stream.PolicyUpdate{Clear: []string{stream.SettingHistory}}); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "left", r.Number("EXISTS", r.Keys.History), int64(0))
}
