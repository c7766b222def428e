package stream

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestHoldPausesEveryPartitionAndWakesTheBridges(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		r.grow(3)
		hold := func(held bool) bool {
			t.Helper()
			changed, err := Pause(t.Context(), r.Client, r.Prefix, r.Queue, held)
			if err != nil {
				t.Fatal(err)
			}
			return changed
		}
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
		redistest.Want(t, "not paused", hold(false), false)
		redistest.Want(t, "nothing written", r.Number("EXISTS", r.Keys.Policy), int64(0))
		redistest.Want(t, "paused", hold(true), true)
		redistest.Want(t, "again", hold(true), false)
		redistest.Want(t, "drained", drained(), 0)
		for i := range 3 {
			r.Part(i).Do("DEL", r.Part(i).Keys.Wake)
		}
		redistest.Want(t, "resumed", hold(false), true)
		for i := range 3 {
			redistest.Want(t, "woken", r.Length(r.Part(i).Keys.Wake), int64(1))
		}
		redistest.Want(t, "again", hold(false), false)
		redistest.Want(t, "drained", drained(), 3)
		r.Part(2).Policy(map[string]string{SettingHeld: "1"})
		redistest.Want(t, "one was paused", hold(false), true)
		redistest.Want(t, "drained", drained(), 3)
	})
}
