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
	name  string // of the partition
	first Ticket
	held  []lua.Held
	at    []int // indexes in the call
}

// batches groups deliveries by partition, group, and a further property.
func batches[K comparable](tokens []Token, common func(at int) K) ([]*batch, error) {
	type part struct {
		name, group string
		common      K
	}
	var all []*batch
	known := map[part]*batch{}
	for i, token := range tokens {
		t, err := token.Read()
		if err != nil {
			return nil, err
		}
		of := part{t.part(), t.Group, common(i)}
		b := known[of]
		if b == nil {
			b = &batch{name: of.name, first: t}
			known[of], all = b, append(all, b)
		}
		b.held, b.at = append(b.held, t.held()), append(b.at, i)
	}
	return all, nil
}

func nothing(int) struct{} { return struct{}{} }

// each settles all batches concurrently: a failing queue or server neither prevents nor delays the others. Deliveries
// of a removed group are lost.
func each(all []*batch, settle func(*batch) error) error {
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

// Ack acknowledges deliveries, and returns for each whether this call did so. False = lost: it was settled before, its
// time had passed, or its group is gone. Deliveries of one queue and group go out together. With an error some may be
// acknowledged; repeating the call is harmless.
func (p *Puller) Ack(ctx context.Context, tokens []Token) ([]bool, error) {
	all, err := batches(tokens, nothing)
	if err != nil {
		return nil, err
	}
	done := make([]bool, len(tokens))
	return done, each(all, func(b *batch) error {
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		won, err := lua.Ack(ctx, p.cfg.Client, p.keys(b.name), b.first.Group, b.held)
		if err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
		for i, ok := range won {
			done[b.at[i]] = ok
		}
		return nil
	})
}

// Fail settles deliveries like a handler that returned these errors. With an ordinary error a delivery is repeated
// after the policy's delay, or dead-lettered; stream.RetryAfter, DeadLetter, Snooze and Release choose otherwise. The
// result is Lost for a delivery that was settled before, whose time had passed, or whose group is gone. Deliveries of
// one queue and group go out together. With an error some may be settled.
func (p *Puller) Fail(ctx context.Context, tokens []Token, errs []error) ([]stream.Settlement, error) {
	all, err := batches(tokens, nothing)
	if err != nil {
		return nil, err
	}
	done := make([]stream.Settlement, len(tokens))
	for i := range done {
		done[i] = stream.Lost
	}
	return done, each(all, func(b *batch) error {
		policy, err := p.policyOf(ctx, b.first.Queue, b.first.Group)
		if err != nil {
			return err
		}
		failures := make([]lua.Failure, len(b.held))
		for i, held := range b.held {
			failures[i] = stream.FailureOf(errs[b.at[i]])
			failures[i].Held = held
		}
		outcomes, err := p.retry(ctx, b, policy.Attempts(), failures)
		if err != nil {
			return err
		}
		for i, outcome := range outcomes {
			done[b.at[i]] = stream.SettlementOf(outcome)
		}
		return nil
	})
}

func (p *Puller) retry(ctx context.Context, b *batch, attempts lua.Attempts, failures []lua.Failure) ([]lua.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	outcomes, err := lua.Retry(ctx, p.cfg.Client, p.keys(b.name), b.first.Group, attempts, failures)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return outcomes, nil
}

// Extend restarts the time of deliveries, and returns the outcome for each. lua.NotHeld = lost. lua.HeldCancelled =
// extended, but the message was cancelled: work on it should stop, and any settlement ends it. within is as in a
// Request, for each. Deliveries of one queue and group with the same time go out together. With an error some may be
// extended.
func (p *Puller) Extend(ctx context.Context, tokens []Token, within []time.Duration) ([]lua.Extended, error) {
	all, err := batches(tokens, func(at int) time.Duration { return within[at] })
	if err != nil {
		return nil, err
	}
	done := make([]lua.Extended, len(tokens))
	return done, each(all, func(b *batch) error {
		held, err := p.extend(ctx, b, within[b.at[0]])
		if err != nil {
			return err
		}
		for i, answer := range held {
			done[b.at[i]] = answer
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
	if err := allows(within, visibility, b.first.Queue, b.first.Group); err != nil {
		return nil, err
	}
	idle := time.Duration(0)
	if within > 0 {
		idle = max(0, visibility-within)
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	held, err := lua.ExtendIdle(ctx, p.cfg.Client, p.keys(b.name), b.first.Group, p.cfg.Consumer, idle, b.held)
	if err != nil {
		return nil, fmt.Errorf("extend: %w", err)
	}
	return held, nil
}

func (p *Puller) keys(part string) lua.Keys {
	return lua.NewKeys(p.cfg.Prefix, part).As(lua.Actor(lua.ActorWorker))
}
