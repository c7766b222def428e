package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// The groups are read once per call, and only if a message is for a single group. A server that refuses to list them
// stops the batch, and nothing is dead-lettered or added twice.
func TestDrainAsksForGroupsOnce(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		if b.inProcess() {
			return // that server has no statistics of commands
		}
		b.groups("g")
		asked := func() int {
			for line := range strings.SplitSeq(b.text("INFO", "commandstats"), "\r\n") {
				if calls, ok := strings.CutPrefix(line, "cmdstat_xinfo|groups:calls="); ok {
					n := 0
					fmt.Sscanf(calls, "%d", &n)
					return n
				}
			}
			return 0
		}
		before := asked()
		b.do("ZADD", b.k.Due, "1", "plain", "2", "other")
		redistest.Want(b, "moved", b.drain(10).Moved, 2)
		redistest.Want(b, "asked for plain messages", asked()-before, 0)
		for i := range 5 {
			gone := `{"for":"gone"}`
			if i%2 == 0 { // the form that the scripts write
				gone = `{"id":"r","for":"gone","attempt":"3","error":"e"}`
			}
			b.do("HSET", b.k.Meta,
				fmt.Sprint("r", i), `{"id":"r","for":"g","attempt":"3","error":"e"}`,
				fmt.Sprint("gone", i), gone)
			b.do("ZADD", b.k.Due, "1", fmt.Sprint("r", i), "2", fmt.Sprint("gone", i))
		}
		d := b.drain(10)
		redistest.Want(b, "moved, buried", fmt.Sprint(d.Moved, d.Dead), "5 5")
		redistest.Want(b, "asked for ten that are for one group", asked()-before, 1)
	})
}

// A dead letter whose fields do not fit into a meta (512 KiB) cannot be redriven. Before, such a letter was
// scheduled, became a dead letter again at once, and then had all its fields as one text.
func TestRedriveRefusesWhatCannotBeDelivered(t *testing.T) {
	onServers(t, func(b *testQueue) {
		b.groups("g")
		add := []string{"XADD", b.k.Dead, "*", "id", "m", "payload", "p", "group", "g"}
		for i := range 9 {
			add = append(add, fmt.Sprint("x", i), strings.Repeat("x", 60_000))
		}
		letter := b.text(add...)
		wantList(b, "outcome", b.redrive(Redrive{Letter: letter, When: After(0)}), RedriveUnreadable)
		redistest.Want(b, "letters", b.count("XLEN", b.k.Dead), 1)
	})
}

// An empty group would mean every group, and meta cannot hold a name that is not UTF-8: nothing is retried, released,
// dead-lettered or reclaimed for such a group.
func TestExitsRefuseGroupsWithUnusableNames(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for i, group := range []string{"", "\xff", "a\nb", "a\x00", "a" + Separator + "b", strings.Repeat("x", MaxGroupBytes+1)} {
			b := b.queue(fmt.Sprint("q", i))
			b.enqueue(Item{ID: "m", When: After(0)})
			b.do("XGROUP", "CREATE", b.k.Stream, group, "0")
			e := b.read(group, "c", 1)[0]
			before := b.dump()
			for _, action := range []Action{ActionRetry, ActionDead, ActionRelease} {
				if out, err := Retry(b.ctx, b.c, b.k, group, Attempts{Max: 3, Delays: []time.Duration{time.Second}},
					[]Failure{{Held: Held{Entry: e.EntryID}, Action: action, Delay: -1}}); err == nil ||
					!strings.Contains(err.Error(), "group is empty") {
					b.Errorf("%q: %v, %v", group, out, err)
				}
			}
			if _, err := Reclaim(b.ctx, b.c, b.k,
				ReclaimArgs{Group: group, Attempts: Attempts{Max: 3, Delays: []time.Duration{time.Second}}, Limit: 10,
					MaxBytes: 1000}); err == nil || !strings.Contains(err.Error(), "group is empty") {
				b.Errorf("reclaim of %q: %v", group, err)
			}
			for key, now := range b.dump() {
				redistest.Want(b, fmt.Sprintf("%s after %q", key, group), now, before[key])
			}
		}
	})
}
