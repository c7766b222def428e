package pull

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// One script call must settle all deliveries of a queue. Regression: each extension and each failure was a call of its
// own. On a server that syncs each write, a request for forty deliveries took longer than its caller waited, so the
// caller did not know that any of them was extended.
func TestManyAreSettledTogether(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	const n = 40
	tokens, within, errs := make([]Token, n), make([]time.Duration, n), make([]error, n)
	for i := range n {
		r.Ready(fmt.Sprint("m", i))
	}
	for i, d := range r.pull(n, 0) {
		tokens[i], within[i], errs[i] = d.Token, time.Second, errors.New("no")
		if i == 0 {
			within[i], errs[i] = 0, stream.DeadLetter(nil)
		}
	}
	before := s.Calls(t)["evalsha"] + s.Calls(t)["fcall"]
	held, err := r.Extend(t.Context(), tokens, within)
	if err != nil {
		t.Fatal(err)
	}
	outcomes, err := r.Fail(t.Context(), tokens, errs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		want := stream.Retried
		if i == 0 {
			want = stream.Dead
		}
		if held[i] != lua.StillHeld || outcomes[i] != want {
			t.Errorf("%d: extended %d, then %s", i, held[i], outcomes[i])
		}
	}
	// The extensions need two calls, because there are two times, and the failures need one. The limit of 6 is far
	// below one call for each delivery.
	if calls := s.Calls(t)["evalsha"] + s.Calls(t)["fcall"] - before; calls > 6 {
		t.Errorf("%d calls of scripts", calls)
	}
	if held, err = r.Extend(t.Context(), tokens[:2], within[:2]); err != nil || held[0] != lua.NotHeld || held[1] != lua.NotHeld {
		t.Error("extended what was settled", held, err)
	}
}

// Regression: an operator removed the group of a queue, or its stream became a key of another type. A call that settled
// deliveries of this queue and of others was refused as a whole. The caller repeated the call until the time of the
// other deliveries was over.
func TestAQueueThatFailsKeepsNoOtherFromBeingSettled(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	gone, other := r.On(r.Queue+"-gone"), r.On(r.Queue+"-other")
	n := 0
	take := func() (tokens []Token) {
		t.Helper()
		for _, q := range []*queuetest.Rig{gone, other, r.Rig} {
			q.Do("DEL", q.Keys.Stream)
			q.Groups("g")
			n++
			q.Ready(fmt.Sprint("m", n))
			q.DrainAll() // also makes earlier released messages ready
			request := r.request(1, 0)
			request.Queues = []string{q.Queue}
			found, err := r.Pull(t.Context(), request)
			if err != nil || len(found) != 1 {
				t.Fatal(found, err)
			}
			tokens = append(tokens, found[0].Token)
		}
		gone.Do("XGROUP", "DESTROY", gone.Keys.Stream, "g")
		return tokens
	}
	within, release := make([]time.Duration, 3), stream.Release(nil)
	for _, c := range []struct {
		name         string
		call         func([]Token) (any, error)
		want         string // if the group of the first queue is gone
		wantIfFailed string // if, in addition, the stream of the second queue is a key of another type
	}{
		{"extend", func(all []Token) (any, error) { return r.Extend(t.Context(), all, within) },
			"[0 1 1]", "[0 0 1]"},
		{"acknowledge", func(all []Token) (any, error) { return r.Ack(t.Context(), all) },
			"[false true true]", "[false false true]"},
		{"fail", func(all []Token) (any, error) { return r.Fail(t.Context(), all, []error{release, release, release}) },
			"[lost released released]", "[lost lost released]"},
	} {
		got, err := c.call(take())
		redistest.Want(t, c.name, fmt.Sprint(got, " ", err), c.want+" <nil>")
		tokens := take()
		other.Do("SET", other.Keys.Stream, "a text")
		got, err = c.call(tokens)
		redistest.Want(t, c.name, fmt.Sprint(got, " ", errors.Is(err, lua.ErrWrongType)), c.wantIfFailed+" true")
	}
}

// A settlement must affect only the group of the delivery: the other group still holds the message.
func TestGroupsAreSettledApart(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Ready("a")
	first := r.pull(1, 0)
	other := r.request(1, 0)
	other.Group = "h"
	second, err := r.Pull(t.Context(), other)
	if err != nil || len(first)+len(second) != 2 {
		t.Fatal(first, second, err)
	}
	tokens := []Token{second[0].Token}
	for _, want := range []string{"[true]", "[false]"} {
		won, err := r.Ack(t.Context(), tokens)
		if err != nil || fmt.Sprint(won) != want {
			t.Error(won, err)
		}
	}
	redistest.Want(t, "pending", fmt.Sprint(r.Pending("g"), r.Pending("h")), "1 0")
	tokens = append(tokens, first[0].Token) // now the tokens of two groups in one call
	if won, err := r.Ack(t.Context(), tokens); err != nil || fmt.Sprint(won) != "[false true]" {
		t.Error(won, err)
	}
}

// Regression: on a slow connection a caller got the first deliveries only after all of many partitions had been read.
// Most of the time in which they had to be settled was then over.
func TestWhatIsFoundDoesNotWaitForMore(t *testing.T) {
	t.Parallel()
	const partitions = 20
	s := redistest.Own(t)
	path := s.Proxy(t)
	slow := path.Client(t)
	r := &rig{Rig: queuetest.New(t, s)}
	r.Puller = redistest.Must(New(Config{Client: slow, Blocking: slow, Prefix: r.Prefix}))
	r.pull(1, 0)
	r.Do("HSET", lua.NewGlobals(r.Prefix).Queues, r.Queue, fmt.Sprint("1,", partitions))
	for i := range partitions {
		r.Part(i).Ready(fmt.Sprint("m-", i))
	}
	r.sources[sourceKey{r.Queue, "g"}].lastRead = time.Time{}
	r.GiveBack(t.Context(), r.pull(1, 0)) // now the puller knows all partitions
	request := r.request(partitions, 0)
	request.Within = time.Second
	path.Slow(50 * time.Millisecond)
	began := time.Now()
	found, err := r.Pull(t.Context(), request)
	took := time.Since(began)
	path.Slow(0)
	if err != nil || len(found) == 0 || len(found) == partitions || took > time.Second {
		t.Errorf("%d deliveries after %s: %v", len(found), took, err)
	}
	if rest := len(r.pull(partitions, 0)); rest+len(found) != partitions-1 {
		t.Errorf("%d and %d", len(found), rest)
	}
}

// A caller must get a limited number of bytes at a time, however many messages it asks for.
func TestACallerGetsSoManyBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	const size = 1 << 20
	payload := strings.Repeat("x", size)
	for range 10 {
		r.Do("XADD", r.Keys.Stream, "*", lua.FieldID, "m", lua.FieldPayload, payload)
	}
	total := 0
	for total < 10 {
		found := len(r.pull(MaxCount, 0))
		if found == 0 || found*size > maxBytes+size {
			t.Fatalf("%d messages of 1 MiB", found)
		}
		total += found
	}
}
