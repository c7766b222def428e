package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// shop is a queue of three partitions with a running bridge, and with workers that have muxes.
type shop struct {
	t        *testing.T
	ctx      context.Context
	r        *bridge.Redis
	prefix   string
	client   *bridge.Client
	operator *admin.Admin
	workers  sync.WaitGroup
	stops    []context.CancelFunc // of the workers

	concurrency int // of further workers; 0 = the default

	mu      sync.Mutex
	handled map[string]int
}

func newShop(t *testing.T) *shop {
	t.Helper()
	ctx, r, prefix, end := begin()
	s := &shop{t: t, r: r, prefix: prefix, handled: map[string]int{},
		client:   redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})),
		operator: redistest.Must(admin.New(r, prefix))}
	ctx, stop := context.WithCancel(ctx)
	s.ctx = ctx
	t.Cleanup(func() { stop(); s.stopWorkers(); end() })
	redistest.Must(s.operator.SetPartitions(ctx, "orders", 3, nil))
	return s
}

// note returns a handler that counts the deliveries of a group.
func note[T any](s *shop, as string) func(context.Context, *bridge.Delivery[T]) error {
	return func(_ context.Context, d *bridge.Delivery[T]) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.handled[d.Group+" "+as+" "+d.ID]++
		return nil
	}
}

func (s *shop) work(group string, mux *bridge.Mux) *bridge.Worker {
	s.t.Helper()
	w := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{Redis: s.r, Prefix: s.prefix, Group: group, Mux: mux,
		Concurrency: s.concurrency}))
	ctx, stop := context.WithCancel(s.ctx)
	s.stops = append(s.stops, stop)
	s.workers.Go(func() { check(w.Run(ctx)) })
	return w
}

func (s *shop) stopWorkers() {
	for _, stop := range s.stops {
		stop()
	}
	s.workers.Wait()
}

// eventually waits until exactly these deliveries were handled, each once.
func (s *shop) eventually(want ...string) {
	s.t.Helper()
	redistest.Eventually(s.t, time.Minute, func() (bool, string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var got []string
		for delivery, n := range s.handled {
			got = append(got, strings.Repeat(delivery+";", n))
		}
		slices.Sort(got)
		all := strings.Join(got, "")
		return all == strings.Join(slices.Sorted(slices.Values(want)), ";")+";", all
	})
}

// dead waits until the queue has n dead letters, and returns their errors by group and ID.
func (s *shop) dead(n int) map[string]string {
	s.t.Helper()
	letters := map[string]string{}
	redistest.Eventually(s.t, time.Minute, func() (bool, string) {
		clear(letters)
		for l, err := range s.operator.DeadLetters().List(s.ctx, "orders", admin.LetterFilter{}) {
			if err != nil {
				return false, err.Error()
			}
			letters[l.Group+" "+l.ID] = l.Reason + ": " + l.Error
		}
		return len(letters) == n, fmt.Sprint(letters)
	})
	return letters
}

// A message that cannot be decoded must end the turn of its ordering key, and be handled after its letter was mended.
func TestADecodeFailureLetsItsKeyGoOn(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	mux := &bridge.Mux{}
	closeOrder.Handle(mux, note[order](s, "close"))
	for id, payload := range map[string]string{"1": `{"id":1}`, "2": `{"id":"two"}`, "3": `{"id":3}`} {
		redistest.Must(s.client.Schedule(s.ctx, "orders", []byte(payload), bridge.WithID(id), bridge.Key("k"),
			bridge.Header(bridge.KindHeader, "close-order"), bridge.In(200*time.Millisecond)))
	}
	s.work("shop", mux)
	s.eventually("shop close 1", "shop close 3")
	redistest.Want(t, "letter", s.dead(1)["shop 2"],
		`dead_letter: the payload does not fit kind "close-order": field "id": string is no int`)
	mended := []byte(`{"id":2}`)
	redistest.Must(s.operator.DeadLetters().RedriveMatching(s.ctx, "orders", admin.LetterFilter{},
		admin.RedriveOptions{Payload: &mended}))
	s.eventually("shop close 1", "shop close 2", "shop close 3")
}

// During a deployment a worker of the old release must leave the messages of a new kind to a worker of the new release.
func TestAMessageOfANewKindWaitsForTheNewRelease(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	older, newer := &bridge.Mux{}, &bridge.Mux{}
	remind.Handle(older, note[order](s, "remind"))
	remind.Handle(newer, note[order](s, "remind"))
	closeOrder.Handle(newer, note[order](s, "close"))
	old := s.work("shop", older)
	redistest.Must(closeOrder.Schedule(s.ctx, s.client, order{ID: 1}, bridge.WithID("c"), bridge.Key("k")))
	redistest.Must(remind.Schedule(s.ctx, s.client, order{ID: 1}, bridge.WithID("behind"), bridge.Key("k")))
	redistest.Must(remind.Schedule(s.ctx, s.client, order{ID: 2}, bridge.WithID("beside")))
	s.eventually("shop remind beside") // and not the message behind the one of the new kind
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return old.Stats().Snoozed > 0, fmt.Sprintf("%+v", old.Stats())
	})
	s.eventually("shop remind beside")
	s.stopWorkers()
	s.work("shop", newer)
	s.eventually("shop close c", "shop remind behind", "shop remind beside")
	s.dead(0)
}

// A group that does not know a kind must not disturb a group that knows it. Its few snoozes must end in a dead letter
// of its own, which a new header and a redrive bring to a handler.
func TestAKindThatOneGroupDoesNotKnow(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	snoozes := 1
	check(s.operator.WritePolicy(s.ctx, "orders", "", admin.PolicyUpdate{MaxSnoozes: &snoozes}))
	for _, group := range []string{"shop", "mails"} {
		redistest.Must(bridge.CreateGroup(s.ctx, s.r, s.prefix, "orders", group))
	}
	knows, lacks := &bridge.Mux{}, &bridge.Mux{}
	closeOrder.Handle(knows, note[order](s, "close"))
	remind.Handle(lacks, note[order](s, "remind"))
	s.work("shop", knows)
	s.work("mails", lacks)
	m := redistest.Must(closeOrder.Message(order{ID: 1}))
	redistest.Must(s.client.Recur(s.ctx, bridge.Recurrence{Name: "nightly", Queue: "orders", Payload: m.Payload,
		Headers: m.Headers, Every: 1000 * time.Hour}))
	id := redistest.Must(s.client.RunRecurrence(s.ctx, "orders", "nightly")).ID
	s.eventually("shop close " + id)
	if got := s.dead(1)["mails "+id]; !strings.HasPrefix(got, "max_snoozes") {
		t.Error("letter: ", got)
	}
	edited := maps.Clone(m.Headers)
	edited[bridge.KindHeader] = remind.Name
	redistest.Must(s.operator.DeadLetters().RedriveMatching(s.ctx, "orders", admin.LetterFilter{},
		admin.RedriveOptions{Headers: &edited}))
	s.eventually("shop close "+id, "mails remind "+id)
	s.dead(0)
}

// The name of a kind that is not UTF-8 stands in another field after a retry. The retry must not reach the handler of
// messages without a kind.
func TestARetryKeepsAKindThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	redistest.Must(s.client.Schedule(s.ctx, "orders", []byte("a"), bridge.WithID("plain")))
	redistest.Must(bridge.CreateGroup(s.ctx, s.r, s.prefix, "orders", "shop"))
	stream := s.prefix + ":{orders}:stream"
	for id, kind := range map[string]string{"first": "\xff", "retried": "\xfe"} {
		check(s.r.Client.Do(s.ctx, s.r.Client.B().Arbitrary("XADD").Keys(stream).Args("*", "id", id, "payload", "p",
			"h:kind", kind, "snoozes", "-7").Build()).Error())
	}
	// The worker of an older release has no mux. It fails, so that the message is retried.
	failing := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{Redis: s.r, Prefix: s.prefix, Group: "shop",
		Queue: "orders", Handler: func(_ context.Context, m *bridge.Message) error {
			if m.ID == "retried" && m.Attempt == 1 {
				return bridge.RetryAfter(time.Second, errors.New("not now"))
			}
			return bridge.RetryAfter(time.Second, errors.New("not mine"))
		}}))
	ctx, stop := context.WithCancel(s.ctx)
	done := make(chan error)
	go func() { done <- failing.Run(ctx) }()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return failing.Stats().Retried >= 3, fmt.Sprintf("%+v", failing.Stats())
	})
	stop()
	check(<-done)
	mux := &bridge.Mux{}
	plain.Handle(mux, note[[]byte](s, "plain"))
	s.work("shop", mux)
	letters := s.dead(2)
	for _, id := range []string{"first", "retried"} {
		if got := letters["shop "+id]; !strings.HasPrefix(got, `dead_letter: kind "`) {
			t.Errorf("letter of %s: %s", id, got)
		}
	}
	s.eventually("shop plain plain")
}
