package bridge_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// index is unique by the ID of its order, not by the total.
var index = bridge.Kind[order]{Name: "index", Queue: "orders", UniqueBy: func(o order) []any { return []any{o.ID} }}

// uniqueRuns are the runs of a unique kind. A run holds on while a value of hold is awaited.
type uniqueRuns struct {
	began, goOn chan string

	mu      sync.Mutex
	running map[string]bool
	all     []string // <id> <total> <attempt>
	overlap bool     // two runs about the same overlapped
}

func newUniqueRuns() *uniqueRuns {
	return &uniqueRuns{began: make(chan string, 100), goOn: make(chan string), running: map[string]bool{}}
}

// run notes a run. An order whose total is "wait" waits for goOn.
func (u *uniqueRuns) run(d *bridge.Delivery[order]) {
	u.mu.Lock()
	u.overlap = u.overlap || u.running[d.ID]
	u.running[d.ID] = true
	u.all = append(u.all, fmt.Sprintf("%s %s %d", d.ID, d.Value.Total, d.Attempt))
	u.mu.Unlock()
	u.began <- d.ID
	if d.Value.Total == "wait" {
		<-u.goOn
	}
	u.mu.Lock()
	u.running[d.ID] = false
	u.mu.Unlock()
}

// want waits until these runs have begun, in this order, and no other.
func (u *uniqueRuns) want(t *testing.T, all ...string) {
	t.Helper()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		u.mu.Lock()
		defer u.mu.Unlock()
		got := strings.Join(u.all, "; ")
		return got == strings.Join(all, "; "), got
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.overlap {
		t.Error("two runs about the same overlapped")
	}
}

// wantDuplicate fails the test unless a message about the same is scheduled already.
func (s *shop) wantDuplicate(o order, options ...bridge.Option) {
	s.t.Helper()
	if _, err := index.Schedule(s.ctx, s.client, o, options...); !errors.Is(err, bridge.ErrDuplicate) {
		s.t.Errorf("a second message about %v: %v", o, err)
	}
}

// While a message is scheduled, a second one about the same must be refused, in all partitions. Messages about others,
// and of other kinds, must not.
func TestAUniqueMessageIsScheduledOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	other := index
	other.Name = "mail"
	for id := range 9 { // in all three partitions
		redistest.Must(index.Schedule(s.ctx, s.client, order{ID: id, Total: "1"}, bridge.In(time.Hour)))
		redistest.Must(other.Schedule(s.ctx, s.client, order{ID: id}, bridge.In(time.Hour)))
		s.wantDuplicate(order{ID: id, Total: "2"}, bridge.In(time.Minute))
		s.wantDuplicate(order{ID: id, Total: "2"})
	}
	m := redistest.Must(index.Message(order{ID: 3, Total: "4"}))
	results := redistest.Must(s.client.SendBatch(s.ctx, "orders", []bridge.NewMessage{m}))
	if !errors.Is(results[0].Err, bridge.ErrDuplicate) {
		t.Error("a message of a batch: ", results[0].Err)
	}
	id := redistest.Must(index.UniqueID(order{ID: 3}))
	check(s.client.Cancel(s.ctx, "orders", id))
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 3}, bridge.In(time.Hour)))
}

// Cancel must need only the values that identify the thing of the message, and must refuse a kind without UniqueBy.
func TestAUniqueMessageIsCancelledByItsValue(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 3, Total: "4"}, bridge.In(time.Hour)))
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 4}, bridge.In(time.Hour)))
	check(index.Cancel(s.ctx, s.client, order{ID: 3}))
	if err := index.Cancel(s.ctx, s.client, order{ID: 3}); !errors.Is(err, bridge.ErrNotScheduled) {
		t.Error("a second Cancel: ", err)
	}
	s.wantDuplicate(order{ID: 4}, bridge.In(time.Hour))
	err := closeOrder.Cancel(s.ctx, s.client, order{ID: 4})
	if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), "has no UniqueBy") {
		t.Error("Cancel of a kind that is not unique: ", err)
	}
}

// A change that comes while a message about the same runs must lead to exactly one more run, after this one.
func TestAChangeDuringARunLeadsToOneMoreRun(t *testing.T) {
	t.Parallel()
	s, runs, mux := newShop(t), newUniqueRuns(), &bridge.Mux{}
	index.Handle(mux, func(_ context.Context, d *bridge.Delivery[order]) error { runs.run(d); return nil })
	w := s.work("shop", mux)
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "wait"}))
	<-runs.began
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "first"}))
	s.wantDuplicate(order{ID: 1, Total: "second"})
	receipt := redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "third"}, bridge.Replace))
	redistest.Want(t, "replaced", receipt.Replaced, true)
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 2, Total: "other"}))
	runs.want(t, "index:1 wait 1", "index:2 other 1")
	runs.goOn <- ""
	runs.want(t, "index:1 wait 1", "index:2 other 1", "index:1 third 1")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return w.Stats().Acknowledged == 3, fmt.Sprintf("%+v", w.Stats())
	})
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "later"}))
	runs.want(t, "index:1 wait 1", "index:2 other 1", "index:1 third 1", "index:1 later 1")
}

// A message that is scheduled while the first one waits for its retry must run after that retry.
func TestAChangeDuringARetryRunsAfterIt(t *testing.T) {
	t.Parallel()
	s, runs, mux := newShop(t), newUniqueRuns(), &bridge.Mux{}
	index.Handle(mux, func(_ context.Context, d *bridge.Delivery[order]) error {
		runs.run(d)
		if d.Attempt == 1 && d.Value.Total == "first" {
			return bridge.RetryAfter(10*time.Minute, errors.New("not now"))
		}
		return nil
	})
	w := s.work("shop", mux)
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "first"}))
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return w.Stats().Retried == 1, fmt.Sprintf("%+v", w.Stats())
	})
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "second"}))
	s.wantDuplicate(order{ID: 1, Total: "third"})
	redistest.Must(s.client.Reschedule(s.ctx, "orders", "index:1", bridge.In(0), bridge.RetriesOf("shop")))
	runs.want(t, "index:1 first 1", "index:1 first 2", "index:1 second 1")
}

// A worker that ends without its message, as a killed one, must not let the next message about the same overtake it.
func TestAUniqueMessageOfAKilledWorkerComesFirst(t *testing.T) {
	t.Parallel()
	s, runs := newShop(t), newUniqueRuns()
	hung := &bridge.Mux{}
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	began := make(chan struct{})
	index.Handle(hung, func(context.Context, *bridge.Delivery[order]) error { close(began); <-end; return nil })
	killed := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{Redis: s.r, Prefix: s.prefix, Group: "shop", Mux: hung,
		ShutdownTimeout: -1, CancelGrace: time.Millisecond}))
	ctx, kill := context.WithCancel(s.ctx)
	ended := make(chan error)
	go func() { ended <- killed.Run(ctx) }()
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "first"}))
	<-began
	kill()
	if err := <-ended; !errors.Is(err, bridge.ErrAbandoned) {
		t.Error("the worker ended with ", err)
	}
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "second"}))
	mux := &bridge.Mux{}
	index.Handle(mux, func(_ context.Context, d *bridge.Delivery[order]) error { runs.run(d); return nil })
	s.work("shop", mux)
	runs.want(t, "index:1 first 2", "index:1 second 1")
}

// A queue that holds unique messages must not grow unasked. After a growth, messages must be unique as before.
func TestUniqueMessagesAndGrowth(t *testing.T) {
	t.Parallel()
	s, runs, mux := newShop(t), newUniqueRuns(), &bridge.Mux{}
	for id := range 9 {
		redistest.Must(index.Schedule(s.ctx, s.client, order{ID: id}, bridge.In(time.Hour)))
	}
	if _, err := s.operator.SetPartitions(s.ctx, "orders", 7, nil); !errors.Is(err, admin.ErrKeyed) {
		t.Error("a queue with unique messages grows: ", err)
	}
	redistest.Must(s.operator.SetPartitionsDespiteKeys(s.ctx, "orders", 7, nil))
	// Another client knows the new number at once: this one learns of it within seconds.
	s.client = redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: s.r, Prefix: s.prefix}))
	index.Handle(mux, func(_ context.Context, d *bridge.Delivery[order]) error { runs.run(d); return nil })
	s.work("shop", mux)
	for id := range 9 {
		s.wantDuplicate(order{ID: id, Total: "new"})
		redistest.Must(index.Schedule(s.ctx, s.client, order{ID: id, Total: "new"}, bridge.Replace))
		redistest.Want(t, "run", <-runs.began, fmt.Sprintf("index:%d", id))
	}
	redistest.Want(t, "runs", len(runs.all), 9)
}

// A dedup window must refuse further messages about the same until it ends, also after the run.
func TestADedupWindowOfAUniqueMessage(t *testing.T) {
	t.Parallel()
	s, runs, mux := newShop(t), newUniqueRuns(), &bridge.Mux{}
	index.Handle(mux, func(_ context.Context, d *bridge.Delivery[order]) error { runs.run(d); return nil })
	w := s.work("shop", mux)
	redistest.Must(index.Schedule(s.ctx, s.client, order{ID: 1, Total: "wait"}, bridge.Dedup(time.Hour)))
	<-runs.began
	s.wantDuplicate(order{ID: 1, Total: "during the run"})
	runs.goOn <- ""
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return w.Stats().Acknowledged == 1, fmt.Sprintf("%+v", w.Stats())
	})
	s.wantDuplicate(order{ID: 1, Total: "after the run"})
	runs.want(t, "index:1 wait 1")
}

// An imported message must be as unique as the exported one.
func TestAnImportedMessageIsUnique(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for id := range 9 {
		redistest.Must(index.Schedule(s.ctx, s.client, order{ID: id}, bridge.In(time.Hour)))
	}
	var records []admin.Record
	for record, err := range s.operator.Export("orders", admin.RecordScheduled).Records(s.ctx) {
		check(err)
		records = append(records, record)
	}
	redistest.Want(t, "records", len(records), 9)
	redistest.Must(s.operator.SetPartitions(s.ctx, "copies", 2, nil))
	im := redistest.Must(s.operator.Import(s.ctx, "copies", "test", 0))
	for _, failed := range im.Write(s.ctx, records) {
		check(failed)
	}
	copied := index
	copied.Queue = "copies"
	for id := range 9 {
		if _, err := copied.Schedule(s.ctx, s.client, order{ID: id}); !errors.Is(err, bridge.ErrDuplicate) {
			t.Errorf("a second message about order %d: %v", id, err)
		}
	}
}

// IDs must be equal for equal values alone, and must be legal whatever the values are.
func TestUniqueIDs(t *testing.T) {
	t.Parallel()
	by := func(name string, values ...any) string {
		k := bridge.Kind[int]{Name: name, Queue: "orders", UniqueBy: func(int) []any { return values }}
		return redistest.Must(k.UniqueID(0))
	}
	seen := map[string]bool{}
	hashed := func(text string) string { return fmt.Sprintf("k:#%x", sha256.Sum256([]byte(text))) }
	long := strings.Repeat("a", 252)
	for id, want := range map[string]string{
		by("close-order", 42, "north"):         `close-order:42,"north"`,
		by("close-order", "42,north"):          `close-order:"42,north"`,
		by("close-order", "42", "north"):       `close-order:"42","north"`,
		by("nightly"):                          "nightly:",
		by("", "a<b>&"):                        `:"a<b>&"`,
		by("k", struct{ A, B int }{1, 2}, nil): `k:{"A":1,"B":2},null`,
		by("k", "line\nline"):                  `k:"line\nline"`,
		by("k", `C:\ufffd`):                    `k:"C:\\ufffd"`,
		by("k", "\x7f"):                        hashed("\"\x7f\""),
		by("k", long):                          `k:"` + long + `"`,
		by("k", long+"a"):                      hashed(`"` + long + `a"`),
	} {
		redistest.Want(t, "ID", id, want)
		seen[id] = true
	}
	redistest.Want(t, "different IDs", len(seen), 11)
}

// A combination that cannot be unique must be refused.
func TestWhatCannotBeUniqueIsRefused(t *testing.T) {
	t.Parallel()
	by := func(value any) bridge.Kind[order] {
		return bridge.Kind[order]{Name: "k", Queue: "orders", UniqueBy: func(order) []any { return []any{value} }}
	}
	for want, k := range map[string]bridge.Kind[order]{
		`unique by "chan int": cannot be encoded: `: by(make(chan int)),
		`unique by "a\xff": must be UTF-8`:          by("a\xff"),
		`unique by "\\\xff": must be UTF-8`:         by("\\\xff"),
	} {
		_, err := k.Message(order{})
		if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for want, option := range map[string]bridge.Option{
		`id "m-1": is set by UniqueBy alone`: bridge.WithID("m-1"),
		`key "a": is set by UniqueBy alone`:  bridge.Key("a"),
	} {
		_, err := index.Message(order{}, option)
		if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	_, err := closeOrder.UniqueID(order{})
	if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), `kind "close-order": has no UniqueBy`) {
		t.Error("a kind that is not unique: ", err)
	}
}

// Many changes of an order lead to one message that waits.
func ExampleKind_UniqueID() {
	ctx, r, prefix, end := begin()
	defer end()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	type Order struct {
		ID    int
		Total string
	}
	IndexOrder := bridge.Kind[Order]{Name: "index-order", Queue: "orders",
		UniqueBy: func(o Order) []any { return []any{o.ID} }}

	for _, total := range []string{"9.90", "10.90"} {
		_, err = IndexOrder.Schedule(ctx, client, Order{42, total}, bridge.In(5*time.Second))
		fmt.Println("duplicate:", errors.Is(err, bridge.ErrDuplicate))
	}
	id, err := IndexOrder.UniqueID(Order{ID: 42})
	check(err)
	fmt.Println(id)
	// Output:
	// duplicate: false
	// duplicate: true
	// index-order:42
}

// An order that was paid in time is not closed.
func ExampleKind_Cancel() {
	ctx, r, prefix, end := begin()
	defer end()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	type Order struct {
		ID    int
		Total string
	}
	CloseOrder := bridge.Kind[Order]{Name: "close-order", Queue: "orders",
		UniqueBy: func(o Order) []any { return []any{o.ID} }}

	_, err = CloseOrder.Schedule(ctx, client, Order{42, "9.90"}, bridge.In(30*time.Minute))
	check(err)
	check(CloseOrder.Cancel(ctx, client, Order{ID: 42}))
	err = CloseOrder.Cancel(ctx, client, Order{ID: 42})
	fmt.Println(errors.Is(err, bridge.ErrNotScheduled))
	// Output: true
}
