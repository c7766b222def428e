package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/stream/pull"
)

const (
	pollers     = 4  // concurrent requests for deliveries
	settlers    = 4  // concurrent requests to settle
	pollCount   = 40 // most deliveries per request
	pollWait    = time.Second
	settledMost = 50               // most settlements per request
	extendMost  = 100              // most extends per request
	extendWait  = time.Second / 2  // time limit of a request to extend
	settleTries = 20 * time.Second // longer than httpTries: a killed server with much data starts slowly
)

// httpWorker is a worker that uses only gateways: it waits for deliveries, extends those that take long, and settles
// them.
type httpWorker struct {
	part   part
	ledger *ledger
	http   *httpClient
	stop   context.CancelCauseFunc
	room   chan struct{} // one item per held delivery
	exits  chan *lease

	mu   sync.Mutex
	held map[*lease]bool // deliveries to extend
}

// lease is a delivery that the worker holds.
type lease struct {
	bridge.Message
	token    pull.Token
	within   time.Duration      // length of the lease
	extended time.Time          // time of the last extend, or of the receipt
	lose     context.CancelFunc // ends the handler, because the delivery is lost
	settling settling
	begun    bool // the ledger has a start of it
}

// settling is the JSON of an extend or a settlement.
type settling struct {
	Token   pull.Token `json:"token"`
	Outcome string     `json:"outcome,omitempty"`
	In      *int64     `json:"in_ms,omitempty"`
	Within  int64      `json:"within_ms,omitempty"`
	Error   string     `json:"error,omitempty"`
}

func (p part) workOverHTTP(ctx context.Context, l *ledger) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w := &httpWorker{part: p, ledger: l, http: newHTTPClient(p), stop: stop, room: make(chan struct{}, p.Concurrency),
		exits: make(chan *lease, p.Concurrency), held: map[*lease]bool{}}
	extending, enough := context.WithCancel(context.Background())
	var receiving, settle, extend sync.WaitGroup
	var handling sync.WaitGroup
	extend.Go(func() { w.extendAll(extending) })
	for range settlers {
		settle.Go(w.settleAll)
	}
	for i := range pollers {
		receiving.Go(func() { w.poll(ctx, i, &handling) })
	}
	receiving.Wait()
	handling.Wait()
	close(w.exits)
	settle.Wait()
	enough()
	extend.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// place returns the address that a poller asks: for the main queue, for both queues by weights, or for the
// sacrificial queue.
func (w *httpWorker) place(poller int, random *rand.Rand, count int) string {
	address := map[int]string{2: "/v1/deliveries?weights=3,1&queues=" + queueMain + "," + queueSide,
		3: queuePath(queueSide) + "/deliveries?"}[poller]
	if address == "" {
		address = queuePath(queueMain) + "/deliveries?"
	}
	address += fmt.Sprintf("&group=%s&count=%d&wait_ms=%d", w.part.Group, count, pollWait.Milliseconds())
	if random.IntN(2) == 0 { // a lease so short that the worker may lose it if it is away for half a visibility timeout
		address += fmt.Sprintf("&within_ms=%d", (w.part.Visibility * 3 / 4).Milliseconds())
	}
	return address
}

// poll asks for deliveries until ctx ends. It always waits for the answer, because its deliveries would otherwise be
// delayed.
func (w *httpWorker) poll(ctx context.Context, poller int, handling *sync.WaitGroup) {
	random := rand.New(rand.NewPCG(w.part.Seed, uint64(poller)))
	for {
		select {
		case w.room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		count := 1
		for most := 1 + random.IntN(pollCount); count < most && len(w.room) < cap(w.room); count++ {
			w.room <- struct{}{}
		}
		a := w.http.ask(http.MethodPost, w.place(poller, random, count), nil, pollWait+callWait)
		var got struct{ Deliveries []received }
		switch {
		case !a.uncertain && a.status == http.StatusOK:
			if err := json.Unmarshal(a.body, &got); err != nil {
				w.stop(err)
			}
		case !a.uncertain && a.status < http.StatusInternalServerError:
			w.stop(fmt.Errorf("deliveries: %d %s", a.status, a.body))
		default:
			pause(ctx, httpPause)
		}
		for i := range max(count, len(got.Deliveries)) {
			if i >= len(got.Deliveries) {
				<-w.room
				continue
			}
			one, err := got.Deliveries[i].lease(w.part.Group)
			if err != nil || i >= count {
				w.stop(fmt.Errorf("delivery %d of %d: %+v: %w", i, count, got.Deliveries[i], err))
				return
			}
			handling.Go(func() { w.handle(ctx, one) })
		}
	}
}

// received is the JSON of a delivery.
type received struct {
	Token   pull.Token
	Queue   string
	ID      string
	Attempt int
	Due     time.Time
	Within  int64 `json:"within_ms"`
	Payload admin.Payload
}

// lease converts a delivery. The token names its entry.
func (r received) lease(group string) (*lease, error) {
	ticket, err := r.Token.Read()
	if err == nil && (ticket.Group != group || ticket.Queue != r.Queue || ticket.ID != r.ID) {
		err = errors.New("the token names something else")
	}
	return &lease{token: r.Token, within: time.Duration(r.Within) * time.Millisecond, extended: time.Now(),
		Message: bridge.Message{Queue: r.Queue, Group: group, ID: r.ID, EntryID: ticket.Entry,
			Attempt: r.Attempt, Due: r.Due, Payload: r.Payload}}, err
}

// handle does the work of a message, and queues its settlement. A delivery that arrives after the stop of the worker
// is not begun.
func (w *httpWorker) handle(ctx context.Context, one *lease) {
	one.settling = settling{Token: one.token, Outcome: "release"}
	if ctx.Err() != nil {
		w.exits <- one
		return
	}
	ctx, one.lose = context.WithCancel(ctx)
	defer one.lose()
	w.keep(one, true)
	one.begun = true
	in := snoozeFor.Milliseconds()
	switch end := w.part.perform(ctx, w.ledger, &one.Message, featuredOverHTTP); end {
	case endAbandon: // its lease expires
		w.keep(one, false)
		<-w.room
		return
	case endOK:
		one.settling.Outcome = ""
	case endFail:
		one.settling.Outcome, one.settling.Error = "retry", errFail.Error()
	case endDead:
		one.settling.Outcome, one.settling.Error = "dead", errBury.Error()
	case endSnooze:
		one.settling.Outcome, one.settling.In = "snooze", &in
	}
	w.exits <- one
}

// featuredOverHTTP replaces featured, because a delivery over HTTP does not tell how often it was snoozed.
func featuredOverHTTP(p plan, m *bridge.Message) string {
	end := p.featured(m, true)
	if end == endAbandon && hash(m.EntryID)%2 == 0 {
		end = endSnooze
	}
	return end
}

// keep adds a delivery to those that extendAll extends, or removes it.
func (w *httpWorker) keep(one *lease, keep bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if keep {
		w.held[one] = true
	} else {
		delete(w.held, one)
	}
}

// extendAll extends each held delivery when a quarter of its lease is over. It does so this early, because on a slow
// machine much of the lease is over when a delivery arrives. If one gateway does not answer, extendAll asks the other
// one at once.
func (w *httpWorker) extendAll(ctx context.Context) {
	wait := time.Duration(0)
	for pause(ctx, wait) {
		var due []*lease
		w.mu.Lock()
		for one := range w.held {
			if time.Since(one.extended) >= one.within/4 && len(due) < extendMost {
				due = append(due, one)
			}
		}
		w.mu.Unlock()
		wait = w.part.Visibility / 12
		if len(due) == 0 {
			continue
		}
		all := make([]settling, len(due))
		for i, one := range due {
			all[i] = settling{Token: one.token, Outcome: "extend", Within: one.within.Milliseconds()}
		}
		began := time.Now()
		outcomes, answered := w.sendSettlements(all, extendWait)
		if !answered {
			began = time.Now()
			outcomes, answered = w.sendSettlements(all, extendWait)
		}
		if answered && len(due) == extendMost {
			wait = 0 // there may be more to extend
		}
		for i, one := range due {
			switch {
			case !answered:
			case outcomes[i] == "extended":
				one.extended = began
			default:
				one.lose()
				w.keep(one, false)
			}
		}
	}
}

// sendSettlements sends extends or settlements, and returns their outcomes. ok is false if these are unknown.
func (w *httpWorker) sendSettlements(all []settling, wait time.Duration) (outcomes []string, ok bool) {
	text, _ := json.Marshal(all)
	a := w.http.ask(http.MethodPost, "/v1/settlements", text, wait)
	var said struct{ Settled []struct{ Outcome string } }
	switch {
	case a.uncertain || a.status >= http.StatusInternalServerError:
		return nil, false
	case a.status != http.StatusOK || json.Unmarshal(a.body, &said) != nil || len(said.Settled) != len(all):
		w.stop(fmt.Errorf("settlements: %d %s", a.status, a.body))
		return nil, false
	}
	for _, one := range said.Settled {
		outcomes = append(outcomes, one.Outcome)
	}
	return outcomes, true
}

// settleAll settles deliveries in batches, and records the results. It repeats settlements without an answer for
// settleTries, because the server may be down. Meanwhile the worker still holds the deliveries, so extendAll extends
// them when the server is back. After a lost answer, the result "lost" proves nothing.
func (w *httpWorker) settleAll() {
	for one := range w.exits {
		batch := []*lease{one}
		for more := true; more && len(batch) < settledMost; {
			select {
			case next, open := <-w.exits:
				more = open
				if open {
					batch = append(batch, next)
				}
			default:
				more = false
			}
		}
		all := make([]settling, len(batch))
		for i, one := range batch {
			all[i] = one.settling
		}
		outcomes, ok := w.sendSettlements(all, callWait)
		certain := ok
		for until := time.Now().Add(settleTries); !ok && time.Now().Before(until); {
			<-time.After(httpPause)
			outcomes, ok = w.sendSettlements(all, callWait)
		}
		for i, one := range batch {
			outcome := string(bridge.Unknown)
			if ok && (certain || outcomes[i] != string(bridge.Lost)) {
				outcome = outcomes[i]
			}
			w.keep(one, false)
			<-w.room
			if one.begun {
				w.ledger.must(line{verbSettle, bookedAs(one.ID, one.Payload), []any{one.EntryID, outcome}})
			}
		}
	}
}
