package lua

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// G7: a call moves about 1 MiB. 100 members of 1 MiB in one script took 1,165 ms and doubled the server's memory
// (PITFALLS A11).
func TestDrainOfBigPayloadsIsBounded(t *testing.T) {
	const n = 20
	body := make([]byte, 1<<20)
	everywhere(t, func(b *rig) {
		n := n
		if b.inProcess() {
			n = 5
		}
		var commands [][]string
		for i := range n {
			id := fmt.Sprintf("m%03d", i)
			commands = append(commands, []string{"ZADD", b.k.Due, strconv.Itoa(i + 1), id},
				[]string{"HSET", b.k.Payload, id, pad(1 << 20)})
		}
		for some := range slices.Chunk(commands, 20) { // in parts, because a script keeps all that it makes
			b.build(some...)
		}
		for i := range 5 {
			d, err := Drain(b.ctx, b.c, b.k, 500, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, "moved", d.Moved, 1)
			redistest.Want(b, "wait", d.Wait > 0 || d.Wait < 0, i == n-1)
		}
		// Two of half the size fit.
		b.do("DEL", b.k.Due, b.k.Payload)
		for i := range 4 {
			b.enqueue(Item{ID: fmt.Sprint("half", i), When: After(time.Hour), Payload: body[:512<<10]})
		}
		b.makeDue()
		redistest.Want(b, "moved", b.drain(500).Moved, 2)
	})
}

// One member is always moved, however large it is; otherwise it would block the queue for ever.
func TestDrainMovesAtLeastOneMember(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(Item{ID: "big", When: After(time.Hour), Payload: make([]byte, 3<<20),
			Meta: EncodeMeta(map[string]string{"a": "b"}, 0, time.Time{})}, Item{ID: "small", When: After(2 * time.Hour)})
		b.makeDue()
		redistest.Want(b, "moved", b.drain(500).Moved, 1)
		redistest.Want(b, "moved", b.drain(500).Moved, 1)
	})
}

// Small members let drain read sixteen at a time, and the members of the next page may be of any size: drain stops
// within the page.
func TestDrainStopsWithinAPage(t *testing.T) {
	const small, large, budget = 1 + 4 + 16, 16, 64 << 10
	everywhere(t, func(b *rig) {
		var commands [][]string
		for i := range small + large {
			id := fmt.Sprintf("m%03d", i)
			commands = append(commands, []string{"ZADD", b.k.Due, strconv.Itoa(i + 1), id})
			if i >= small {
				commands = append(commands, []string{"HSET", b.k.Payload, id, pad(budget)})
			}
		}
		b.build(commands...)
		for i, moved := range []int{small + 1, 1, 1} {
			d, err := Drain(b.ctx, b.c, b.k, 500, budget)
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, fmt.Sprint("moved by call ", i+1), d.Moved, moved)
		}
	})
}
