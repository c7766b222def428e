package lmstfy

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A queue of duestream is named NAMESPACE:QUEUE. QueueName and SplitQueue accept only names that lmstfy's server
// accepts, of together at most 128 bytes.
func TestAQueueHasTheNamesOfTwo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ns, queue string
		ok        bool
	}{
		{"shop", "mails", true}, {"_a-", "b_c", true}, {"9", "-", true},
		{"shop", "_mails", false}, {"", "q", false}, {"n", "", false}, {"n:s", "q", false}, {"n", "q.r", false}, {"ü", "q", false},
		{strings.Repeat("n", 64), strings.Repeat("q", 63), true}, {strings.Repeat("n", 64), strings.Repeat("q", 64), false},
	} {
		name, err := QueueName(c.ns, c.queue)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, bridge.ErrInvalid) {
			t.Errorf("%q, %q: %v", c.ns, c.queue, err)
		}
		if ns, queue, ok := SplitQueue(name); c.ok && (!ok || ns != c.ns || queue != c.queue) {
			t.Errorf("%s is split into %q, %q", name, ns, queue)
		}
	}
	for _, name := range []string{"q", ":q", "n:", "a:b:c", "a.b:c"} {
		if _, _, ok := SplitQueue(name); ok {
			t.Errorf("%s is split", name)
		}
	}
}

// IDs have the form of those of lmstfy's server. They tell the publish time, the delay and whether the job may have
// attributes. Each ID is greater than the one before, also when the clock is set back.
func TestIDsTellWhenAJobWasPublished(t *testing.T) {
	t.Parallel()
	made, delay, versioned, ok := ParseID("101M80K6RQQ9416DRTMQ0000000")
	redistest.Want(t, "an ID that lmstfy's server made in 2026",
		ok && versioned && delay == 0 && made.Year() == 2026, true)
	s, now, last := &ids{}, time.UnixMilli(1_800_000_000_123), ""
	for i := range 2000 {
		at := now.Add(time.Duration(i%3-1) * time.Millisecond) // a clock that is set back
		id := s.next(at, 90*time.Second, false)
		if id <= last || len(id) != 26 {
			t.Fatalf("%s after %s", id, last)
		}
		last = id
	}
	for _, want := range []time.Duration{0, time.Second, math.MaxUint32 * time.Second} {
		id := s.next(now, want, true)
		made, delay, versioned, ok := ParseID(id)
		if !ok || !versioned || delay != want || made.Sub(now).Abs() > time.Millisecond || len(id) != 27 {
			t.Errorf("%s: %v %v %v %v", id, made, delay, versioned, ok)
		}
	}
	for _, id := range []string{"", "x", last[1:], last + "0", "0" + last, "!" + last[1:], strings.Repeat("Z", 26)} {
		if _, _, _, ok := ParseID(id); ok {
			t.Errorf("%q is accepted as an ID", id)
		}
	}
}

// A job becomes a message with the same ID, data and times, and its attributes become headers. A job with an invalid ID
// or number of tries is refused.
func TestAJobIsAMessage(t *testing.T) {
	t.Parallel()
	id := (&ids{}).next(time.Now(), 0, true)
	attributes := map[string]string{"foo": "Bar", "empty": ""}
	j := Job{ID: id, Data: []byte("x"), Tries: 7, Delay: time.Second, Expires: time.Unix(4e9, 0), Attributes: attributes}
	m, err := j.Message()
	if err != nil {
		t.Fatal(err)
	}
	want := bridge.NewMessage{ID: id, Payload: j.Data, MaxAttempts: 7, Delay: j.Delay, Expires: j.Expires,
		Headers: map[string]string{"attr-foo": "Bar", "attr-empty": ""}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("%+v", m)
	}
	if got := attributesOf(m.Headers); !reflect.DeepEqual(got, attributes) {
		t.Error(got)
	}
	for _, bad := range []Job{{ID: "x", Tries: 1}, {ID: id}, {ID: id, Tries: MaxTries + 1}} {
		if _, err := bad.Message(); !errors.Is(err, bridge.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// EnsureQueue sets the settings of lmstfy's group, in place of settings of the whole queue. Calling it again changes
// nothing. Other groups are not affected.
func TestAQueueGetsItsSettings(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	op := redistest.Must(admin.New(r, server.Prefix(t)))
	retryFor := time.Hour
	if err := op.WritePolicy(t.Context(), "n:q", "", admin.PolicyUpdate{RetryFor: &retryFor}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := EnsureQueue(t.Context(), op, "n:q"); err != nil {
			t.Fatal(err)
		}
		p, warning, err := op.ReadPolicy(t.Context(), "n:q", Group)
		if err != nil || warning != nil || p.VisibilityTimeout != MaxTTR || p.MaxAttempts != 1 ||
			p.RetryDelays != bridge.NewDelays(time.Millisecond) || p.RetryFor != 0 {
			t.Errorf("%+v %v %v", p, warning, err)
		}
	}
	p, _, err := op.ReadPolicy(t.Context(), "n:q", "other")
	redistest.Want(t, "visibility timeout of another group", p.VisibilityTimeout, policy.DefaultVisibilityTimeout)
	redistest.Want(t, "error", err, error(nil))
}
