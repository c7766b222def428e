package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

type order struct {
	ID    int    `json:"id"`
	Total string `json:"total,omitempty"`
}

var (
	closeOrder = bridge.Kind[order]{Name: "close-order", Queue: "orders"}
	remind     = bridge.Kind[order]{Name: "remind", Queue: "orders"}
	closeShop  = bridge.Kind[string]{Name: "close-order", Queue: "shops"} // the name of another kind, in another queue
	plain      = bridge.Kind[[]byte]{Queue: "orders", Codec: bridge.RawCodec()}
)

// record returns a handler that appends its values to a list.
func record[T any](to *[]string, name string) func(context.Context, *bridge.Delivery[T]) error {
	return func(_ context.Context, d *bridge.Delivery[T]) error {
		*to = append(*to, fmt.Sprintf("%s %s %v", name, d.ID, d.Value))
		return nil
	}
}

// outcome hands a message to the handler of a mux.
func outcome(t *testing.T, mux *bridge.Mux, m *bridge.Message) bridge.Outcome {
	t.Helper()
	handler, err := mux.Handler()
	if err != nil {
		t.Fatal(err)
	}
	return bridge.OutcomeOf(handler(t.Context(), m))
}

// message returns the delivery of the message that a kind makes of a value.
func message[T any](t *testing.T, k bridge.Kind[T], value T) *bridge.Message {
	t.Helper()
	m, err := k.Message(value)
	if err != nil {
		t.Fatal(err)
	}
	return &bridge.Message{ID: "m-1", Queue: k.Queue, Group: "shop", Payload: m.Payload, Headers: m.Headers, Attempt: 1}
}

// A handler must get the values of its own kind alone, decoded, by queue and name.
func TestAKindReachesItsOwnHandler(t *testing.T) {
	t.Parallel()
	var got []string
	mux := &bridge.Mux{}
	closeOrder.Handle(mux, record[order](&got, "close"))
	remind.Handle(mux, record[order](&got, "remind"))
	closeShop.Handle(mux, record[string](&got, "shop"))
	plain.Handle(mux, record[[]byte](&got, "plain"))
	for _, m := range []*bridge.Message{
		message(t, closeOrder, order{ID: 42, Total: "9.90"}), message(t, remind, order{ID: 43}),
		message(t, closeShop, "north"), message(t, plain, []byte("a")),
		{ID: "from-python", Queue: "orders", Payload: []byte(`{"id": 44, "new": 1}`),
			Headers: map[string]string{"kind": "close-order"}},
	} {
		redistest.Want(t, m.ID, outcome(t, mux, m).Action, bridge.ActionAcknowledge)
	}
	redistest.Want(t, "values", strings.Join(got, "; "),
		"close m-1 {42 9.90}; remind m-1 {43 }; shop m-1 north; plain m-1 [97]; close from-python {44 }")
	redistest.Want(t, "queues", strings.Join(mux.Queues(), " "), "orders shops")
}

// A payload that is not of its kind can never be handled. The dead letter must tell why.
func TestAPayloadThatDoesNotDecodeIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	mux := &bridge.Mux{}
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { t.Error("handled"); return nil })
	for payload, want := range map[string]string{
		`{"id": "42"}`: `the payload does not fit kind "close-order": field "id": string is no int`,
		`{"id": 42`:    `the payload does not fit kind "close-order": unexpected end of JSON input`,
		`{"id": 1} 2`:  `the payload does not fit kind "close-order": invalid character '2' after top-level value`,
	} {
		m := message(t, closeOrder, order{})
		m.Payload = []byte(payload)
		got := outcome(t, mux, m)
		redistest.Want(t, payload, got.Action, bridge.ActionDeadLetter)
		redistest.Want(t, payload, got.Err.Error(), want)
	}
}

// A value must arrive as it was sent, also if its type has a method MarshalJSON with a pointer receiver.
func TestAValueArrivesAsItWasSent(t *testing.T) {
	t.Parallel()
	type payment struct{ Cents big.Int }
	paid := bridge.Kind[payment]{Name: "paid", Queue: "orders"}
	var got string
	mux := &bridge.Mux{}
	paid.Handle(mux, func(_ context.Context, d *bridge.Delivery[payment]) error {
		got = d.Value.Cents.String()
		return nil
	})
	sent := payment{}
	sent.Cents.SetInt64(990)
	redistest.Want(t, "action", outcome(t, mux, message(t, paid, sent)).Action, bridge.ActionAcknowledge)
	redistest.Want(t, "value", got, "990")
}

// JSON null must not become an empty order, nor a nil pointer. It stays a value of types such as maps.
func TestNullIsNoOrder(t *testing.T) {
	t.Parallel()
	null := func(queue string) *bridge.Message { return &bridge.Message{Queue: queue, Payload: []byte(" null\n")} }
	mux := &bridge.Mux{}
	bridge.Kind[order]{Queue: "values"}.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	pointers := bridge.Kind[*order]{Queue: "pointers"}
	pointers.Handle(mux, func(context.Context, *bridge.Delivery[*order]) error { return nil })
	maps := bridge.Kind[map[string]int]{Queue: "maps"}
	maps.Handle(mux, func(context.Context, *bridge.Delivery[map[string]int]) error { return nil })
	bridge.Kind[any]{Queue: "any"}.Handle(mux, func(context.Context, *bridge.Delivery[any]) error { return nil })
	for queue, want := range map[string]bridge.Action{"values": bridge.ActionDeadLetter,
		"pointers": bridge.ActionDeadLetter, "maps": bridge.ActionAcknowledge, "any": bridge.ActionAcknowledge} {
		redistest.Want(t, queue, outcome(t, mux, null(queue)).Action, want)
	}
	if _, err := pointers.Message(nil); !errors.Is(err, bridge.ErrInvalid) {
		t.Error("a nil pointer: ", err)
	}
	redistest.Want(t, "an empty map", outcome(t, mux, message(t, maps, nil)).Action, bridge.ActionAcknowledge)
}

// A codec may need something that is away for a while. Then it chooses the next step.
func TestACodecMayChooseTheNextStep(t *testing.T) {
	t.Parallel()
	for want, err := range map[bridge.Action]error{
		bridge.ActionSnooze: bridge.Snooze(time.Minute), bridge.ActionRelease: bridge.Release(nil),
		bridge.ActionRetry:      bridge.RetryAfter(time.Minute, errors.New("no schema")),
		bridge.ActionDeadLetter: errors.New("no such field"),
	} {
		mux := &bridge.Mux{}
		k := bridge.Kind[int]{Queue: "orders", Codec: bridge.CodecOf(
			func(int) ([]byte, error) { return nil, nil }, func([]byte) (int, error) { return 0, err })}
		k.Handle(mux, func(context.Context, *bridge.Delivery[int]) error { return nil })
		redistest.Want(t, fmt.Sprint(err), outcome(t, mux, message(t, k, 0)).Action, want)
	}
}

// An option of the program may give all messages one map of headers. The kind must not write into it.
func TestAKindLeavesTheHeadersOfAnOptionAlone(t *testing.T) {
	t.Parallel()
	shared := map[string]string{"tenant": "north"}
	for _, k := range []bridge.Kind[order]{closeOrder, remind} {
		m, err := k.Message(order{ID: 1}, func(m *bridge.NewMessage) { m.Headers = shared })
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "headers", fmt.Sprint(m.Headers), fmt.Sprintf("map[kind:%s tenant:north]", k.Name))
	}
	redistest.Want(t, "shared headers", fmt.Sprint(shared), "map[tenant:north]")
}

// A worker of an old release must not take away the messages of a new kind. It snoozes them for UnknownKindTime, even
// if a handler of the new release had snoozed them often. Then they become dead letters.
func TestAMessageOfAnUnknownKindIsSnoozedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mux := &bridge.Mux{}
		remind.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
		handler, err := mux.Handler()
		if err != nil {
			t.Fatal(err)
		}
		deliver := func(snoozes int) bridge.Outcome {
			m := message(t, closeOrder, order{})
			m.Extra = map[string]string{"snoozes": fmt.Sprint(snoozes)}
			return bridge.OutcomeOf(handler(t.Context(), m))
		}
		redistest.Want(t, "a message that was snoozed before", deliver(500).Action, bridge.ActionSnooze)
		began := time.Now()
		for snoozes := range bridge.MaxUnknownSnoozes {
			got := deliver(snoozes)
			redistest.Want(t, fmt.Sprint("action after snoozes: ", snoozes), got.Action, bridge.ActionSnooze)
			<-time.After(got.Delay)
		}
		if all := time.Since(began); all < bridge.UnknownKindTime || all > bridge.UnknownKindTime+time.Minute {
			t.Errorf("all snoozes last %v", all)
		}
		got := deliver(bridge.MaxUnknownSnoozes)
		redistest.Want(t, "action at the end", got.Action, bridge.ActionDeadLetter)
		redistest.Want(t, "error", got.Err.Error(),
			`no worker of group "shop" knows kind "close-order": it was snoozed 60 times`)
	})
}

// Middleware must wrap every kind, the first one outermost, also kinds that are added later, and unknown ones.
func TestMiddlewareWrapsEveryKind(t *testing.T) {
	t.Parallel()
	var calls []string
	named := func(name string) bridge.Middleware {
		return func(next bridge.Handler) bridge.Handler {
			return func(ctx context.Context, m *bridge.Message) error {
				calls = append(calls, name+" "+m.Headers[bridge.KindHeader])
				return next(ctx, m)
			}
		}
	}
	mux := &bridge.Mux{}
	mux.Use(named("outer"), named("inner"))
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	redistest.Want(t, "known", outcome(t, mux, message(t, closeOrder, order{})).Action, bridge.ActionAcknowledge)
	redistest.Want(t, "unknown", outcome(t, mux, message(t, remind, order{})).Action, bridge.ActionSnooze)
	redistest.Want(t, "calls", strings.Join(calls, ", "),
		"outer close-order, inner close-order, outer remind, inner remind")
}

// A copy of a mux must have the further middleware outermost. Later additions to one must not change the other.
func TestACopyOfAMuxHasFurtherMiddleware(t *testing.T) {
	t.Parallel()
	var calls []string
	named := func(name string) bridge.Middleware {
		return func(next bridge.Handler) bridge.Handler {
			return func(ctx context.Context, m *bridge.Message) error {
				calls = append(calls, name)
				return next(ctx, m)
			}
		}
	}
	mux := &bridge.Mux{}
	mux.Use(named("inner"))
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	traced := mux.With(named("outer"))
	mux.Use(named("later"))
	remind.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	redistest.Want(t, "copy", outcome(t, traced, message(t, closeOrder, order{})).Action, bridge.ActionAcknowledge)
	redistest.Want(t, "kind of the mux alone", outcome(t, traced, message(t, remind, order{})).Action,
		bridge.ActionSnooze)
	redistest.Want(t, "mux", outcome(t, mux, message(t, remind, order{})).Action, bridge.ActionAcknowledge)
	redistest.Want(t, "calls", strings.Join(calls, " "), "outer inner outer inner inner later")
	if _, err := mux.With(nil).Handler(); !errors.Is(err, bridge.ErrInvalid) {
		t.Error("a copy with middleware that is nil: ", err)
	}
}

// Middleware that returns no handler must not make known kinds unknown. The fault must leave the mux open to a mend.
func TestMiddlewareMustReturnAHandler(t *testing.T) {
	t.Parallel()
	mux := &bridge.Mux{}
	if _, err := mux.Handler(); !errors.Is(err, bridge.ErrInvalid) {
		t.Error("a mux without handlers: ", err)
	}
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	mux.Use(func(bridge.Handler) bridge.Handler { return nil })
	_, err := mux.Handler()
	if err == nil || !strings.Contains(err.Error(), `middleware "nil": must return a handler`) {
		t.Error(err)
	}
}

// The fields of an entry that another program added may hold anything. None of them may reach a handler by mistake: a
// retry writes a kind that is not UTF-8 into another field, and must not pass for a message without a kind.
func TestAKindThatNobodyCanHaveIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	mux := &bridge.Mux{}
	plain.Handle(mux, func(context.Context, *bridge.Delivery[[]byte]) error { t.Error("handled"); return nil })
	handler, err := mux.Handler()
	if err != nil {
		t.Fatal(err)
	}
	for want, m := range map[string]*bridge.Message{
		`kind "\xff": must be at most 128 bytes`: {Headers: map[string]string{"kind": "\xff"}},
		`kind "\xfe": must be at most 128 bytes`: {Extra: map[string]string{"b64:h:kind": "/g=="}},
		`(200 bytes): must be at most 128 bytes`: {Headers: map[string]string{"kind": strings.Repeat("k", 200)}},
	} {
		m.Queue = "orders"
		got := bridge.OutcomeOf(handler(t.Context(), m))
		redistest.Want(t, want, got.Action, bridge.ActionDeadLetter)
		if got.Err == nil || !strings.Contains(got.Err.Error(), want) {
			t.Errorf("no %q in the error: %v", want, got.Err)
		}
	}
	m := &bridge.Message{Queue: "orders", Headers: map[string]string{"kind": "next"},
		Extra: map[string]string{"snoozes": "-1"}}
	redistest.Want(t, "a forged number of snoozes", bridge.OutcomeOf(handler(t.Context(), m)).Delay, time.Second)
}

// A worker with a mux must not get messages that it can only snooze, nor an order of queues that nobody chose.
func TestTheQueuesOfAWorkerAreThoseOfItsMux(t *testing.T) {
	t.Parallel()
	newWorker := func(cfg bridge.WorkerConfig) error {
		cfg.Mux = &bridge.Mux{}
		remind.Handle(cfg.Mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
		closeShop.Handle(cfg.Mux, func(context.Context, *bridge.Delivery[string]) error { return nil })
		_, err := bridge.NewWorker(cfg)
		return err
	}
	queues := []bridge.WorkerQueue{{Queue: "shops"}, {Queue: "orders"}, {Queue: "mails"}}
	err := newWorker(bridge.WorkerConfig{Queues: queues[:2]})
	redistest.Want(t, "queue after the slice", queues[2].Queue, "mails")
	for _, fault := range []string{"queues", "strict"} {
		if strings.Contains(err.Error(), fault) {
			t.Error("the queues of the mux in another order: ", err)
		}
	}
	err = newWorker(bridge.WorkerConfig{Queues: queues})
	if !strings.Contains(err.Error(), `queues "mails": has no kind in the mux`) {
		t.Error("a queue without a kind: ", err)
	}
	err = newWorker(bridge.WorkerConfig{Strict: true})
	if !strings.Contains(err.Error(), `strict "true": needs Queues`) {
		t.Error("strict without an order: ", err)
	}
}

// NewWorker must name all faults of the mux and of the configuration at once.
func TestNewWorkerNamesAllFaultsOfAMux(t *testing.T) {
	t.Parallel()
	mux := &bridge.Mux{}
	mux.Use(nil)
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	remind.Handle(mux, nil)
	noQueue := bridge.Kind[order]{Name: "a\nb", Queue: "no queue", Codec: bridge.CodecOf[order](nil, nil)}
	noQueue.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	_, err := bridge.NewWorker(bridge.WorkerConfig{Queue: "other", Mux: mux,
		Handler: func(context.Context, *bridge.Message) error { return nil }})
	if !errors.Is(err, bridge.ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{`middleware "nil": is required`,
		`kind "close-order": has two handlers for queue "orders"`,
		`handler of kind "remind" "nil": is required`, `queue "no queue": must be`, `kind "a\nb": must be`,
		`codec "nil": must have two functions`,
		`handler "": must be nil when there is a mux`, `queues "orders": has a kind in the mux`, "redis",
		`group "": `} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in the error:\n%v", want, err)
		}
	}
	_, err = bridge.NewWorker(bridge.WorkerConfig{Mux: &bridge.Mux{}})
	if err == nil || !strings.Contains(err.Error(), `mux "": has no handler`) {
		t.Error(err)
	}
}

// A group that needs only some kinds must be able to acknowledge the others.
func TestOtherwiseHandlesTheOtherKinds(t *testing.T) {
	t.Parallel()
	var got []string
	mux := &bridge.Mux{}
	closeOrder.Handle(mux, record[order](&got, "close"))
	mux.Otherwise(func(_ context.Context, m *bridge.Message) error {
		got = append(got, "other "+m.Headers[bridge.KindHeader])
		return nil
	})
	for _, m := range []*bridge.Message{message(t, closeOrder, order{ID: 42}), message(t, remind, order{ID: 43}),
		{ID: "m-2", Queue: "orders", Headers: map[string]string{"kind": "\xff"}}} {
		redistest.Want(t, m.ID, outcome(t, mux, m).Action, bridge.ActionAcknowledge)
	}
	redistest.Want(t, "calls", strings.Join(got, "; "), "close m-1 {42 }; other remind; other \xff")
	twice := &bridge.Mux{}
	for range 2 {
		twice.Otherwise(func(context.Context, *bridge.Message) error { return nil })
	}
	if _, err := twice.Handler(); !errors.Is(err, bridge.ErrInvalid) {
		t.Error("two handlers of other kinds: ", err)
	}
}

// An addition to a mux after NewWorker would have no effect, so it must panic.
func TestAMuxInUseTakesNoFurtherHandler(t *testing.T) {
	t.Parallel()
	mux := &bridge.Mux{}
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	if _, err := mux.Handler(); err != nil {
		t.Fatal(err)
	}
	for name, add := range map[string]func(){
		"Handle": func() { remind.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil }) },
		"Use":    func() { mux.Use(func(next bridge.Handler) bridge.Handler { return next }) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic", name)
				}
			}()
			add()
		}()
	}
}

// An option whose value means "not set" is a mistake of the program, and must be refused before Redis is touched.
func TestOptionsRefuseValuesThatMeanNothing(t *testing.T) {
	t.Parallel()
	r, err := bridge.Dial(t.Context(), redistest.Shared(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: redistest.Shared(t).Prefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	for want, option := range map[string]bridge.Option{
		`id ""`: bridge.WithID(""), `at "zero time"`: bridge.At(time.Time{}), `max attempts "0"`: bridge.MaxAttempts(0),
		`max snoozes "0"`: bridge.MaxSnoozes(0), `max crashes "0"`: bridge.MaxCrashes(0), `key ""`: bridge.Key(""),
		`expires "zero time"`:      bridge.ExpiresAt(time.Time{}),
		`header kind "close-shop"`: bridge.Header("kind", "close-shop"),
		`option "nil"`:             nil,
	} {
		_, err := closeOrder.Schedule(t.Context(), client, order{ID: 1}, option)
		if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	_, err = client.Schedule(t.Context(), "orders", nil, nil)
	if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), `option "nil": must be an Option`) {
		t.Error("Schedule with a nil option: ", err)
	}
	_, err = client.Reschedule(t.Context(), "orders", "m-1", bridge.At(time.Time{}))
	if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), `at "zero time"`) {
		t.Error("Reschedule to the zero time: ", err)
	}
	unencodable := bridge.Kind[chan int]{Name: "never", Queue: "orders"}
	if _, err := unencodable.Schedule(t.Context(), client, nil); !errors.Is(err, bridge.ErrInvalid) {
		t.Error("a value without a JSON form: ", err)
	}
}

// Both sides of an application share the kinds of its messages.
func ExampleKind() {
	ctx, r, prefix, end := begin()
	defer end()
	type Order struct{ ID int }
	CloseOrder := bridge.Kind[Order]{Name: "close-order", Queue: "orders"}
	SendMail := bridge.Kind[string]{Name: "send-mail", Queue: "mails"}

	closed := make(chan int)
	mux := &bridge.Mux{}
	CloseOrder.Handle(mux, func(_ context.Context, d *bridge.Delivery[Order]) error {
		closed <- d.Value.ID
		return nil
	})
	SendMail.Handle(mux, func(context.Context, *bridge.Delivery[string]) error { return nil })
	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Group: "shop", Mux: mux})
	check(err)
	ctx, stop := context.WithCancel(ctx)
	running := make(chan error)
	go func() { running <- worker.Run(ctx) }()

	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	receipt, err := CloseOrder.Schedule(ctx, client, Order{ID: 42}, bridge.In(50*time.Millisecond),
		bridge.WithID("close-42"))
	check(err)
	fmt.Println(receipt.ID, "closes order", <-closed)
	stop()
	check(<-running)
	// Output: close-42 closes order 42
}

// A mux may log each delivery, or wrap it in a transaction.
func ExampleMux_Use() {
	mux := &bridge.Mux{}
	mux.Use(func(next bridge.Handler) bridge.Handler {
		return func(ctx context.Context, m *bridge.Message) error {
			err := next(ctx, m)
			fmt.Println(m.ID, m.Headers[bridge.KindHeader], bridge.OutcomeOf(err).Action)
			return err
		}
	})
	remind.Handle(mux, func(_ context.Context, d *bridge.Delivery[order]) error {
		if d.Value.ID == 0 {
			return bridge.DeadLetter(errors.New("no such order"))
		}
		return nil
	})
	handler, err := mux.Handler()
	check(err)
	m, err := remind.Message(order{ID: 42})
	check(err)
	check(handler(context.Background(),
		&bridge.Message{ID: "remind-42", Queue: "orders", Payload: m.Payload, Headers: m.Headers}))
	// Output: remind-42 remind acknowledge
}

// A codec of two functions serves formats that duestream does not know.
func ExampleCodecOf() {
	names := bridge.Kind[[]string]{Name: "greet", Queue: "greetings", Codec: bridge.CodecOf(
		func(all []string) ([]byte, error) { return []byte(strings.Join(all, ",")), nil },
		func(payload []byte) ([]string, error) {
			return slices.Collect(strings.SplitSeq(string(payload), ",")), nil
		})}
	m, err := names.Message([]string{"ann", "bob"})
	check(err)
	fmt.Printf("%s %v\n", m.Payload, m.Headers)
	// Output: ann,bob map[kind:greet]
}
