package pull

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// batch is a set of deliveries of one partition and group, settled together.
type batch struct {
	partitionName string
	first         Ticket
	held          []lua.Held
	indexes       []int // of the deliveries, in the arguments of the call
}

// batches splits deliveries into batches with the same partition, group, and property.
func batches[K comparable](tokens []Token, property func(i int) K) ([]*batch, error) {
	type batchKey struct {
		partitionName, group string
		property             K
	}
	var all []*batch
	byKey := map[batchKey]*batch{}
	for i, token := range tokens {
		t, err := token.Read()
		if err != nil {
			return nil, err
		}
		key := batchKey{t.partitionName(), t.Group, property(i)}
		b := byKey[key]
		if b == nil {
			b = &batch{partitionName: key.partitionName, first: t}
			byKey[key], all = b, append(all, b)
		}
		b.held, b.indexes = append(b.held, t.held()), append(b.indexes, i)
	}
	return all, nil
}

// noProperty is the property of deliveries that are split by partition and group only.
func noProperty(int) struct{} { return struct{}{} }

// settleAll calls settle for all batches concurrently, so that a failing queue or server neither prevents nor delays
// the others. A group that does not exist is no error: its deliveries are lost.
func settleAll(all []*batch, settle func(*batch) error) error {
	errs := make([]error, len(all))
	var settling sync.WaitGroup
	for i, b := range all {
		settling.Go(func() {
			if err := settle(b); !errors.Is(err, lua.ErrNoGroup) {
				errs[i] = err
			}
		})
	}
	settling.Wait()
	return joined(errs)
}

// Ack acknowledges deliveries, and returns for each whether this call acknowledged it. False: the delivery is lost,
// because it was settled before, its time had passed, or its group is gone. Deliveries of one partition and group are
// sent together. With an error some may be acknowledged; repeating the call is harmless.
func (p *Puller) Ack(ctx context.Context, tokens []Token) ([]bool, error) {
	all, err := batches(tokens, noProperty)
	if err != nil {
		return nil, err
	}
	done := make([]bool, len(tokens))
	return done, settleAll(all, func(b *batch) error {
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		won, err := lua.Ack(ctx, p.cfg.Client, p.keys(b.partitionName), b.first.Group, b.held)
		if err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
		for i, ok := range won {
			done[b.indexes[i]] = ok
		}
		return nil
	})
}

// Fail settles deliveries as if a handler had returned these errors. After an ordinary error a message is delivered
// again after the policy's delay, or dead-lettered; stream.RetryAfter, DeadLetter, Snooze and Release choose another
// outcome. The result is Lost for a delivery that was settled before, whose time had passed, or whose group is gone.
// Deliveries of one partition and group are sent together. With an error some may be settled.
func (p *Puller) Fail(ctx context.Context, tokens []Token, errs []error) ([]stream.Settlement, error) {
	all, err := batches(tokens, noProperty)
	if err != nil {
		return nil, err
	}
	done := make([]stream.Settlement, len(tokens))
	for i := range done {
		done[i] = stream.Lost
	}
	return done, settleAll(all, func(b *batch) error {
		policy, err := p.policyOf(ctx, b.first.Queue, b.first.Group)
		if err != nil {
			return err
		}
		failures := make([]lua.Failure, len(b.held))
		for i, held := range b.held {
			failures[i] = stream.FailureOf(errs[b.indexes[i]])
			failures[i].Held = held
		}
		outcomes, err := p.retry(ctx, b, policy.Attempts(), failures)
		if err != nil {
			return err
		}
		for i, outcome := range outcomes {
			done[b.indexes[i]] = stream.SettlementOf(outcome)
		}
		return nil
	})
}

func (p *Puller) retry(
	ctx context.Context, b *batch, attempts lua.Attempts, failures []lua.Failure,
) ([]lua.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	outcomes, err := lua.Retry(ctx, p.cfg.Client, p.keys(b.partitionName), b.first.Group, attempts, failures)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return outcomes, nil
}

// Extend restarts the time of deliveries, and returns the outcome for each. lua.NotHeld: the delivery is lost.
// lua.HeldCancelled: the delivery is extended, but its message was cancelled; work on the message should stop, and any
// settlement ends it. within holds the new time of each delivery, as in a Request. Deliveries of one partition and
// group with the same time are sent together. With an error some may be extended.
func (p *Puller) Extend(ctx context.Context, tokens []Token, within []time.Duration) ([]lua.Extended, error) {
	all, err := batches(tokens, func(i int) time.Duration { return within[i] })
	if err != nil {
		return nil, err
	}
	done := make([]lua.Extended, len(tokens))
	return done, settleAll(all, func(b *batch) error {
		held, err := p.extend(ctx, b, within[b.indexes[0]])
		if err != nil {
			return err
		}
		for i, answer := range held {
			done[b.indexes[i]] = answer
		}
		return nil
	})
}

func (p *Puller) extend(ctx context.Context, b *batch, within time.Duration) ([]lua.Extended, error) {
	policy, err := p.policyOf(ctx, b.first.Queue, b.first.Group)
	if err != nil {
		return nil, err
	}
	visibility := policy.VisibilityTimeout
	if err := checkWithin(within, visibility, b.first.Queue, b.first.Group); err != nil {
		return nil, err
	}
	idle := time.Duration(0)
	if within > 0 {
		idle = max(0, visibility-within)
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	held, err := lua.ExtendIdle(ctx, p.cfg.Client, p.keys(b.partitionName), b.first.Group, p.cfg.Consumer, idle, b.held)
	if err != nil {
		return nil, fmt.Errorf("extend: %w", err)
	}
	return held, nil
}

func (p *Puller) keys(partitionName string) lua.Keys {
	return lua.NewKeys(p.cfg.Prefix, partitionName).As(lua.Actor(lua.ActorWorker))
}
