package pull

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Regression: an entry of another program may have a message ID that no token can hold. Such an entry was delivered,
// and could not be settled, because its token named another message or was invalid.
func TestEntriesOfOtherProgramsAreSettled(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	ids := []string{"", "\xff\xfe", strings.Repeat("i", 10_000), "<&>", "a\x00b", "\u2028", "a\x1fb", "\x1f"}
	for _, id := range ids {
		r.Do("XADD", r.Keys.Stream, "*", "id", id, "payload", "x", "key", id)
	}
	found := r.pull(10, 0)
	redistest.Want(t, "found", len(found), len(ids))
	for i, d := range found {
		named, err := d.Token.Read()
		if err != nil || named.Entry != d.EntryID {
			t.Fatalf("%q: %+v, %v", ids[i], named, err)
		}
		settled, err := r.Ack(t.Context(), []Token{d.Token})
		redistest.Want(t, "settled", fmt.Sprint(settled, err), "[true] <nil>")
	}
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
}

// Regression: if one of several queues had a key of another type, the whole receive failed, while messages waited in
// the other queues.
func TestOneQueueThatFailsKeepsNothingFromCallers(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	stream, policy := r.On(r.Queue+"-stream"), r.On(r.Queue+"-policy")
	r.Do("SET", stream.Keys.Stream, "a text")
	r.Do("SET", policy.Keys.Policy, "a text")
	r.Groups("g")
	r.Ready("a", "b")
	request := r.request(1, 0)
	request.Queues = []string{policy.Queue, stream.Queue, r.Queue}
	for _, want := range []string{"a", "b"} {
		found, err := r.Pull(t.Context(), request)
		redistest.Want(t, "found", fmt.Sprint(idsOf(found), err), fmt.Sprint([]string{want}, nil))
	}
	_, err := r.Pull(t.Context(), request)
	if err == nil || !strings.Contains(err.Error(), stream.Queue) {
		t.Error("no message is left, and the error does not name the queue that fails: ", err)
	}
	for range 3 {
		r.Do("XADD", r.Keys.Stream, "*", "id", "c", "payload", "x")
		found, err := r.Pull(t.Context(), request)
		redistest.Want(t, "found", fmt.Sprint(idsOf(found), err), "[c] <nil>")
	}
	r.Do("DEL", stream.Keys.Stream, policy.Keys.Policy)
	_, err = r.Pull(t.Context(), request)
	if err != nil && lua.Temporary(err) {
		t.Error(err)
	}
}

// A poll of several queues must go on although one of the queues fails, so that it gets messages that arrive meanwhile.
func TestAPollOutlastsAQueueThatFails(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	stream := r.On(r.Queue + "-stream")
	r.Do("SET", stream.Keys.Stream, "a text")
	r.Groups("g")
	request := r.request(1, 30*time.Second)
	request.Queues = []string{stream.Queue, r.Queue}
	found := make(chan string, 1)
	go func() {
		all, err := r.Pull(t.Context(), request)
		found <- fmt.Sprint(idsOf(all), err)
	}()
	rechecks := map[time.Time]bool{} // times at which the poll looks at the failing queue again
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if s := r.sources[sourceKey{stream.Queue, "g"}]; s != nil && len(s.lines[0].waiters) == 1 {
			rechecks[s.lines[0].recheck] = true
		}
		return len(rechecks) == 3, "the poll does not return to the failing queue"
	})
	r.Ready("a")
	redistest.Want(t, "found", <-found, "[a] <nil>")
}
