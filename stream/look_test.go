package stream

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// A paused queue must drain nothing in any partition. The end of the pause must wake the bridges, so that they need not
// find the due messages by chance.
func TestHoldPausesEveryPartitionAndWakesTheBridges(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		r.grow(3)
		pause := func(held bool) (changed bool) {
			t.Helper()
			changed, err := Pause(t.Context(), r.Client, r.Prefix, r.Queue, "", held)
			if err != nil {
				t.Fatal(err)
			}
			return changed
		}
		// drained makes a message due in each partition, and returns how many messages a drain makes ready.
		drained := func() (n int) {
			t.Helper()
			for i := range 3 {
				r.Part(i).Do("ZADD", r.Part(i).Keys.Due, "1", "m")
				d, err := lua.Drain(t.Context(), r.Client, r.Part(i).Keys, 100, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				n += d.Moved
			}
			return n
		}
		redistest.Want(t, "the end of no pause changes anything", pause(false), false)
		redistest.Want(t, "the policy exists", r.Number("EXISTS", r.Keys.Policy), int64(0))
		redistest.Want(t, "a pause changes something", pause(true), true)
		redistest.Want(t, "a second pause changes something", pause(true), false)
		redistest.Want(t, "drained", drained(), 0)
		for i := range 3 {
			r.Part(i).Do("DEL", r.Part(i).Keys.Wake)
		}
		redistest.Want(t, "the end of the pause changes something", pause(false), true)
		for i := range 3 {
			redistest.Want(t, "wake tokens", r.Length(r.Part(i).Keys.Wake), int64(1))
		}
		redistest.Want(t, "a second end changes something", pause(false), false)
		redistest.Want(t, "drained", drained(), 3)
		r.Part(2).Policy(map[string]string{policy.SettingHeld: "1"})
		redistest.Want(t, "the end of a pause of one partition changes something", pause(false), true)
		redistest.Want(t, "drained", drained(), 3)
	})
}
