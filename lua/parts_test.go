package lua

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// A script stops reading at 1 MiB, and leaves the rest of its items. The Go call hides that: it calls again until each
// item has its answer. Before, a repeated acknowledgement compared, and so read, 200 payloads of any size in one
// script.
func TestLargeEntriesAreTakenInSeveralCalls(t *testing.T) {
	const n, size = 40, 100_000
	onServers(t, func(b *testQueue) {
		b.groups("g")
		b.enqueueMany(n, size)
		var held []Held
		for _, e := range b.read("g", "c", n) {
			held = append(held, Held{Entry: e.EntryID, ID: e.ID})
		}
		r := &recorder{Client: b.c}
		calls := func(what string, least int) {
			b.Helper()
			seen := 0
			for _, words := range r.sent {
				if words[0] == "EVALSHA" {
					seen++
				}
			}
			if seen < least {
				b.Errorf("%s took %d calls, want %d at least", what, seen, least)
			}
			r.sent = nil
		}
		won, err := Ack(b.ctx, r, b.k, "g", held[:20])
		redistest.Want(b, "acknowledged", fmt.Sprint(won, err), fmt.Sprint(slices.Repeat([]bool{true}, 20), nil))
		calls("ack", 2)

		var failures []Failure
		for i, h := range held {
			failures = append(failures, Failure{Held: h, Action: []Action{ActionRetry, ActionDead}[i%2], Delay: time.Hour})
		}
		outcomes, err := Retry(b.ctx, r, b.k, "g", policy, failures)
		redistest.Want(b, "failed", fmt.Sprint(outcomes, err),
			fmt.Sprint(append(slices.Repeat([]Outcome{Lost}, 20), slices.Repeat([]Outcome{Retried, Dead}, 10)...), nil))
		calls("retry", 2)

		var letters []Redrive
		var copies []Restore
		for _, e := range b.raw(b.k.Dead) {
			letters = append(letters, Redrive{Letter: e.ID, When: After(time.Hour)})
			copies = append(copies, Restore{Name: e.ID, Entry: e.ID, Fields: e.FieldValues})
		}
		letters, copies = append(letters, letters...), append(copies, copies...)
		restored, err := RestoreDead(b.ctx, r, b.k, time.Hour, copies)
		redistest.Want(b, "restored", fmt.Sprint(restored, err), fmt.Sprint(slices.Repeat([]Restored{RestoreKnown}, 20), nil))
		calls("restore", 2)
		redriven, err := RedriveDead(b.ctx, r, b.k, letters)
		redistest.Want(b, "redriven", fmt.Sprint(redriven, err),
			fmt.Sprint(append(slices.Repeat([]Redriven{RedriveScheduled}, 10), slices.Repeat([]Redriven{RedriveGone}, 10)...),
				nil))
		b.wantState("due=20 payload=20 meta=20 stream=0 dead=0 g=0", "g")
	})
}

// The server frees payloads inside the call: 1,000 of 1 MB blocked it for 0.1 s. So a script frees 16 MiB at most, and
// the Go call runs it again. The Go call also splits IDs that come to many MiB, because the server would read them all
// before the script's first line.
func TestLargeMessagesAreCancelledInSeveralCalls(t *testing.T) {
	const n, size = 9, 2 << 20
	onServers(t, func(b *testQueue) {
		r := &recorder{Client: b.c}
		cancelled := func(what string, ids []string, least int, d Durability) {
			b.Helper()
			won, err := Cancel(b.ctx, r, b.k, append(ids, "unknown"), d)
			redistest.Want(b, what, fmt.Sprint(won), fmt.Sprint(append(slices.Repeat([]bool{true}, len(ids)), false)))
			redistest.Want(b, what+": not durable", errors.Is(err, ErrNotDurable), d.Waits())
			calls := 0
			for _, words := range r.sent {
				if words[0] == "EVALSHA" {
					calls++
				}
			}
			if calls < least {
				b.Errorf("%s took %d calls, want %d at least", what, calls, least)
			}
			r.sent = nil
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
		}
		fill := func(member, payload int) (ids []string) {
			for i := range n {
				id := fmt.Sprint(i, "-") + pad(member)
				b.build([]string{"ZADD", b.k.Due, ms(b.now() + 1e6), id}, []string{"HSET", b.k.Payload, id, pad(payload)},
					[]string{"HSET", b.k.Meta, id, `{"h:a":"b"}`})
				ids = append(ids, fmt.Sprint(i, "-")+strings.Repeat("x", member))
			}
			return ids
		}
		cancelled("large payloads", fill(0, size), 2, Durability{})
		cancelled("small ones", fill(0, 10), 1, Durability{})
		cancelled("large IDs", fill(200_000, 10), 2, Durability{})
		cancelled("not durable", fill(200_000, 10), 0, Durability{Replicas: 9, Timeout: time.Millisecond})
	})
}

// The earliest members of these queues come to more than 1 MiB, so the script does not look at all queues in one run.
// Each queue must have its own result all the same, and one has an error.
func TestSurveyOfLargeHeadsTakesSeveralCalls(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		var keys []Keys
		for i := range 5 {
			q := b.queue(fmt.Sprint("q", i))
			q.do("ZADD", q.k.Due, ms(b.now()+1e6), fmt.Sprint("m", string(make([]byte, 600_000))))
			q.do("SET", q.k.Seen, "broken")
			if i != 3 {
				q.do("DEL", q.k.Seen)
			}
			keys = append(keys, q.k)
		}
		looks, err := Survey(b.ctx, b.c, keys, true)
		if err != nil || len(looks) != 5 {
			b.Fatal(looks, err)
		}
		for i, look := range looks {
			if (look.SideErr != nil) != (i == 3) || look.Err != nil || look.Wait <= 0 {
				b.Errorf("queue %d: %+v", i, look)
			}
		}
	})
}

// After a part of a call was done, its failure is ambiguous, whatever the server's answer was.
func TestAFailureBehindAPartIsAmbiguous(t *testing.T) {
	refused := &rueidis.RedisError{}
	for _, c := range []struct {
		name      string
		replies   [][]int64
		want      []int64
		err       bool
		ambiguous bool
	}{
		{"all at once", [][]int64{{1, 0, 1}}, []int64{1, 0, 1}, false, false},
		{"in parts", [][]int64{{1, notReached, notReached}, {0, notReached}, {1}}, []int64{1, 0, 1}, false, false},
		{"refused at first", nil, nil, true, false},
		{"refused behind a part", [][]int64{{1, notReached, notReached}}, nil, true, true},
		{"nothing was looked at", [][]int64{{notReached, notReached, notReached}}, nil, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			replies := c.replies
			got, err := inParts([]string{"a", "b", "c"}, func(items []string) ([]int64, error) {
				if len(replies) == 0 {
					return nil, fmt.Errorf("refused: %w", refused)
				}
				reply := replies[0]
				replies = replies[1:]
				redistest.Want(t, "items", len(items), len(reply))
				return reply, nil
			})
			wantList(t, "answers", got, c.want...)
			redistest.Want(t, "failed", err != nil, c.err)
			redistest.Want(t, "ambiguous", err != nil && Ambiguous(err), c.ambiguous)
			if c.err && c.name != "nothing was looked at" {
				redistest.Want(t, "the server's words are kept", errors.Is(err, error(refused)) ||
					errors.As(err, new(*rueidis.RedisError)), true)
			}
		})
	}
}
