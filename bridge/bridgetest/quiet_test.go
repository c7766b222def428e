package bridgetest

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A state that was read while a command ran may lack what the command has changed, so it is read again. A command that
// never ends fails the test.
func TestAdvanceWaitsForRunningCommands(t *testing.T) {
	t.Parallel()
	k := NewWith(t, Config{InProcess: true, Patience: 100 * time.Millisecond})
	end := k.activity.begin()
	err := k.step(k.Now())
	if err == nil || !strings.Contains(err.Error(), "the program under test sends commands without end") {
		t.Errorf("while a command runs: %v", err)
	}
	end()
	ok(t, k.step(k.Now()))
}

func TestActivityTellsOfCommandsSinceACount(t *testing.T) {
	t.Parallel()
	a := newActivity()
	before := a.count.Load()
	redistest.Want(t, "at first", a.since(before), false)
	end := a.begin()
	redistest.Want(t, "while a command runs", a.since(a.count.Load()), true)
	end()
	redistest.Want(t, "after it", a.since(before), true)
	redistest.Want(t, "since then", a.since(a.count.Load()), false)
}

// A worker that has just been started has not created its group: what is due must wait for it.
func TestAdvanceWaitsForTheGroupOfANewWorker(t *testing.T) {
	t.Parallel()
	k := &Kit{clock: newKitClock(), readers: newReaders(), workers: []*startedWorker{
		{queues: []string{"q"}, group: "g", ended: make(chan struct{})},
	}}
	redistest.Want(t, "without the queue", k.obstacle(&state{}), "")
	redistest.Want(t, "without the group", k.obstacle(&state{partitions: []*partition{{queue: "q", name: "q"}}}),
		`the worker of group "g" has not created its group in queue "q"`)
}
