package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/scheduler/recurrence"
)

func (a *Admin) planner() *planner.Planner {
	p := planner.New(a.redis.Client, a.prefix, a.Name(), nil)
	if a.old {
		return p.AllowOldBridges()
	}
	return p
}

// Missed says what becomes of occurrences that nobody planned in time: see bridge.MissedOnce.
//
//	type Missed string
type Missed = recurrence.Missed

// Overlap says what happens while the one before is not done: see bridge.OverlapAllow.
//
//	type Overlap string
type Overlap = recurrence.Overlap

// CheckRecurrence refuses names of recurrences that are empty, longer than 200 bytes, not UTF-8, or hold control characters.
func CheckRecurrence(name string) error { return recurrence.CheckName(name) }

// Recur does what bridge.Client.Recur does.
func (a *Admin) Recur(ctx context.Context, r bridge.Recurrence) (bridge.RecurrenceChange, error) {
	return a.planner().Put(ctx, r)
}

// Recurrences returns the recurrences of a queue by name, each with its next three times. It walks through them in steps.
func (a *Admin) Recurrences(ctx context.Context, queue string) ([]bridge.RecurrenceState, error) {
	return a.planner().List(ctx, queue)
}

// Recurrence returns one recurrence. bridge.ErrNoRecurrence.
func (a *Admin) Recurrence(ctx context.Context, queue, name string) (bridge.RecurrenceState, error) {
	return a.planner().Get(ctx, queue, name)
}

// PauseRecurrence has a recurrence plan nothing, and takes back what was planned, or has it go on from now, and says whether that
// changed anything. bridge.ErrNoRecurrence, bridge.ErrChanged.
func (a *Admin) PauseRecurrence(ctx context.Context, queue, name string, paused bool) (changed bool, err error) {
	return a.planner().Pause(ctx, queue, name, paused)
}

// RemoveRecurrence removes a recurrence, and takes back what was planned: so many messages. bridge.ErrNoRecurrence.
func (a *Admin) RemoveRecurrence(ctx context.Context, queue, name string) (takenBack int, err error) {
	return a.planner().Remove(ctx, queue, name)
}

// RunRecurrence schedules a message of a recurrence for now. bridge.ErrNoRecurrence.
func (a *Admin) RunRecurrence(ctx context.Context, queue, name string) (bridge.Receipt, error) {
	id, due, err := a.planner().Run(ctx, queue, name)
	return bridge.Receipt{ID: id, Due: due}, err
}

// WantedRecurrence is a recurrence that an owner wants. Paused nil leaves it to whoever pauses it.
type WantedRecurrence struct {
	bridge.Recurrence
	Paused *bool
}

// AppliedRecurrence is what ApplyRecurrences did with one, or would do.
type AppliedRecurrence struct {
	Queue     string `json:"queue"`
	Name      string `json:"name"`
	Did       string `json:"did"`        // "added", "changed", "removed", "unchanged"
	TakenBack int    `json:"taken_back"` // messages that were planned
}

// ApplyRecurrences has an owner have these recurrences, in all queues, and no others: it adds, changes and removes those with the
// owner's label. One of that name which another owner has, or none, is ErrInvalid, as is what is wrong with a recurrence; then
// nothing was changed. With dryRun nothing is. After any other error repeat it.
func (a *Admin) ApplyRecurrences(ctx context.Context, owner string, wanted []WantedRecurrence,
	dryRun bool) ([]AppliedRecurrence, error) {
	if owner == "" {
		return nil, lua.Invalid("owner", owner, "must not be empty")
	}
	type place struct{ queue, name string }
	var errs []error
	want := map[place]*WantedRecurrence{}
	queues, err := a.Queues(ctx)
	if err != nil {
		return nil, err
	}
	for i := range wanted {
		w := &wanted[i]
		w.Owner = owner
		at := place{w.Queue, w.Name}
		if want[at] != nil {
			errs = append(errs, fmt.Errorf("recurrence %s of %s: %w", w.Name, w.Queue,
				lua.Invalid("name", w.Name, "must be given once")))
		}
		if _, err := w.Compile(); err != nil {
			errs = append(errs, fmt.Errorf("recurrence %s of %s: %w", w.Name, w.Queue, err))
		} else {
			queues = append(queues, w.Queue)
		}
		want[at] = w
	}
	slices.Sort(queues)
	var applied []AppliedRecurrence
	known := map[place]bool{}
	for _, queue := range slices.Compact(queues) {
		states, err := a.Recurrences(ctx, queue)
		if err != nil {
			return nil, err
		}
		for _, s := range states {
			at := place{queue, s.Spec.Name}
			w := want[at]
			switch {
			case w != nil && s.Spec.Owner != owner:
				errs = append(errs, lua.Invalid("owner", owner, "must be the one that recurrence %s of %s has, %q",
					at.name, queue, s.Spec.Owner))
			case w == nil && s.Spec.Owner == owner:
				applied = append(applied, AppliedRecurrence{Queue: queue, Name: at.name, Did: "removed"})
			case w != nil:
				known[at] = true
				w.Recurrence.Paused = s.Spec.Paused
				if w.Paused != nil {
					w.Recurrence.Paused = *w.Paused
				}
				did := "unchanged"
				if s.Problem != "" || !w.Equal(s.Spec) {
					did = "changed"
				}
				applied = append(applied, AppliedRecurrence{Queue: queue, Name: at.name, Did: did})
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for i := range wanted {
		w := &wanted[i]
		if at := (place{w.Queue, w.Name}); !known[at] {
			w.Recurrence.Paused = w.Paused != nil && *w.Paused
			applied = append(applied, AppliedRecurrence{Queue: w.Queue, Name: w.Name, Did: "added"})
		}
	}
	if dryRun {
		return applied, nil
	}
	for i := range applied {
		one := &applied[i]
		switch one.Did {
		case "removed":
			one.TakenBack, err = a.RemoveRecurrence(ctx, one.Queue, one.Name)
			if errors.Is(err, bridge.ErrNoRecurrence) {
				err = nil
			}
		case "added", "changed":
			var c bridge.RecurrenceChange
			c, err = a.Recur(ctx, want[place{one.Queue, one.Name}].Recurrence)
			one.TakenBack = c.TakenBack
		}
		if err != nil {
			return applied[:i], err
		}
	}
	return applied, nil
}
