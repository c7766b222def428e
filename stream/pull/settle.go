package pull

import (
	"context"
	"fmt"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Ack acknowledges deliveries, and says of each whether it was this call that did: false = lost, because it was settled before,
// or its time had passed. Deliveries of one queue and group go out together. With an error some may be acknowledged; repeating
// the call is harmless.
func (p *Puller) Ack(ctx context.Context, tokens []Token) ([]bool, error) {
	type batch struct {
		held []lua.Held
		at   []int
	}
	type part struct{ name, group string }
	batches := map[part]*batch{}
	for i, token := range tokens {
		t, err := token.Read()
		if err != nil {
			return nil, err
		}
		of := part{t.part(), t.Group}
		if batches[of] == nil {
			batches[of] = &batch{}
		}
		batches[of].held, batches[of].at = append(batches[of].held, t.held()), append(batches[of].at, i)
	}
	done := make([]bool, len(tokens))
	for of, b := range batches {
		won, err := lua.Ack(ctx, p.cfg.Client, p.keys(of.name), of.group, b.held)
		if err != nil {
			return nil, fmt.Errorf("acknowledge: %w", err)
		}
		for i, ok := range won {
			done[b.at[i]] = ok
		}
	}
	return done, nil
}

// Fail settles a delivery as a handler that returned err would: any error has it delivered again after the policy's delay, or
// dead-lettered; stream.RetryAfter, DeadLetter, Snooze and Release say more. The answer is lost when it was settled before, or
// its time had passed.
func (p *Puller) Fail(ctx context.Context, token Token, err error) (stream.Settlement, error) {
	t, bad := token.Read()
	if bad != nil {
		return "", bad
	}
	s, bad := p.sourceOf(ctx, t.Queue, t.Group)
	if bad != nil {
		return "", bad
	}
	s.mu.Lock()
	attempts := s.policy.Attempts()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	failure := stream.FailureOf(err)
	failure.Held = t.held()
	outcomes, bad := lua.Retry(ctx, p.cfg.Client, p.keys(t.part()), t.Group, attempts, []lua.Failure{failure})
	if bad != nil {
		return "", fmt.Errorf("settle: %w", bad)
	}
	return stream.SettlementOf(outcomes[0]), nil
}

// Extend gives a delivery its time once more: within is as in a Request. False: it is lost.
func (p *Puller) Extend(ctx context.Context, token Token, within time.Duration) (bool, error) {
	t, err := token.Read()
	if err != nil {
		return false, err
	}
	lines, err := p.linesOf(ctx, &Request{Queues: []string{t.Queue}, Group: t.Group, Within: within})
	if err != nil {
		return false, err
	}
	s := lines[0].source
	idle := time.Duration(0)
	if within > 0 {
		idle = max(0, s.visibility()-within)
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	held, err := lua.ExtendIdle(ctx, p.cfg.Client, p.keys(t.part()), t.Group, p.cfg.Consumer, idle, []lua.Held{t.held()})
	if err != nil {
		return false, fmt.Errorf("extend: %w", err)
	}
	return held[0], nil
}

func (p *Puller) keys(part string) lua.Keys {
	return lua.NewKeys(p.cfg.Prefix, part).As(lua.Actor(lua.ActorWorker))
}
