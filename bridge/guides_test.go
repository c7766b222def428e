package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// The Go code of docs/guides is in these examples, line by line; TestGuidesGo compares them. Where a reader would wait,
// the examples move messages to now.

// guide holds the client, the operator and the context that the pages use without declaring them, and a running bridge.
type guide struct {
	ctx      context.Context
	r        *bridge.Redis
	prefix   string
	client   *bridge.Client
	operator *admin.Admin
	stop     context.CancelFunc
	workers  sync.WaitGroup
	end      func()
}

func newGuide() *guide {
	ctx, r, prefix, end := begin()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	g := &guide{r: r, prefix: prefix, client: client, operator: redistest.Must(admin.New(r, prefix)), end: end}
	g.ctx, g.stop = context.WithCancel(ctx)
	return g
}

// serve runs a worker until the example ends.
func (g *guide) serve(queue, group string, handler func(context.Context, *bridge.Message) error) {
	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: g.r, Prefix: g.prefix, Queue: queue, Group: group,
		Handler: handler})
	check(err)
	g.workers.Go(func() { check(worker.Run(g.ctx)) })
}

// close stops the workers and the bridge.
func (g *guide) close() {
	g.stop()
	g.workers.Wait()
	check(g.client.Close())
	g.end()
}

func Example_unpaidOrder() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client
	closed := make(chan string, 10)
	closeUnlessPaid := func(order string) error {
		closed <- order
		return nil
	}

	_, err := client.Schedule(ctx, "orders", []byte("42"), bridge.WithID("close-42"), bridge.In(30*time.Minute))
	check(err)

	// when it is paid
	err = client.Cancel(ctx, "orders", "close-42")
	if errors.Is(err, bridge.ErrNotScheduled) {
		fmt.Println("too late: it is being closed, or was; the order's own state decides")
	}

	// of the worker
	handler := func(ctx context.Context, m *bridge.Message) error {
		return closeUnlessPaid(string(m.Payload)) // one transaction: it may run again, and concurrently with the payment
	}

	fmt.Println("cancelled:", err == nil)
	g.serve("orders", "shop", handler)
	_, err = client.Schedule(ctx, "orders", []byte("43"), bridge.WithID("close-43"), bridge.In(30*time.Minute))
	check(err)
	_, err = client.Reschedule(ctx, "orders", "close-43", bridge.In(0))
	check(err)
	fmt.Println("closed:", <-closed)
	// Output:
	// cancelled: true
	// closed: 43
}

func Example_reminder() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client
	ends := time.Now().AddDate(0, 1, 0)

	_, err := client.Schedule(ctx, "memberships", []byte("7"), bridge.WithID("remind-7"), bridge.Replace,
		bridge.At(ends.AddDate(0, 0, -3)), bridge.ExpiresAt(ends))
	check(err)

	ends = ends.AddDate(1, 0, 0) // it was renewed: the same call again, with the new end
	receipt, err := client.Schedule(ctx, "memberships", []byte("7"), bridge.WithID("remind-7"), bridge.Replace,
		bridge.At(ends.AddDate(0, 0, -3)), bridge.ExpiresAt(ends))
	check(err)

	fmt.Println(receipt.Replaced, receipt.Due.After(ends.AddDate(0, 0, -4)))
	// Output: true true
}

func Example_growingGaps() {
	g := newGuide()
	defer g.close()
	ctx, client, operator := g.ctx, g.client, g.operator

	var gaps []time.Duration
	for n := range 10 {
		gaps = append(gaps, time.Duration(2*n+1)*time.Minute)
	}
	_, err := client.Schedule(ctx, "callbacks", []byte("paid"), bridge.WithID("call-1"),
		bridge.RetryDelays(gaps...), bridge.MaxAttempts(1+len(gaps)))
	check(err)

	var mu sync.Mutex
	calls, mended := 0, false
	done := make(chan struct{})
	g.serve("callbacks", "caller", func(context.Context, *bridge.Message) error {
		mu.Lock()
		defer mu.Unlock()
		calls++
		if !mended {
			return errors.New("503")
		}
		close(done)
		return nil
	})
	until(func() bool { // instead of waiting for 100 minutes
		_, err := client.Reschedule(ctx, "callbacks", "call-1", bridge.In(0), bridge.RetriesOf("caller"))
		if err != nil && !errors.Is(err, bridge.ErrNotScheduled) {
			check(err)
		}
		n, err := operator.DeadLetters().Count(ctx, "callbacks", admin.LetterFilter{Reason: "max_attempts"})
		return err == nil && n == 1
	})
	mu.Lock()
	fmt.Println("given up after", calls, "calls")
	mended = true
	mu.Unlock()

	// when the partner is back
	result, err := operator.DeadLetters().RedriveMatching(ctx, "callbacks",
		admin.LetterFilter{Group: "caller", Reason: "max_attempts"}, admin.RedriveOptions{})
	check(err)

	fmt.Println("redriven:", result.Scheduled)
	<-done
	// Output:
	// given up after 11 calls
	// redriven: 1
}

func Example_nightlyReport() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client

	_, err := client.Recur(ctx, bridge.Recurrence{Queue: "reports", Name: "nightly-7",
		Cron: "0 2 * * *", Zone: "Asia/Kathmandu", Payload: []byte("7")})
	check(err)

	all, err := client.Recurrences(ctx, "reports")
	check(err)
	fmt.Println(all[0].Next[0].Format("15:04 -0700"))
	// Output: 02:00 +0545
}

func Example_partnerRate() {
	g := newGuide()
	defer g.close()
	ctx, client, operator := g.ctx, g.client, g.operator

	rate, burst := bridge.Rate("6/h"), 1
	err := operator.WritePolicy(ctx, "partner", "", admin.PolicyUpdate{Rate: &rate, Burst: &burst})
	check(err)

	for range 3 {
		_, err := client.Schedule(ctx, "partner", nil)
		check(err)
	}
	until(func() bool {
		stats, err := g.operator.Stats(ctx, "partner")
		return err == nil && stats.Scheduled == 2
	})
	fmt.Println("one became ready, two wait")
	// Output: one became ready, two wait
}

func Example_autoscaling() {
	g := newGuide()
	defer g.close()
	ctx, client, operator := g.ctx, g.client, g.operator
	for n := range 3 {
		_, err := client.Schedule(ctx, "offers", []byte(strconv.Itoa(n)), bridge.In(9*time.Minute))
		check(err)
	}

	f, err := operator.Forecast(ctx, "offers", "mailer", 10*time.Minute)
	check(err)
	workers := min(50, 1+f.Total/1000)

	fmt.Println("messages:", f.Total, "workers:", workers)
	// Output:
	// messages: 3 workers: 1
}

func Example_oneAtATime() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client

	for _, step := range []string{"ordered", "paid", "sent"} {
		_, err := client.Schedule(ctx, "accounts", []byte(step), bridge.Key("customer-7"))
		check(err)
	}

	var busy atomic.Int32
	done := make(chan string)
	g.serve("accounts", "books", func(_ context.Context, m *bridge.Message) error {
		if busy.Add(1) > 1 {
			fmt.Println("two at once")
		}
		defer busy.Add(-1)
		done <- string(m.Payload)
		return nil
	})
	fmt.Println(<-done, <-done, <-done)
	// Output: ordered paid sent
}

func Example_debounce() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client

	changed := func(product string) (bridge.Receipt, error) {
		return client.Schedule(ctx, "index", []byte(product),
			bridge.WithID(product), bridge.In(5*time.Second), bridge.Replace)
	}

	for range 3 {
		receipt, err := changed("product-7")
		check(err)
		fmt.Println("replaced:", receipt.Replaced)
	}
	// Output:
	// replaced: false
	// replaced: true
	// replaced: true
}

func Example_throttle() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client

	_, err := client.Schedule(ctx, "notices", []byte("disk is full"),
		bridge.WithID("disk-host-7"), bridge.Dedup(time.Hour))
	if errors.Is(err, bridge.ErrDuplicate) {
		err = nil // the queue accepted a notice within the last hour
	}
	check(err)

	_, err = client.Schedule(ctx, "notices", []byte("disk is full"), bridge.WithID("disk-host-7"), bridge.Dedup(time.Hour))
	fmt.Println("again:", errors.Is(err, bridge.ErrDuplicate))
	// Output: again: true
}

func Example_cancelAndReschedule() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client

	_, err := client.Schedule(ctx, "reminders", []byte("call Ada"), bridge.WithID("call-ada"), bridge.In(time.Hour))
	check(err)

	due, err := client.Reschedule(ctx, "reminders", "call-ada", bridge.In(2*time.Hour))
	check(err)

	check(client.Cancel(ctx, "reminders", "call-ada"))
	err = client.Cancel(ctx, "reminders", "call-ada")
	fmt.Println("too late:", errors.Is(err, bridge.ErrNotScheduled))

	fmt.Println("it was due in", time.Until(due).Round(time.Hour))
	// Output:
	// too late: true
	// it was due in 2h0m0s
}

func Example_sendMany() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client

	results, err := client.SendBatch(ctx, "invites", []bridge.NewMessage{
		{ID: "ada", Payload: []byte("ada@example.com"), Delay: time.Hour, Spread: 10 * time.Minute},
		{ID: "bob", Payload: []byte("bob@example.com"), Delay: time.Hour, Spread: 10 * time.Minute},
		{ID: "ada", Payload: []byte("again"), Delay: time.Hour},
	})
	check(err) // of the whole call
	for _, result := range results {
		fmt.Println(result.ID, "was there:", errors.Is(result.Err, bridge.ErrDuplicate))
	}
	// Output:
	// ada was there: false
	// bob was there: false
	// ada was there: true
}

func Example_testAHandler() {
	ctx := context.Background()
	handler := func(_ context.Context, m *bridge.Message) error {
		switch {
		case len(m.Payload) == 0:
			return bridge.DeadLetter(errors.New("no card"))
		case m.Attempt == 1:
			return bridge.RetryAfter(time.Minute, errors.New("the card terminal is busy"))
		}
		return nil
	}

	for _, m := range []*bridge.Message{
		{ID: "order-41", Attempt: 1},
		{ID: "order-42", Attempt: 1, Payload: []byte("4111")},
		{ID: "order-42", Attempt: 2, Payload: []byte("4111")},
	} {
		outcome := bridge.OutcomeOf(handler(ctx, m))
		fmt.Println(m.ID, m.Attempt, outcome.Action)
	}
	// Output:
	// order-41 1 dead_letter
	// order-42 1 retry
	// order-42 2 acknowledge
}

func Example_retries() {
	var errNoSuchCard, errBusy, errClosed = errors.New("no such card"), errors.New("busy"), errors.New("closed")
	charge := func(_ context.Context, payload []byte) error {
		return map[string]error{"4111": errNoSuchCard, "4222": errBusy, "4333": errClosed}[string(payload)]
	}

	handler := func(ctx context.Context, m *bridge.Message) error {
		err := charge(ctx, m.Payload)
		switch {
		case errors.Is(err, errNoSuchCard):
			return bridge.DeadLetter(err) // another attempt would not help
		case errors.Is(err, errBusy):
			return bridge.RetryAfter(time.Minute, err) // the card terminal said when
		case errors.Is(err, errClosed):
			return bridge.Snooze(8 * time.Hour) // not yet: no failure, and no attempt is counted
		}
		return err // nil: done; else another attempt by the policy of the queue
	}

	for _, card := range []string{"4000", "4111", "4222", "4333"} {
		outcome := bridge.OutcomeOf(handler(context.Background(), &bridge.Message{Payload: []byte(card)}))
		fmt.Println(card, outcome.Action)
	}
	// Output:
	// 4000 acknowledge
	// 4111 dead_letter
	// 4222 retry
	// 4333 snooze
}

type Order struct {
	ID    int    `json:"id"`
	Total string `json:"total"`
}

var CloseOrder = bridge.Kind[Order]{Name: "close-order", Queue: "orders"}

func Example_typedMessages() {
	g := newGuide()
	defer g.close()
	ctx, client, r, prefix := g.ctx, g.client, g.r, g.prefix
	closed := make(chan Order)
	closeUnlessPaid := func(o Order) error {
		closed <- o
		return nil
	}

	order := Order{ID: 42, Total: "9.90"}
	_, err := CloseOrder.Schedule(ctx, client, order, bridge.WithID("close-42"), bridge.In(30*time.Minute))
	check(err)

	mux := &bridge.Mux{}
	CloseOrder.Handle(mux, func(ctx context.Context, d *bridge.Delivery[Order]) error {
		return closeUnlessPaid(d.Value) // d has the fields of bridge.Message, such as d.ID and d.Attempt
	})
	mux.Use(func(next bridge.Handler) bridge.Handler {
		return func(ctx context.Context, m *bridge.Message) error {
			began := time.Now()
			err := next(ctx, m)
			slog.InfoContext(ctx, "handled", "id", m.ID, "kind", m.Headers[bridge.KindHeader],
				"outcome", bridge.OutcomeOf(err).Action, "took", time.Since(began))
			return err
		}
	})

	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Group: "shop", Mux: mux})
	check(err)

	g.workers.Go(func() { check(worker.Run(ctx)) })
	_, err = client.Reschedule(ctx, "orders", "close-42", bridge.In(0))
	check(err)
	fmt.Println(<-closed)
	// Output: {42 9.90}
}

var IndexOrder = bridge.Kind[Order]{Name: "index-order", Queue: "orders",
	UniqueBy: func(o Order) []any { return []any{o.ID} }}

func Example_oneMessageAboutTheSame() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client

	for _, total := range []string{"9.90", "10.90"} {
		order := Order{ID: 42, Total: total}
		_, err := IndexOrder.Schedule(ctx, client, order, bridge.In(5*time.Second))
		if errors.Is(err, bridge.ErrDuplicate) {
			err = nil // the scheduled message comes after this change
		}
		check(err)
	}
	id, err := IndexOrder.UniqueID(Order{ID: 42})
	check(err)
	fmt.Println(id)
	// Output: index-order:42
}

var StoreOrder = bridge.Kind[Order]{Name: "store-order", Queue: "orders"}

func Example_batches() {
	g := newGuide()
	defer g.close()
	ctx, client, r, prefix := g.ctx, g.client, g.r, g.prefix
	inserted := make(chan int, 3)
	insert := func(_ context.Context, orders []Order) error {
		inserted <- len(orders)
		return nil
	}

	mux := &bridge.Mux{}
	StoreOrder.HandleBatch(mux, bridge.BatchConfig{Size: 100, Age: 200 * time.Millisecond},
		func(ctx context.Context, all []*bridge.Delivery[Order]) []error {
			var orders []Order
			for _, d := range all {
				orders = append(orders, d.Value)
			}
			err := insert(ctx, orders) // one statement
			return slices.Repeat([]error{err}, len(all))
		})

	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Group: "shop", Mux: mux,
		Concurrency: 200})
	check(err)

	for id := range 3 {
		_, err := StoreOrder.Schedule(ctx, client, Order{ID: id})
		check(err)
	}
	g.workers.Go(func() { check(worker.Run(ctx)) })
	for n := 0; n < 3; {
		n += <-inserted
	}
	fmt.Println("all orders are inserted")
	// Output: all orders are inserted
}

func Example_rateOfAGroup() {
	g := newGuide()
	defer g.close()
	ctx, client, r, prefix := g.ctx, g.client, g.r, g.prefix
	called := make(chan int)
	mux := &bridge.Mux{}
	StoreOrder.Handle(mux, func(_ context.Context, d *bridge.Delivery[Order]) error {
		called <- d.Value.ID
		return nil
	})

	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Group: "partner", Mux: mux,
		GroupRate: "10/s", GroupBurst: 1})
	check(err)

	_, err = StoreOrder.Schedule(ctx, client, Order{ID: 42})
	check(err)
	g.workers.Go(func() { check(worker.Run(ctx)) })
	fmt.Println(<-called)
	// Output: 42
}

func Example_wrapAllSends() {
	g := newGuide()
	defer g.close()
	ctx, r, prefix := g.ctx, g.r, g.prefix
	tenantOf := func(context.Context) string { return "north" }

	addTenant := func(next bridge.Sender) bridge.Sender {
		return func(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error) {
			for i := range messages {
				bridge.Header("tenant", tenantOf(ctx))(&messages[i])
			}
			return next(ctx, queue, messages)
		}
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix,
		Middleware: []bridge.SendMiddleware{bridge.LogSent(slog.Default()), addTenant}})
	check(err)

	receipt, err := CloseOrder.Schedule(ctx, client, Order{ID: 42}, bridge.WithID("close-42"))
	check(err)
	fmt.Println(receipt.ID)
	// Output: close-42
}

func Example_severalGroups() {
	g := newGuide()
	defer g.close()
	ctx, r, prefix, client := g.ctx, g.r, g.prefix, g.client

	for _, group := range []string{"billing", "audit"} {
		_, err := bridge.CreateGroup(ctx, r, prefix, "sales", group)
		check(err)
	}

	_, err := client.Schedule(ctx, "sales", []byte("a book"))
	check(err)
	for _, group := range []string{"billing", "audit"} {
		done := make(chan string)
		g.serve("sales", group, func(_ context.Context, m *bridge.Message) error {
			done <- m.Group + " got " + string(m.Payload)
			return nil
		})
		fmt.Println(<-done)
	}
	// Output:
	// billing got a book
	// audit got a book
}

// accounts stands for a database. A transaction on it takes effect whole or not at all.
type accounts struct {
	handled map[string]bool
	charges int
	broken  bool
}

type transaction struct{ accounts }

func (t *transaction) remember(id string) (isNew bool, err error) {
	isNew = !t.handled[id]
	t.handled[id] = true
	return isNew, nil
}

func (t *transaction) charge([]byte) error {
	if t.broken {
		return errors.New("the card terminal is away")
	}
	t.charges++
	return nil
}

func Example_idempotentHandler() {
	database := accounts{handled: map[string]bool{}, broken: true}
	inTransaction := func(_ context.Context, do func(tx *transaction) error) error {
		tx := &transaction{database}
		tx.handled = maps.Clone(database.handled)
		err := do(tx)
		if err == nil {
			database = tx.accounts
		}
		return err
	}

	handler := func(ctx context.Context, m *bridge.Message) error {
		return inTransaction(ctx, func(tx *transaction) error {
			isNew, err := tx.remember(m.ID) // the INSERT
			if err != nil || !isNew {
				return err // nil: acknowledged, and not done again
			}
			return tx.charge(m.Payload) // an error rolls the INSERT back as well
		})
	}

	m := &bridge.Message{ID: "order-42"}
	fmt.Println(handler(context.Background(), m))
	database.broken = false
	check(handler(context.Background(), m))
	check(handler(context.Background(), m)) // delivered once more
	fmt.Println("charges:", database.charges)
	// Output:
	// the card terminal is away
	// charges: 1
}

func Example_progress() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client
	const pages = 5
	failed := false
	export := func(_ context.Context, page int) error {
		if page == 3 && !failed {
			failed = true
			return bridge.RetryAfter(0, errors.New("the target is away"))
		}
		fmt.Println("page", page)
		return nil
	}
	done := make(chan struct{})

	handler := func(ctx context.Context, m *bridge.Message) error {
		next, _ := strconv.Atoi(string(m.Progress)) // 0 if no attempt has stored any
		for ; next < pages; next++ {
			if err := export(ctx, next); err != nil {
				return err // another attempt begins with this page
			}
			if err := m.SaveProgress(ctx, []byte(strconv.Itoa(next+1))); err != nil {
				return err
			}
		}
		return nil
	}

	g.serve("exports", "exporter", func(ctx context.Context, m *bridge.Message) error {
		fmt.Printf("attempt %d begins at %q\n", m.Attempt, m.Progress)
		err := handler(ctx, m)
		if err == nil {
			close(done)
		}
		return err
	})
	_, err := client.Schedule(ctx, "exports", []byte("orders of 2026"))
	check(err)
	<-done
	// Output:
	// attempt 1 begins at ""
	// page 0
	// page 1
	// page 2
	// attempt 2 begins at "3"
	// page 3
	// page 4
}

func Example_waitForAResult() {
	g := newGuide()
	defer g.close()
	ctx, client := g.ctx, g.client
	charge := func(_ context.Context, order []byte) ([]byte, error) {
		return []byte("invoice for " + string(order)), nil
	}

	handler := func(ctx context.Context, m *bridge.Message) error {
		invoice, err := charge(ctx, m.Payload)
		if err != nil {
			return err
		}
		return m.SetResult(invoice)
	}

	g.serve("charges", "billing", handler)

	receipt, err := client.Schedule(ctx, "charges", []byte("order 42"), bridge.KeepResult(time.Hour))
	check(err)
	result, err := client.WaitFor(ctx, "charges", receipt.ID, "billing", bridge.AwaitDone)
	var dead *bridge.DeadError
	switch {
	case errors.As(err, &dead):
		fmt.Println("given up:", dead.Reason, dead.Text)
	case err != nil:
		fmt.Println("not known:", err) // ctx ended, or nobody will ever have a result: ErrNoResult
	default:
		fmt.Printf("%s, after %d attempt\n", result.Value, result.Attempt)
	}
	// Output:
	// invoice for order 42, after 1 attempt
}

func Example_fromSQS() {
	g := newGuide()
	defer g.close()
	ctx, client, r, prefix := g.ctx, g.client, g.r, g.prefix
	sent := make(chan string, 1)
	sendParcel := func(payload []byte) error {
		sent <- string(payload)
		return nil
	}

	_, err := client.Schedule(ctx, "parcels", []byte(`{"id":42}`), bridge.WithID("send-42"), bridge.In(90*24*time.Hour))
	check(err)

	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "parcels", Group: "packers",
		Handler: func(_ context.Context, m *bridge.Message) error { return sendParcel(m.Payload) }})
	check(err)
	g.workers.Go(func() { check(worker.Run(ctx)) })
	_, err = client.Reschedule(ctx, "parcels", "send-42", bridge.In(0))
	check(err)
	fmt.Println(<-sent)
	// Output:
	// {"id":42}
}
