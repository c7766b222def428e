package lookup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// eventsOf returns the events of a story, each with its group.
func eventsOf(s Story) (list []string) {
	for _, c := range s.Changes {
		list = append(list, c.Event+" "+c.Group)
	}
	return list
}

// A story must have all records of one message, and no others. A record without an ID belongs to the message of its
// entry. If a group skipped a retry of another group, it did not acknowledge the message. A due time beyond all
// calendars is left out.
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
	redistest.Want(t, "the story", fmt.Sprint(eventsOf(s)),
		"[scheduled  ready  acknowledged h retried g ready g dead g]")
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
	_, err = ReadStory(t.Context(), r.Client, r.Prefix, "nobody", StoryOptions{Queues: []string{r.Queue}})
	if !errors.Is(err, ErrUntold) {
		t.Error(err)
	}
	_, err = ReadStory(t.Context(), r.Client, r.Prefix, "m", StoryOptions{Queues: []string{r.Queue + "-"}})
	if !errors.Is(err, ErrNoHistory) {
		t.Error(err)
	}
}

// A story must end where the history ended at the time of the call. Otherwise it would never end if the history grows
// faster than it is read.
func TestStoryOfAHistoryThatGrowsEnds(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	fill := func() {
		for range 5 {
			record := fmt.Sprintf(`{"id":"m","reason":%q}`, strings.Repeat("x", 40_000))
			r.Do("XADD", r.Keys.History, "*", "by", "", "ready", record)
		}
	}
	fill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	steps := 0
	progress := func(int64, int64) {
		if steps++; steps < 100 {
			fill()
		}
	}
	options := StoryOptions{Queues: []string{r.Queue}, Progress: progress}
	s, err := ReadStory(ctx, r.Client, r.Prefix, "m", options)
	if err != nil || len(s.Changes) > 10 {
		t.Errorf("%d changes, %v", len(s.Changes), err)
	}
	redistest.Want(t, "beginning", s.Since.Equal(s.Changes[0].At), true)
}

// A group has no history of its own, and cannot switch off that of its queue.
func TestAGroupCannotClearTheHistory(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	keep := policy.Update{History: new(10)}
	if err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "", keep); err != nil {
		t.Fatal(err)
	}
	r.Do("XADD", r.Keys.History, "*", "by", "")
	for _, name := range []string{policy.SettingHistory, policy.SettingHistoryAge, policy.SettingHeld} {
		err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "g", policy.Update{Clear: []string{name}})
		if !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("clear %s of a group: %v", name, err)
		}
	}
	redistest.Want(t, "records kept", r.Number("XLEN", r.Keys.History), int64(1))
	if err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "",
		policy.Update{Clear: []string{policy.SettingHistory}}); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "the history exists after the queue has cleared it", r.Number("EXISTS", r.Keys.History), int64(0))
}
