package planner

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// slowWalk is a client that makes each step of a walk over the entries of a queue slow.
type slowWalk struct {
	rueidis.Client
	steps atomic.Int64
}

func (c *slowWalk) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if words := command.Commands(); len(words) > 6 && words[2] == "2" && words[6] == "1000" {
		c.steps.Add(1)
		timer := time.NewTimer(200 * time.Millisecond)
		defer timer.Stop()
		<-timer.C
	}
	return c.Client.Do(ctx, command)
}

// A recurrence with overlap skip walks over the entries of its queue to find unfinished deliveries of its last message.
// A long walk must stop, and go on in the next pass. Regression: all other recurrences of the queue waited for its end.
// An occurrence that was due when the walk began must be planned, however long the walk takes.
func TestALongWalkDelaysNoOtherRecurrence(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	b := newBench(t)
	b.Groups("g")
	const thousands, every = 40, 240 * time.Hour
	for range thousands {
		var adds rueidis.Commands
		for range 1000 {
			adds = append(adds, b.Client.B().Xadd().Key(b.Keys.Stream).Id("*").FieldValue().FieldValue("id", "other").Build())
		}
		for _, reply := range b.Client.DoMulti(t.Context(), adds...) {
			if err := reply.Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	at := b.serverTime().Add(-4 * time.Second)
	b.put(recurrence.Spec{Every: every, Phase: time.Duration(at.UnixMilli()%every.Milliseconds()) * time.Millisecond,
		Overlap: recurrence.OverlapSkip, Missed: recurrence.MissedSkip})
	b.Do("DEL", b.Keys.Due, b.Keys.Payload)
	slow := &slowWalk{Client: b.Client}
	b.Planner = New(slow, b.Prefix, "", slog.New(slog.DiscardHandler))
	other := recurrence.Spec{Name: "other", Queue: b.Rig.Queue, Every: time.Hour}
	if _, err := b.Put(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	b.Do("DEL", b.Keys.Due, b.Keys.Payload)
	b.Do("HDEL", b.Keys.Planned, "other")
	b.storePlan(at.Add(-time.Minute), fmt.Sprint(at.Add(-every).UnixMilli()))
	q := b.freshQueue()
	wait := b.pass(q)
	all := b.scheduled()
	if len(all) != 1 || !strings.HasPrefix(all[0], "other@") || slow.steps.Load() >= thousands || wait > Interval {
		t.Fatalf("scheduled %v after %d steps, next pass in %v", all, slow.steps.Load(), wait)
	}
	due := lua.OccurrenceID("r", at)
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		b.pass(q)
		all = b.scheduled()
		return slices.Contains(all, due), fmt.Sprint(all, slow.steps.Load())
	})
	if steps := slow.steps.Load(); steps > thousands+5 {
		t.Errorf("%d steps for %d,000 entries", steps, thousands)
	}
}
