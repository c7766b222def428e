package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// Wanted is a recurrence for Apply. If Paused is nil, an existing recurrence stays paused or running, and a new one
// runs.
type Wanted struct {
	Spec   recurrence.Spec
	Paused *bool
}

// Applied is the change that Apply made to a recurrence or, in a dry run, would make.
type Applied struct {
	Queue     string `json:"queue"`
	Name      string `json:"name"`
	Did       string `json:"did"`        // "added", "changed", "removed", "unchanged"
	TakenBack int    `json:"taken_back"` // planned messages that were cancelled
}

// Apply makes the recurrences of an owner equal to wanted, in the given queues and those of wanted: it adds, changes
// and removes recurrences with the owner's label. ErrInvalid: a recurrence is wrong, or its name belongs to another
// owner or to none; nothing was changed. In a dry run nothing is changed. After any other error, repeat the call.
func (p *Planner) Apply(ctx context.Context, owner string, wanted []Wanted, queues []string,
	dryRun bool) ([]Applied, error) {
	w := newWish(owner, wanted)
	applied, err := p.compare(ctx, w, queues)
	if err == nil {
		err = errors.Join(w.faults...)
	}
	if err != nil {
		return nil, err
	}
	if dryRun {
		return applied, nil
	}
	for i := range applied {
		if err := p.apply(ctx, w, &applied[i]); err != nil {
			return applied[:i], err
		}
	}
	return applied, nil
}

// wish holds the wanted recurrences of an owner.
type wish struct {
	owner  string
	given  []place // in the order of the caller
	specs  map[place]recurrence.Spec
	paused map[place]*bool // as Wanted.Paused
	faults []error
}

// place names a recurrence.
type place struct{ queue, name string }

// newWish returns the wanted recurrences with their owner, and checks them.
func newWish(owner string, wanted []Wanted) *wish {
	w := &wish{owner: owner, specs: map[place]recurrence.Spec{}, paused: map[place]*bool{}}
	for _, one := range wanted {
		spec, at := one.Spec, place{one.Spec.Queue, one.Spec.Name}
		spec.Owner = owner
		spec.Paused = one.Paused != nil && *one.Paused
		if _, twice := w.specs[at]; twice {
			w.faults = append(w.faults, fmt.Errorf("recurrence %s of %s: %w", at.name, at.queue,
				lua.Invalid("name", at.name, "must be given once")))
		}
		if _, err := spec.Compile(); err != nil {
			w.faults = append(w.faults, fmt.Errorf("recurrence %s of %s: %w", at.name, at.queue, err))
		}
		w.given, w.specs[at], w.paused[at] = append(w.given, at), spec, one.Paused
	}
	return w
}

// queues returns the queues in which recurrences may have to change, sorted.
func (w *wish) queues(others []string) []string {
	all := slices.Clone(others)
	for _, at := range w.given {
		if lua.CheckQueue(at.queue) == nil {
			all = append(all, at.queue)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// compare returns the changes that make the stored recurrences equal to the wish. A wanted recurrence that belongs to
// another owner is a fault of the wish.
func (p *Planner) compare(ctx context.Context, w *wish, queues []string) (changes []Applied, err error) {
	stored := map[place]bool{}
	for _, queue := range w.queues(queues) {
		states, err := p.List(ctx, queue)
		if err != nil {
			return nil, err
		}
		for _, s := range states {
			at := place{queue, s.Spec.Name}
			spec, wanted := w.specs[at]
			stored[at] = true
			switch {
			case wanted && s.Spec.Owner != w.owner:
				w.faults = append(w.faults, lua.Invalid("owner", w.owner, "must be the one that recurrence %s of %s has, %q",
					at.name, queue, s.Spec.Owner))
			case !wanted && s.Spec.Owner == w.owner:
				changes = append(changes, Applied{Queue: queue, Name: at.name, Did: "removed"})
			case wanted:
				if w.paused[at] == nil {
					spec.Paused = s.Spec.Paused
					w.specs[at] = spec
				}
				did := "unchanged"
				if s.Problem != "" || !spec.Equal(s.Spec) {
					did = "changed"
				}
				changes = append(changes, Applied{Queue: queue, Name: at.name, Did: did})
			}
		}
	}
	for _, at := range w.given {
		if !stored[at] {
			changes = append(changes, Applied{Queue: at.queue, Name: at.name, Did: "added"})
		}
	}
	return changes, nil
}

// apply makes one change.
func (p *Planner) apply(ctx context.Context, w *wish, change *Applied) (err error) {
	switch change.Did {
	case "removed":
		change.TakenBack, err = p.Remove(ctx, change.Queue, change.Name)
		if errors.Is(err, ErrNoRecurrence) {
			err = nil
		}
	case "added", "changed":
		var made Change
		made, err = p.Put(ctx, w.specs[place{change.Queue, change.Name}])
		change.TakenBack = made.TakenBack
	}
	return err
}
