package lookup

import (
	"errors"
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// The newest changes of all partitions must come newest first, each with the ID of its message as far as the records
// tell it.
func TestRecentChangesNameTheirMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	read := func(n int) (texts []string, more bool, err error) {
		recent, err := ReadRecent(t.Context(), r.Client, r.Prefix, r.Queue, n)
		for _, c := range recent.Changes {
			texts = append(texts, fmt.Sprintf("%s %s %s %d", c.Event, c.ID, c.Group, c.After/1e6))
		}
		return texts, recent.More, err
	}
	if _, _, err := read(5); !errors.Is(err, ErrNoHistory) {
		t.Errorf("a queue without a history: %v", err)
	}
	history := 100
	err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "", policy.Update{History: &history})
	if err != nil {
		t.Fatal(err)
	}
	r.grow(2)
	texts, more, err := read(5)
	redistest.Want(t, "error of an empty history", err, nil)
	redistest.Want(t, "changes of an empty history", fmt.Sprint(texts, more), "[] false")
	const at = int64(1_790_000_000_000)
	entry, other := fmt.Sprint(at, "-0"), fmt.Sprint(at+5, "-0")
	r.record(0, at, lua.EventReady, `{"id":"a","entry":"`+entry+`"}`)
	r.record(1, at+5, lua.EventReady, `{"id":"b","group":"g","entry":"`+other+`"}`)
	r.record(0, at+9, lua.EventAcknowledged, `{"group":"g","entry":"`+entry+`"}`)
	r.record(1, at+10, lua.EventAcknowledged, `{"group":"h","entry":"`+other+`"}`) // skips the retry of g
	r.record(1, at+12, lua.EventAcknowledged, `{"group":"g","entry":"1789999999999-7"}`)
	texts, more, err = read(5)
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "changes", fmt.Sprintf("%q", texts),
		`["acknowledged  g 13" "acknowledged a g 9" "ready b g 0" "ready a  0"]`)
	redistest.Want(t, "more", more, false)
	texts, more, err = read(2)
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "the newest two", fmt.Sprintf("%q %v", texts, more),
		`["acknowledged  g 13" "acknowledged a g 9"] true`)
	for _, n := range []int{0, MaxRecent + 1} {
		if _, _, err := read(n); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("n = %d: %v", n, err)
		}
	}
}

// A busy partition whose older changes were not read must not let older changes of a quiet one take their place.
func TestRecentChangesHaveNoGaps(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.grow(2)
	const at = int64(1_790_000_000_000)
	record := func(partition int, ms int64) {
		entry := fmt.Sprint(ms, "-0")
		r.record(partition, ms, lua.EventReady, fmt.Sprintf(`{"id":"p%d-%d","entry":"%s"}`, partition, ms-at, entry))
	}
	record(1, at+50)
	record(1, at+300)
	for i := range int64(600) {
		record(0, at+1+i)
	}
	recent, err := ReadRecent(t.Context(), r.Client, r.Prefix, r.Queue, MaxRecent)
	redistest.Want(t, "error, more", fmt.Sprint(err, recent.More), "<nil> true")
	var quiet []string
	for _, c := range recent.Changes {
		if c.ID[:2] == "p1" {
			quiet = append(quiet, c.ID)
		}
	}
	redistest.Want(t, "changes of the quiet partition", fmt.Sprint(quiet), "[p1-300]")
	redistest.Want(t, "changes", len(recent.Changes), 501)
}
