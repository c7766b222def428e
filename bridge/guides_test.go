package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

// The Go of docs/guides/README.md stands in these examples, line by line; TestCookbookGo compares. What a reader would wait for is
// moved to now, as the document says how.

// kitchen is what the recipes use without saying where it comes from.
type kitchen struct {
	ctx      context.Context
	r        *bridge.Redis
	prefix   string
	client   *bridge.Client
	operator *admin.Admin
	stop     context.CancelFunc
	workers  sync.WaitGroup
	end      func()
}

func cook() *kitchen {
	ctx, r, prefix, end := begin()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	k := &kitchen{r: r, prefix: prefix, client: client, operator: admin.New(r, prefix), end: end}
	k.ctx, k.stop = context.WithCancel(ctx)
	return k
}

// serve runs a worker until the recipe is done.
func (k *kitchen) serve(queue, group string, handler func(context.Context, *bridge.Message) error) {
	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: k.r, Prefix: k.prefix, Queue: queue, Group: group,
		Handler: handler})
	check(err)
	k.workers.Go(func() { check(worker.Run(k.ctx)) })
}

func (k *kitchen) close() {
	k.stop()
	k.workers.Wait()
	check(k.client.Close())
	k.end()
}

func Example_unpaidOrder() {
	k := cook()
	defer k.close()
	ctx, client := k.ctx, k.client
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
		return closeUnlessPaid(string(m.Payload)) // one transaction: it may come again, and beside the payment
	}

	fmt.Println("cancelled:", err == nil)
	k.serve("orders", "shop", handler)
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
	k := cook()
	defer k.close()
	ctx, client := k.ctx, k.client
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
	k := cook()
	defer k.close()
	ctx, client, operator := k.ctx, k.client, k.operator

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
	k.serve("callbacks", "caller", func(context.Context, *bridge.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if calls++; !mended {
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
	k := cook()
	defer k.close()
	ctx, client := k.ctx, k.client

	_, err := client.Recur(ctx, bridge.Recurrence{Queue: "reports", Name: "nightly-7",
		Cron: "0 2 * * *", Zone: "Asia/Kathmandu", Payload: []byte("7")})
	check(err)

	all, err := client.Recurrences(ctx, "reports")
	check(err)
	fmt.Println(all[0].Next[0].Format("15:04 -0700"))
	// Output: 02:00 +0545
}

func Example_partnerRate() {
	k := cook()
	defer k.close()
	ctx, client, operator := k.ctx, k.client, k.operator

	rate, burst := bridge.Rate("6/h"), 1
	err := operator.WritePolicy(ctx, "partner", "", admin.PolicyUpdate{Rate: &rate, Burst: &burst})
	check(err)

	for range 3 {
		_, err := client.Schedule(ctx, "partner", nil)
		check(err)
	}
	until(func() bool {
		stats, err := k.operator.Stats(ctx, "partner")
		return err == nil && stats.Scheduled == 2
	})
	fmt.Println("one became ready, two wait")
	// Output: one became ready, two wait
}

func Example_oneAtATime() {
	k := cook()
	defer k.close()
	ctx, client := k.ctx, k.client

	for _, step := range []string{"ordered", "paid", "sent"} {
		_, err := client.Schedule(ctx, "accounts", []byte(step), bridge.Key("customer-7"))
		check(err)
	}

	var busy atomic.Int32
	done := make(chan string)
	k.serve("accounts", "books", func(_ context.Context, m *bridge.Message) error {
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
	k := cook()
	defer k.close()
	ctx, client := k.ctx, k.client

	changed := func(product string) (bridge.Receipt, error) {
		return client.Schedule(ctx, "index", []byte(product), bridge.WithID(product), bridge.In(5*time.Second), bridge.Replace)
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
	k := cook()
	defer k.close()
	ctx, client := k.ctx, k.client

	_, err := client.Schedule(ctx, "notices", []byte("disk is full"), bridge.WithID("disk-host-7"), bridge.Dedup(time.Hour))
	if errors.Is(err, bridge.ErrDuplicate) {
		err = nil // they were told within the last hour
	}
	check(err)

	_, err = client.Schedule(ctx, "notices", []byte("disk is full"), bridge.WithID("disk-host-7"), bridge.Dedup(time.Hour))
	fmt.Println("again:", errors.Is(err, bridge.ErrDuplicate))
	// Output: again: true
}
