package keeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A consumer of another program only runs XACK, and does not pass on the ordering key. The keeper must then pass the
// key on, so that the next message of that key becomes ready.
func TestKeyIsPassedOnAfterAPlainXACK(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("held")
	redistest.Want(t, "held", len(r.Take("g", "other", 1)), 1) // this entry stays, so that the stream is never empty
	for i := range 3 {
		r.Enqueue(lua.Item{ID: fmt.Sprint("m", i), When: lua.At(time.UnixMilli(int64(1000 + i))), Meta: `{"key":"k"}`})
	}
	r.startKeeper(Config{KeepMax: 100 * time.Millisecond}, r.Queue)
	for i := range 3 {
		var taken []string
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			r.DrainAll()
			taken = r.Take("g", "c", 10)
			return len(taken) > 0, fmt.Sprint("m", i, " does not come")
		})
		redistest.Want(t, "entries", len(taken), 1)
		r.Xack("g", taken...)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.Number("EXISTS", r.Keys.Turns) == 0, "turns are left"
	})
}

// Queues that only need tidying take turns. A queue with ordering keys must not wait for such a turn. Regression: with
// many queues to tidy, ordering keys stood still for minutes.
func TestKeysAreNotTidiedInTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var queues []string
	for i := range 4 {
		q := r.On(fmt.Sprint(r.Queue, "-", i))
		queues = append(queues, q.Queue)
		if i < 2 {
			q.Do("ZADD", q.Keys.Seen, "9e14", "window")
			continue
		}
		q.Groups("g")
		retry := "r" + lua.Separator + "g" + lua.Separator + "1-1" // holds an ordering key for a long time
		q.Do("ZADD", q.Keys.Due, "2e15", retry)
		q.Do("HSET", q.Keys.Meta, retry, `{"id":"r","for":"g","key":"r"}`)
		q.Do("ZADD", q.Keys.Turns, "0", "r"+lua.Separator+"busy"+lua.Separator+retry)
	}
	k := r.startKeeper(Config{TidyInterval: time.Hour})
	k.Own(queues)
	for n, name := range append(queues[2:4:4], queues[2:]...) { // each queue twice: at the start, and later
		q, key := r.On(name), fmt.Sprint("k", n)
		q.Do("ZADD", q.Keys.Turns, "0", key+lua.Separator+"busy"+lua.Separator+"9-9")
		q.Enqueue(lua.Item{ID: "m " + key, When: lua.At(time.UnixMilli(1000)), Meta: `{"key":"` + key + `"}`})
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			q.DrainAll()
			return q.Length(q.Keys.Stream) == 1, name + ": a message waits for a key that nobody holds"
		})
		q.Do("XTRIM", q.Keys.Stream, "MAXLEN", "0")
	}
}
