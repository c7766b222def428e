package admin

import (
	"context"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/scheduler/recurrence"
)

func (a *Admin) planner() *planner.Planner {
	p := planner.New(a.redis.Client, a.prefix, a.Name(), nil)
	if a.allowOldBridges {
		return p.AllowOldBridges()
	}
	return p
}

// Missed is the policy for occurrences that no bridge planned in time: see [recurrence.Missed].
type Missed = recurrence.Missed

// Overlap is the policy for an occurrence while the message of the occurrence before it is not settled: see
// [recurrence.Overlap].
type Overlap = recurrence.Overlap

// CheckRecurrence returns an error if the name of a recurrence is empty, longer than 200 bytes, not UTF-8, or has
// control characters.
func CheckRecurrence(name string) error { return lua.CheckRecurrence(name) }

// Recur adds or replaces a recurrence, like bridge.Client.Recur.
func (a *Admin) Recur(ctx context.Context, r bridge.Recurrence) (bridge.RecurrenceChange, error) {
	return a.planner().Put(ctx, r)
}

// ReplaceRecurrence is Recur for a caller who has read the recurrence. It returns bridge.ErrChanged unless the stored
// spec has this RecurrenceState.Version, and bridge.ErrNoRecurrence if there is no recurrence.
func (a *Admin) ReplaceRecurrence(
	ctx context.Context, r bridge.Recurrence, version string,
) (bridge.RecurrenceChange, error) {
	return a.planner().Replace(ctx, r, version)
}

// Recurrences returns the recurrences of a queue, in the order of their names, each with its next three times. It
// reads them in bounded steps.
func (a *Admin) Recurrences(ctx context.Context, queue string) ([]bridge.RecurrenceState, error) {
	return a.planner().List(ctx, queue)
}

// Recurrence returns one recurrence. bridge.ErrNoRecurrence: there is no recurrence of this name.
func (a *Admin) Recurrence(ctx context.Context, queue, name string) (bridge.RecurrenceState, error) {
	return a.planner().Get(ctx, queue, name)
}

// PauseRecurrence pauses a recurrence and cancels its planned messages, or resumes it from now on if paused is false.
// changed is false if it was already in that state. bridge.ErrNoRecurrence, bridge.ErrChanged.
func (a *Admin) PauseRecurrence(ctx context.Context, queue, name string, paused bool) (changed bool, err error) {
	return a.planner().Pause(ctx, queue, name, paused)
}

// RemoveRecurrence removes a recurrence and cancels its planned messages. It returns how many it cancelled.
// bridge.ErrNoRecurrence.
func (a *Admin) RemoveRecurrence(ctx context.Context, queue, name string) (takenBack int, err error) {
	return a.planner().Remove(ctx, queue, name)
}

// RunRecurrence schedules a message of a recurrence for now. bridge.ErrNoRecurrence.
func (a *Admin) RunRecurrence(ctx context.Context, queue, name string) (bridge.Receipt, error) {
	id, due, err := a.planner().Run(ctx, queue, name)
	return bridge.Receipt{ID: id, Due: due}, err
}

// WantedRecurrence is a recurrence for ApplyRecurrences. If Paused is nil, an existing recurrence stays paused or
// running.
type WantedRecurrence struct {
	bridge.Recurrence
	Paused *bool
}

// AppliedRecurrence is the change that ApplyRecurrences made to a recurrence, or would make: see [planner.Applied].
type AppliedRecurrence = planner.Applied

// ApplyRecurrences makes the recurrences of an owner equal to wanted, in all queues: it adds, changes and removes
// recurrences with the owner's label. ErrInvalid: a recurrence is wrong, or its name belongs to another owner or to
// none; nothing was changed. With dryRun nothing is changed. After any other error, repeat the call.
func (a *Admin) ApplyRecurrences(ctx context.Context, owner string, wanted []WantedRecurrence,
	dryRun bool) ([]AppliedRecurrence, error) {
	if owner == "" {
		return nil, lua.Invalid("owner", owner, "must not be empty")
	}
	queues, err := a.Queues(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]planner.Wanted, len(wanted))
	for i, one := range wanted {
		all[i] = planner.Wanted{Spec: one.Recurrence, Paused: one.Paused}
	}
	return a.planner().Apply(ctx, owner, all, queues, dryRun)
}
