package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// bustle is a system under load: producers, one or two groups, and bridges and workers that start and stop. Messages of
// the group "ours" fail, take long and become dead letters. The group "plain" has a worker that uses only plain
// commands.
type bustle struct {
	*stack
	plain *redistest.Ledger // of the group "plain"; nil if there is no such group
	sent  atomic.Int64
	stop  func()
}

// newBustle starts the load, which runs until stop is called or the test ends. With plain, there is a group "plain";
// its worker reads only partition 0, so the queue must have no other partition.
func newBustle(s *stack, partitions int, plain bool) *bustle {
	l := &bustle{stack: s}
	s.groups("ours")
	if plain {
		s.groups("plain")
		l.plain = &redistest.Ledger{}
		s.plainWorker("plain", recordIn(l.plain, "plain"))
	}
	if partitions > 1 {
		if _, err := s.operator().SetPartitions(s.t.Context(), s.queue, partitions, nil); err != nil {
			s.t.Fatal(err)
		}
	}
	s.bridge(quick())
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	l.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	s.t.Cleanup(l.stop)
	// repeat calls do at this interval until the load stops, with n = 0, 1, 2, …
	repeat := func(every time.Duration, do func(n int)) {
		all.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					do(n)
				}
			}
		})
	}
	var stopOldBridge func()
	repeat(1500*time.Millisecond, func(int) { // the bridge started above stays, and a second one is replaced each time
		stopNewBridge := s.start(func() (func(context.Context) error, error) {
			b, err := bridge.NewBridge(bridge.Config{Redis: s.redis, Prefix: s.prefix, Defaults: quick(), Logger: s.log,
				AnyServer: true})
			return b.Run, err
		})
		if stopOldBridge != nil {
			stopOldBridge()
		}
		stopOldBridge = stopNewBridge
	})
	var attempts sync.Map
	// handle fails the first delivery of messages whose number ends with 3, makes dead letters of those that end with
	// 77, and takes long for the first delivery of those that end with 5.
	handle := func(ctx context.Context, m *bridge.Message) error {
		n, _ := attempts.LoadOrStore(m.ID, new(atomic.Int64))
		switch delivery := n.(*atomic.Int64).Add(1); {
		case strings.HasSuffix(m.ID, "3") && delivery == 1:
			return errors.New("once more")
		case strings.HasSuffix(m.ID, "77"):
			return bridge.DeadLetter(errors.New("no good"))
		case strings.HasSuffix(m.ID, "5") && delivery == 1:
			timer := time.NewTimer(1500 * time.Millisecond) // longer than the visibility timeout
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		return nil
	}
	s.worker("ours", 50, handle)
	var stopWorker func()
	repeat(2*time.Second, func(int) { // the worker started above stays, and a second one is replaced each time
		if stopWorker != nil {
			stopWorker()
		}
		stopWorker = s.start(func() (func(context.Context) error, error) {
			w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: s.redis, Prefix: s.prefix, Queue: s.queue, Group: "ours",
				Concurrency: 10, Logger: s.log,
				Handler: func(ctx context.Context, m *bridge.Message) error {
					s.ledger.Delivered("ours", m.ID, lua.EntryTime(m.EntryID).UnixMilli(), m.Due.UnixMilli())
					return handle(ctx, m)
				}})
			return w.Run, err
		})
	})
	for p := range 3 {
		// every 7th message has a dedup window, and every 11th turn cancels a message
		repeat(3*time.Millisecond, func(n int) {
			id := fmt.Sprintf("%d-%d", p, n)
			options := []bridge.Option{bridge.WithID(id), bridge.In(spreadOver(400 * time.Millisecond)(n))}
			if n%7 == 0 {
				options = append(options, bridge.Dedup(2*time.Second))
			}
			receipt, err := s.client.Schedule(context.Background(), s.queue, []byte(id), options...)
			if err != nil {
				s.t.Error(err)
				return
			}
			s.ledger.Sent(id, receipt.Due.UnixMilli())
			if l.plain != nil {
				l.plain.Sent(id, receipt.Due.UnixMilli())
			}
			l.sent.Add(1)
			if n%11 == 0 {
				cancelled := fmt.Sprintf("gone-%d-%d", p, n)
				if _, err := s.client.Schedule(context.Background(), s.queue, nil, bridge.WithID(cancelled),
					bridge.In(time.Minute)); err != nil {
					s.t.Error(err)
				}
				if err := s.client.Cancel(context.Background(), s.queue, cancelled); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	return l
}

// start makes a bridge or a worker, and runs it until stop is called or the test ends.
func (s *stack) start(make func() (func(context.Context) error, error)) (stop func()) {
	run, err := make()
	if err != nil {
		s.t.Error(err)
		return func() {}
	}
	return s.run("bridge or worker", run)
}

// readAndAbandon reads up to three entries with a consumer that never acknowledges.
func (l *bustle) readAndAbandon(group string) {
	key := l.keys().Stream
	l.raw("XREADGROUP", "GROUP", group, "gone", "COUNT", "3", "STREAMS", key, ">")
}

// awaitAllDelivered waits until all messages were delivered to all groups and all partitions are empty.
func (l *bustle) awaitAllDelivered(partitions int) {
	l.t.Helper()
	groups := []string{"ours"}
	if l.plain != nil {
		groups = append(groups, "plain")
	}
	redistest.Eventually(l.t, 60*time.Second, func() (bool, string) {
		if r := l.ledger.Summary("ours"); r.Lost > 0 {
			return false, fmt.Sprintf("%+v, missing %v", r, l.ledger.Missing("ours", 5))
		}
		if l.plain != nil && l.plain.Summary("plain").Lost > 0 {
			return false, fmt.Sprint("plain: missing ", l.plain.Missing("plain", 5))
		}
		return l.partsEmpty(partitions, groups...)
	})
	l.ledger.Check(l.t, "ours")
	if l.plain != nil {
		l.plain.Check(l.t, "plain")
	}
}
