package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// begun is one call of a handler.
type begun struct {
	attempt int
	at      time.Time
	entry   string // ID of the entry
}

// The handlers of 100 of 1,000 messages hang in each attempt and ignore their contexts. 50 of these messages hold an
// ordering key that another message waits for. All other messages are delivered in time, and once. A hung message is
// delivered to another handler within timeout, grace and visibility timeout, and becomes a dead letter after two
// attempts. Then the message that waits for its key is delivered.
func TestHandlersThatHangHoldNothingUp(t *testing.T) {
	t.Parallel()
	const (
		messages   = 1000
		timeout    = 300 * time.Millisecond // after which the worker cancels a handler's context
		grace      = 300 * time.Millisecond // after which the worker abandons a handler that does not return
		visibility = 2 * time.Second
		slack      = 2 * time.Second // for a busy machine
		attempts   = 2
	)
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	s.bridge(bridge.Policy{VisibilityTimeout: visibility, MaxAttempts: attempts, RetryMin: 20 * time.Millisecond,
		RetryMax: 50 * time.Millisecond, HandlerTimeout: timeout})
	hangs := func(i int) bool { return i%10 == 0 }
	id := func(i int) string { return fmt.Sprintf("%04d", i) }
	due := time.UnixMilli(s.serverNow()).Add(time.Second)
	var batch []bridge.NewMessage
	for i := range messages {
		m := bridge.NewMessage{ID: id(i), At: due.Add(time.Duration(i) * 2 * time.Millisecond),
			Headers: map[string]string{"hangs": fmt.Sprint(hangs(i))}}
		if i%20 < 2 { // a message that hangs, and the next one, which waits for the key of the first
			m.Key = fmt.Sprint("key ", i/20)
		}
		batch = append(batch, m)
	}
	s.send(batch)

	release := make(chan struct{})
	var mu sync.Mutex
	calls := map[string][]begun{}
	handle := func(_ context.Context, m *bridge.Message) error {
		mu.Lock()
		calls[m.ID] = append(calls[m.ID], begun{m.Attempt, time.Now(), m.EntryID})
		mu.Unlock()
		if m.Headers["hangs"] == "true" {
			<-release
		}
		return nil
	}
	var workers []*bridge.Worker
	for range 2 {
		w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: s.redis, Prefix: s.prefix, Queue: s.queue, Group: "g",
			Handler: handle, Concurrency: 30, AbandonAfter: grace, MaxAbandoned: messages, Logger: s.log})
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
		s.run("worker", w.Run)
	}
	t.Cleanup(sync.OnceFunc(func() { close(release) })) // runs before the cleanups that stop the workers
	stats := func() (sum bridge.WorkerStats) {
		for _, w := range workers {
			one := w.Stats()
			sum.Acknowledged += one.Acknowledged
			sum.Dead += one.Dead
			sum.Retried += one.Retried
			sum.Lost += one.Lost
			sum.Released += one.Released
			sum.TimedOut += one.TimedOut
			sum.Abandoned += one.Abandoned
		}
		return sum
	}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		ok, left := s.empty("g")
		return ok && stats().Dead == messages/10, fmt.Sprint(left, stats())
	})
	redistest.Want(t, "stats", stats(), bridge.WorkerStats{Acknowledged: messages * 9 / 10, Dead: messages / 10,
		Retried: messages / 10, TimedOut: messages / 5, Abandoned: messages / 5})
	for _, w := range workers {
		if err := w.Alive(); err != nil {
			t.Error(err)
		}
	}

	dead := map[string]admin.Letter{}
	for l, err := range s.operator().DeadLetters().List(t.Context(), s.queue, admin.LetterFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		dead[l.ID] = l
	}
	redistest.Want(t, "dead letters", len(dead), messages/10)
	mu.Lock()
	defer mu.Unlock()
	for i := range messages {
		got := calls[id(i)]
		if !hangs(i) {
			from := due.Add(time.Duration(i) * 2 * time.Millisecond)
			if i%20 == 1 { // its key is free once the hung message is a dead letter
				from = dead[id(i-1)].Dead // in time means: after this, and not after its due time
				if lua.EntryTime(got[0].entry).Before(from) {
					t.Errorf("%s became ready before %s was a dead letter", id(i), id(i-1))
				}
			}
			if late := got[0].at.Sub(from); len(got) != 1 || late > timeout+grace+visibility+slack {
				t.Errorf("%s: %d deliveries, the first %s late", id(i), len(got), late)
			}
			continue
		}
		if len(got) != attempts || got[0].attempt != 1 || got[1].attempt != 2 {
			t.Errorf("%s: deliveries %+v", id(i), got)
			continue
		}
		if elsewhere := got[1].at.Sub(got[0].at); elsewhere < timeout || elsewhere > timeout+grace+visibility+slack {
			t.Errorf("%s: its second attempt began %s after the first", id(i), elsewhere)
		}
		l := dead[id(i)]
		if l.Reason != "handler_timeout" || l.Attempt != attempts {
			t.Errorf("%s: dead letter %+v", id(i), l)
		}
		if after := l.Dead.Sub(got[1].at); after > timeout+grace+visibility+slack {
			t.Errorf("%s: dead %s after its last attempt began", id(i), after)
		}
	}
}

// Workers with hanging handlers are killed at random times. No attempt is delivered twice, the messages whose handlers
// hang become dead letters after their last attempt, and all others are delivered, also those that wait for the
// ordering key of a hung message.
func TestHandlersThatHangInWorkersThatAreKilled(t *testing.T) {
	t.Parallel()
	const messages, attempts = 300, 3
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	s.bridge(quick())
	f := newFamily(t, s, child{part: "hanging", group: "g"}, child{part: "hanging", group: "g"})
	var batch []bridge.NewMessage
	for i := range messages {
		m := bridge.NewMessage{ID: fmt.Sprint("works-", i), Delay: time.Duration(i) * 10 * time.Millisecond}
		if i%10 == 0 {
			m.ID, m.MaxAttempts = fmt.Sprint("hangs-", i), attempts
		}
		if i%20 < 2 { // a message that hangs, and the next one, which waits for the key of the first
			m.Key = fmt.Sprint("key ", i/20)
		}
		batch = append(batch, m)
	}
	s.send(batch)
	for range 15 {
		<-time.After(time.Duration(100+rand.IntN(300)) * time.Millisecond) // until the next kill
		c := f.children[rand.IntN(len(f.children))]
		f.kill(c)
		f.start(c)
	}
	redistest.Eventually(t, time.Minute, func() (bool, string) { return s.empty("g") })

	text, err := os.ReadFile(filepath.Join(f.dir, "ledger-g"))
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]map[string]int{}            // ID → attempt → calls
	for line := range strings.Lines(string(text)) { // "ID attempt"
		cells := strings.Fields(line)
		if calls[cells[0]] == nil {
			calls[cells[0]] = map[string]int{}
		}
		if calls[cells[0]][cells[1]]++; calls[cells[0]][cells[1]] > 1 {
			t.Errorf("%s: attempt %s twice", cells[0], cells[1])
		}
	}
	dead := map[string]bool{}
	for l, err := range s.operator().DeadLetters().List(t.Context(), s.queue, admin.LetterFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(l.ID, "hangs-") || l.Attempt != attempts || dead[l.ID] ||
			l.Reason != "handler_timeout" && l.Reason != "visibility_timeout" { // the last attempt may have been killed
			t.Errorf("dead letter %+v", l)
		}
		dead[l.ID] = true
	}
	redistest.Want(t, "dead letters", len(dead), messages/10)
	for _, m := range batch {
		if len(calls[m.ID]) == 0 && !dead[m.ID] {
			t.Errorf("%s was not delivered", m.ID)
		}
	}
}
