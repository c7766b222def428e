package campaign

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
)

const (
	producerLines = 4                       // concurrent batches, so that one slow reply does not stop a producer
	producerTick  = 40 * time.Millisecond   // pause between two batches of a line
	maxCatchUp    = 1500 * time.Millisecond // after an outage, a producer sends the messages of at most this time late
	producerTries = 20 * time.Second        // RetryTimeout: longer than any outage
)

// publisher schedules messages: a bridge.Client, or gateways.
type publisher interface {
	Schedule(ctx context.Context, queue string, payload []byte, options ...bridge.Option) (bridge.Receipt, error)
	ScheduleBatch(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error)
	Cancel(ctx context.Context, queue, id string, scopes ...bridge.Scope) error
	CancelRunning(ctx context.Context, queue, group string, ids ...string) ([]bridge.Cancellation, error)
	Reschedule(ctx context.Context, queue, id string, to bridge.Option, scopes ...bridge.Scope) (time.Time, error)
}

// producer schedules messages at a rate until it is stopped. Each of its lines sends one batch at a time.
type producer struct {
	part   part
	client publisher
	ledger *ledger
	number atomic.Uint64
	later  sync.WaitGroup // cancels, reschedules and second tries
}

func (p part) produce(ctx context.Context, r *bridge.Redis, l *ledger, log *slog.Logger) error {
	cfg := bridge.ClientConfig{Redis: r, Prefix: p.Prefix, RetryTimeout: producerTries, Durability: bridge.Replicated(p.Replicas),
		Logger: log}
	client, err := bridge.NewClient(cfg)
	for err != nil { // with a durability, NewClient asks the server
		if !pause(ctx, plainPause) {
			return nil
		}
		client, err = bridge.NewClient(cfg)
	}
	defer client.Close()
	p.produceBy(ctx, client, l)
	return nil
}

func (p part) produceBy(ctx context.Context, client publisher, l *ledger) {
	pr := &producer{part: p, client: client, ledger: l}
	var lines sync.WaitGroup
	for i := range producerLines {
		lines.Go(func() { pr.line(ctx, rand.New(rand.NewPCG(p.Seed, uint64(i)))) })
	}
	lines.Wait()
	pr.later.Wait()
}

// line sends batches of random messages, one after another, until ctx ends.
func (p *producer) line(ctx context.Context, random *rand.Rand) {
	rate := p.part.Rate / producerLines
	ticker := time.NewTicker(producerTick)
	defer ticker.Stop()
	owed, last := 0.0, time.Now() // owed = messages that the rate asks for and that were not sent yet
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		owed = min(owed+now.Sub(last).Seconds()*rate, maxCatchUp.Seconds()*rate)
		last = now
		n := int(owed)
		owed -= float64(n)
		batches := map[string][]bridge.NewMessage{}
		for range n {
			plan := p.part.draw(random)
			batches[plan.queue] = append(batches[plan.queue], p.message(random, plan))
		}
		for _, queue := range []string{queueMain, queueSide} {
			p.send(queue, batches[queue], random)
		}
	}
}

func (p *producer) message(random *rand.Rand, plan plan) bridge.NewMessage {
	m := bridge.NewMessage{
		ID: plan.id(p.part.Name, p.number.Add(1)), Payload: make([]byte, size(random)), Delay: delay(random),
		MaxAttempts: plan.maxAttempts(),
	}
	plan.features(random, &m)
	switch plan.kind {
	case kindCancel, kindMove:
		m.Delay = 2*time.Second + time.Duration(random.IntN(3000))*time.Millisecond
	case kindWindow:
		m.Dedup = dedupWindow
	}
	return m
}

// size returns a payload size: mostly small, sometimes some KiB.
func size(random *rand.Rand) int {
	switch n := random.IntN(100); {
	case n < 20:
		return 0
	case n < 97:
		return random.IntN(300)
	default:
		return random.IntN(8 << 10)
	}
}

// delay returns no delay for a third of the messages, else up to five seconds, mostly short.
func delay(random *rand.Rand) time.Duration {
	if random.IntN(3) == 0 {
		return 0
	}
	return min(time.Duration(random.ExpFloat64()*float64(time.Second)), 5*time.Second).Truncate(time.Millisecond)
}

// send sends one batch. It waits for the result even if the process is told to stop.
func (p *producer) send(queue string, batch []bridge.NewMessage, random *rand.Rand) {
	if len(batch) == 0 {
		return
	}
	tries := make([]line, len(batch))
	for i, m := range batch {
		tries[i] = line{verbTry, bookedAs(m.ID, m.Payload), []any{m.Delay.Milliseconds()}}
	}
	p.ledger.must(tries...)
	results, err := p.client.ScheduleBatch(context.Background(), queue, batch)
	verdicts := make([]line, len(batch))
	for i, m := range batch {
		if err != nil {
			verdicts[i] = verdict(bookedAs(m.ID, m.Payload), bridge.Receipt{}, err)
		} else {
			verdicts[i] = verdict(bookedAs(m.ID, m.Payload), results[i].Receipt, results[i].Err)
		}
	}
	p.ledger.must(verdicts...)
	for i, m := range batch {
		p.follow(queue, m, verdicts[i].verb, random)
		if plan, _ := planOf(m.ID); plan.kind == kindVersion && verdicts[i].verb == verbTaken {
			p.replace(queue, m.ID, results[i].Due, plan.n, random)
		}
	}
}

// verdict returns the ledger's line for the result of a send.
func verdict(id string, receipt bridge.Receipt, err error) line {
	switch {
	case err == nil:
		return line{verbTaken, id, []any{receipt.Due.UnixMilli()}}
	case errors.Is(err, bridge.ErrDuplicate):
		return line{verbDup, id, nil}
	case errors.Is(err, bridge.ErrUncertain), errors.Is(err, bridge.ErrUnavailable), errors.Is(err, bridge.ErrNotDurable),
		errors.Is(err, context.DeadlineExceeded):
		return line{verbMaybe, id, nil}
	case errors.Is(err, bridge.ErrOldBridge):
		return line{verbRefuse, id, []any{refusedOldBridge}}
	case errors.Is(err, bridge.ErrFull):
		return line{verbRefuse, id, []any{"full"}}
	}
	return line{verbRefuse, id, []any{"other"}}
}

// follow does the producer's part of a message's plan after the message was sent: it cancels or moves the message, or
// sends it again, up to 2.5 s later. verdict is the result of the first send.
func (p *producer) follow(queue string, m bridge.NewMessage, verdict string, random *rand.Rand) {
	plan, _ := planOf(m.ID)
	var then func()
	switch {
	case plan.kind == kindCancel && verdict == verbTaken:
		then = func() { p.cancel(queue, m.ID) }
	case plan.kind == kindHalt && verdict == verbTaken:
		then = func() { p.halt(queue, m.ID) }
	case plan.kind == kindMove && verdict == verbTaken:
		to := delay(random) + 50*time.Millisecond
		then = func() { p.move(queue, m.ID, to) }
	case plan.kind == kindWindow && (verdict == verbTaken || verdict == verbMaybe):
		again := []bridge.NewMessage{m}
		then = func() { p.again(queue, again) }
	default:
		return
	}
	wait := time.Duration(random.IntN(2500)) * time.Millisecond
	p.later.Go(func() {
		<-time.After(wait) // before, around or after the due time
		then()
	})
}

func (p *producer) cancel(queue, id string) {
	p.ledger.must(line{verbCancel, id, []any{changeAsked}})
	err := p.client.Cancel(context.Background(), queue, id)
	p.ledger.must(line{verbCancel, id, []any{change(err)}})
}

func (p *producer) move(queue, id string, to time.Duration) {
	p.ledger.must(line{verbMove, id, []any{changeAsked, 0}})
	due, err := p.client.Reschedule(context.Background(), queue, id, bridge.In(to))
	ms := int64(0)
	if err == nil {
		ms = due.UnixMilli()
	}
	p.ledger.must(line{verbMove, id, []any{change(err), ms}})
}

// change returns the result of a cancel or a reschedule, as the ledger has it.
func change(err error) string {
	switch {
	case err == nil:
		return changeOK
	case errors.Is(err, bridge.ErrNotScheduled):
		return changeNo
	}
	return changeMaybe
}

// again sends a message a second time within its dedup window.
func (p *producer) again(queue string, batch []bridge.NewMessage) {
	m := batch[0]
	p.ledger.must(line{verbTry, m.ID, []any{m.Delay.Milliseconds()}})
	receipt, err := p.client.Schedule(context.Background(), queue, m.Payload, bridge.WithID(m.ID), bridge.In(m.Delay),
		bridge.Dedup(m.Dedup))
	p.ledger.must(verdict(m.ID, receipt, err))
}
