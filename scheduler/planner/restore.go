package planner

import (
	"context"
	"errors"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// This file holds what takes recurrences to another queue, with what is remembered of them.

// Plans returns what is remembered of each recurrence of a queue, and of those that were removed a moment ago.
func (p *Planner) Plans(ctx context.Context, queue string) (map[string]string, error) {
	plans, err := p.plans(ctx, p.keys(queue))
	delete(plans, "")
	return plans, err
}

// Specs calls found for each recurrence of a queue, once, with its spec as Redis holds it. It walks through them in steps.
func (p *Planner) Specs(ctx context.Context, queue string, found func(name, text string)) error {
	seen := map[string]bool{}
	return p.walk(ctx, p.keys(queue), func(name, text string) {
		if !seen[name] {
			seen[name] = true
			found(name, text)
		}
	})
}

// Restore writes a recurrence as it was elsewhere: its spec, and, unless that is "", what was remembered of it, together. False:
// the queue has one of that name, or something is remembered of one, and nothing was written. The queue must be registered.
func (p *Planner) Restore(ctx context.Context, queue, name, spec, plan string) (done bool, err error) {
	if err := checkNames(queue, name); err != nil {
		return false, err
	}
	if err := p.levels.Allow(ctx, lua.LevelRecurrences, "recurrences"); err != nil {
		return false, wrap("restore", queue, name, err)
	}
	k := p.keys(queue)
	for errors.Is(err, errAgain) || !done && err == nil {
		if done, err = p.restore(ctx, k, name, spec, plan); errors.Is(err, errThere) {
			return false, nil
		}
	}
	return done, wrap("restore", queue, name, err)
}

var (
	errThere = errors.New("there is one of that name")
	errAgain = errors.New("another recurrence was changed meanwhile")
)

func (p *Planner) restore(ctx context.Context, k lua.Keys, name, spec, plan string) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	err = lua.Dedicated(ctx, p.client, func(one rueidis.DedicatedClient) error {
		replies := one.DoMulti(ctx, one.B().Watch().Key(k.Recurring, k.Planned).Build(),
			one.B().Hexists().Key(k.Recurring).Field(name).Build(), one.B().Hexists().Key(k.Planned).Field(name).Build())
		for i, what := range []string{"WATCH ", "HEXISTS ", "HEXISTS "} {
			if err := replies[i].Error(); err != nil {
				return lua.Classify(what+[]string{k.Recurring, k.Recurring, k.Planned}[i], err)
			}
			if n, err := replies[i].AsInt64(); i > 0 && (n > 0 || err != nil) {
				return errors.Join(errThere, err)
			}
		}
		commands := []rueidis.Completed{one.B().Hset().Key(k.Recurring).FieldValue().FieldValue(name, spec).Build()}
		if plan != "" {
			commands = append(commands, one.B().Hset().Key(k.Planned).FieldValue().FieldValue(name, plan).Build())
		}
		var err error
		if done, err = lua.Transact(ctx, one, k.Recurring, commands...); done {
			// Bridges would find it within a minute without; what stands there may be no number.
			_ = one.Do(ctx, one.B().Hincrby().Key(k.Planned).Field("").Increment(1).Build()).Error()
		} else if err == nil {
			return errAgain
		}
		return err
	})
	return done, err
}
