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

// bustle is a system under load: producers, two groups, and bridges that start and stop. One group fails, is slow,
// and abandons messages.
type bustle struct {
	*stack
	plain *redistest.Ledger // of the plain group; nil if there is none
	sent  atomic.Int64
	stop  func()
}

// newBustle starts the load. The plain group reads partition 0 only, so it suits queues without other partitions.
func newBustle(s *stack, partitions int, plain bool) *bustle {
	l := &bustle{stack: s}
	s.groups("ours")
	if plain {
		s.groups("plain")
		l.plain = &redistest.Ledger{}
		s.plainReader("plain", l.plain)
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
	again := func(every time.Duration, do func(n int)) {
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
	var coming, going func()
	again(1500*time.Millisecond, func(int) { // one bridge stays, the other is replaced again and again
		coming = s.start(func() (func(context.Context) error, error) {
			b, err := bridge.NewBridge(bridge.Config{Redis: s.redis, Prefix: s.prefix, Defaults: quick(), Logger: s.log,
				AnyServer: true})
			return b.Run, err
		})
		if going != nil {
			going()
		}
		going = coming
	})
	var attempts sync.Map
	handle := func(ctx context.Context, m *bridge.Message) error {
		n, _ := attempts.LoadOrStore(m.ID, new(atomic.Int64))
		switch k := n.(*atomic.Int64).Add(1); {
		case strings.HasSuffix(m.ID, "3") && k == 1:
			return errors.New("once more")
		case strings.HasSuffix(m.ID, "77"):
			return bridge.DeadLetter(errors.New("no good"))
		case strings.HasSuffix(m.ID, "5") && k == 1:
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
	var leaving func()
	again(2*time.Second, func(int) { // another worker that is replaced again and again
		if leaving != nil {
			leaving()
		}
		leaving = s.start(func() (func(context.Context) error, error) {
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
		again(3*time.Millisecond, func(n int) {
			id := fmt.Sprintf("%d-%d", p, n)
			options := []bridge.Option{bridge.WithID(id), bridge.In(within(400 * time.Millisecond)(n))}
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
				gone := fmt.Sprintf("gone-%d-%d", p, n)
				if _, err := s.client.Schedule(context.Background(), s.queue, nil, bridge.WithID(gone),
					bridge.In(time.Minute)); err != nil {
					s.t.Error(err)
				}
				if err := s.client.Cancel(context.Background(), s.queue, gone); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	return l
}

// start runs a part until stop is called or the test ends.
func (s *stack) start(make func() (func(context.Context) error, error)) (stop func()) {
	run, err := make()
	if err != nil {
		s.t.Error(err)
		return func() {}
	}
	return s.run("part", run)
}

// abandoning reads with a consumer that never acknowledges.
func (l *bustle) abandoning(group string) {
	key := l.keys().Stream
	l.raw("XREADGROUP", "GROUP", group, "gone", "COUNT", "3", "STREAMS", key, ">")
}

// ended waits until all messages were delivered, in all partitions.
func (l *bustle) ended(partitions int) {
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
		for i := range partitions {
			if ok, left := l.part(i).empty(groups...); !ok {
				return false, fmt.Sprintf("partition %d: %s", i, left)
			}
		}
		return true, ""
	})
	l.ledger.Check(l.t, "ours")
	if l.plain != nil {
		l.plain.Check(l.t, "plain")
	}
}
