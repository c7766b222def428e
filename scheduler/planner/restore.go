package planner

import (
	"context"
	"errors"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// This file holds the calls that copy recurrences to another queue, with their plans.

// Plans returns the plans of a queue's recurrences, including those that were removed just now, by name.
func (p *Planner) Plans(ctx context.Context, queue string) (map[string]string, error) {
	plans, err := p.plans(ctx, p.keys(queue))
	delete(plans, "")
	return plans, err
}

// Specs calls found once for each recurrence of a queue, with its stored spec. It scans them in steps.
func (p *Planner) Specs(ctx context.Context, queue string, found func(name, text string)) error {
	seen := map[string]bool{}
	return p.walk(ctx, p.keys(queue), func(name, text string) {
		if !seen[name] {
			seen[name] = true
			found(name, text)
		}
	})
}

// Restore writes a recurrence with its spec and, unless that is "", its plan, in one transaction. It returns false, and
// writes nothing, if the queue has a recurrence or a plan of this name. The queue must be registered.
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
			// Without this, bridges would find it within a minute. It may fail, because the field may hold no number.
			_ = one.Do(ctx, one.B().Hincrby().Key(k.Planned).Field("").Increment(1).Build()).Error()
		} else if err == nil {
			return errAgain
		}
		return err
	})
	return done, err
}
