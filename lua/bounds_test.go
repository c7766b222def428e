package lua

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// G7: a call moves about 1 MiB. Before, one script moved 100 members of 1 MiB, which took 1,165 ms and doubled the
// server's memory.
func TestDrainOfBigPayloadsIsBounded(t *testing.T) {
	const n = 5
	body := make([]byte, 1<<20)
	onServers(t, func(b *testQueue) {
		var commands [][]string
		for i := range n {
			id := fmt.Sprintf("m%03d", i)
			commands = append(commands, []string{"ZADD", b.k.Due, strconv.Itoa(i + 1), id},
				[]string{"HSET", b.k.Payload, id, pad(1 << 20)})
		}
		b.build(commands...)
		for i := range n {
			d, err := Drain(b.ctx, b.c, b.k, 500, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, "moved", d.Moved, 1)
			redistest.Want(b, "no further message is due", d.Wait > 0 || d.Wait < 0, i == n-1)
		}
		// Of messages of half that size, one call moves two.
		b.do("DEL", b.k.Due, b.k.Payload)
		for i := range 4 {
			b.enqueue(Item{ID: fmt.Sprint("half", i), When: After(time.Hour), Payload: body[:512<<10]})
		}
		b.makeDue()
		redistest.Want(b, "moved", b.drain(500).Moved, 2)
	})
}

// Drain reads members in pages of 2, 8 and then 16. In this test the third page has small members and then large ones,
// each of which exhausts the budget: drain must stop within the page.
func TestDrainStopsWithinAPage(t *testing.T) {
	const small, large, budget = 1 + 4 + 16, 16, 64 << 10
	everywhere(t, func(b *testQueue) {
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
