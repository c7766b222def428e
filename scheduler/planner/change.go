package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// ErrNoRecurrence: the queue has no recurrence of this name.
var ErrNoRecurrence = errors.New("no such recurrence")

// ErrChanged: another client changed the recurrence in between. Nothing was written.
var ErrChanged = errors.New("the recurrence was changed by somebody else")

// callTimeout bounds one call of a Planner, because the client library repeats reads for as long as the context lasts.
const callTimeout = 2 * loop.CallTimeout

// Change is the outcome of Put.
type Change struct {
	Added, Changed bool // both are false if the recurrence existed and is unchanged
	TakenBack      int  // how many scheduled messages of the former spec were removed
}

// Put writes a recurrence, or replaces the one of this name, and plans its next occurrence. ErrInvalid;
// lua.ErrOldBridge while a live bridge does not know recurrences. It takes six round trips. A large message and a queue
// with several partitions take one more each, and so does the question which bridges are live, once every 5s. Put is
// harmless to repeat.
func (p *Planner) Put(ctx context.Context, spec recurrence.Spec) (Change, error) {
	return p.put(ctx, spec, "")
}

// Replace is Put for a caller who has read the recurrence. It returns ErrChanged unless the stored spec has this
// State.Version, and ErrNoRecurrence if there is no recurrence.
func (p *Planner) Replace(ctx context.Context, spec recurrence.Spec, version string) (Change, error) {
	return p.put(ctx, spec, version)
}

// put is Replace, or if version is "", Put.
func (p *Planner) put(ctx context.Context, spec recurrence.Spec, version string) (Change, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	spec = spec.WithDefaults()
	s, err := spec.Compile()
	if err != nil {
		return Change{}, err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return Change{}, err
	}
	if err := p.levels.Allow(ctx, lua.LevelRecurrences, "recurrences"); err != nil {
		return Change{}, wrap("write", spec.Queue, spec.Name, err)
	}
	k := p.keys(spec.Queue)
	before, known, err := p.specText(ctx, k, spec.Name)
	expected := "" // any spec, or none
	if version != "" && err == nil {
		switch expected = before; {
		case !known:
			err = ErrNoRecurrence
		case lua.SpecVersion(before) != version && before != string(text):
			err = ErrChanged
		}
	}
	if err != nil {
		return Change{}, wrap("write", spec.Queue, spec.Name, err)
	}
	if _, err = lua.Register(ctx, p.client, lua.NewGlobals(p.prefix), []string{spec.Queue}); err == nil {
		var r lua.Recurred
		r, err = lua.Recur(ctx, p.client, k, spec.Name, expected, string(text), timesOf(spec), spec.Paused)
		if err == nil && !r.Written && !r.Same {
			err = ErrChanged
		}
		if err == nil {
			p.planNext(ctx, itemOf(s, string(text)), r)
			return Change{!known, known && before != string(text), r.TakenBack}, nil
		}
	}
	return Change{}, wrap("write", spec.Queue, spec.Name, err)
}

// planNext plans the next occurrence. It ignores errors, because a bridge does the same within seconds.
func (p *Planner) planNext(ctx context.Context, it *item, r lua.Recurred) {
	q := p.Queue(it.schedule.Queue)
	q.readCounts(ctx)
	q.walkEnd = time.Now().Add(maxWalk)
	if now, err := p.now(ctx, q.name); err == nil && it.adoptPlan(r.Plan) {
		_ = q.plan(ctx, it, now)
	}
}

// Pause stops the planning of a recurrence and cancels its planned messages. If paused is false, planning continues
// from now. changed is false if the recurrence was in that state already. ErrNoRecurrence, ErrChanged.
func (p *Planner) Pause(ctx context.Context, queue, name string, paused bool) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := checkNames(queue, name); err != nil {
		return false, err
	}
	k := p.keys(queue)
	before, ok, err := p.specText(ctx, k, name)
	if err == nil && !ok {
		err = ErrNoRecurrence
	}
	if err != nil {
		return false, wrap("pause", queue, name, err)
	}
	spec, err := parse(queue, name, before)
	if err != nil {
		return false, wrap("pause", queue, name, err)
	}
	if spec.Paused == paused {
		return false, nil
	}
	spec.Paused = paused
	s, invalid := spec.Compile()
	text, err := json.Marshal(spec)
	if err != nil {
		return false, err
	}
	r, err := lua.Recur(ctx, p.client, k, name, before, string(text), timesOf(spec), paused)
	if err == nil && !r.Written && !r.Same {
		err = ErrChanged
	}
	if err == nil && invalid == nil {
		p.planNext(ctx, itemOf(s, string(text)), r)
	}
	return err == nil, wrap("pause", queue, name, err)
}

// Remove removes a recurrence, and cancels its planned messages. It returns the number of these messages.
// ErrNoRecurrence.
func (p *Planner) Remove(ctx context.Context, queue, name string) (takenBack int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := checkNames(queue, name); err != nil {
		return 0, err
	}
	k := p.keys(queue)
	text, _, err := p.specText(ctx, k, name)
	if err != nil {
		return 0, wrap("remove", queue, name, err)
	}
	spec, _ := parse(queue, name, text) // an invalid spec was never planned, so its overlap does not matter
	removed, back, err := lua.RemoveRecurrence(ctx, p.client, k, name, spec.Overlap == recurrence.OverlapSkip)
	if err == nil && !removed {
		err = ErrNoRecurrence
	}
	return back, wrap("remove", queue, name, err)
}

// Run schedules a message of a recurrence for now, even if it is paused, and returns its ID and due time.
// ErrNoRecurrence. If an error leaves open whether the message was scheduled, a repeated call may schedule another one.
func (p *Planner) Run(ctx context.Context, queue, name string) (id string, due time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := checkNames(queue, name); err != nil {
		return "", time.Time{}, err
	}
	k := p.keys(queue)
	text, ok, err := p.specText(ctx, k, name)
	if err == nil && ok {
		var spec recurrence.Spec
		if spec, err = parse(queue, name, text); err == nil {
			m := messageOf(spec)
			id, due, ok, err = lua.RunRecurrence(ctx, p.client, k, name, m.payload, m.meta,
				spec.Overlap == recurrence.OverlapSkip)
		}
	}
	if err == nil && !ok {
		err = ErrNoRecurrence
	}
	return id, due, wrap("run", queue, name, err)
}

func checkNames(queue, name string) error {
	return errors.Join(lua.CheckQueue(queue), lua.CheckRecurrence(name))
}

func wrap(what, queue, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s recurrence %s of %s: %w", what, name, queue, err)
}
