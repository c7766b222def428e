package planner

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// State is a recurrence and its plan.
type State struct {
	Spec recurrence.Spec
	// Version differs for two stored specs that differ, also for specs that this release cannot read.
	Version string
	// Next holds the next occurrences, at most three, in the recurrence's own zone. A paused recurrence has them, too.
	Next []time.Time
	// Last is the time of the newest message in the plan that is not in the future: an occurrence, or a message that
	// was run by hand. LastID is its ID. Zero = the plan has no such message.
	Last    time.Time
	LastID  string
	Past    []string // IDs of the messages in the plan that are not in the future, the newest first, at most MaxPast
	Used    int      // how many occurrences were planned or have passed since the recurrence was added
	Problem string   // why the recurrence is not planned: what is wrong with its spec; "" = nothing
	// Unplanned is the first occurrence that nobody has planned although its time was 20s ago or earlier; zero = none.
	// Bridges plan at least 20s ahead.
	Unplanned time.Time
}

// MaxPast is the greatest number of IDs in State.Past.
const MaxPast = 20

// List returns the recurrences of a queue, sorted by name. It scans the hash in steps.
func (p *Planner) List(ctx context.Context, queue string) ([]State, error) {
	if err := lua.CheckQueue(queue); err != nil {
		return nil, err
	}
	now, err := p.now(ctx, queue)
	if err != nil {
		return nil, err
	}
	var all []State
	_, err = lua.ReadRecurrences(ctx, p.client, p.keys(queue), loop.CallTimeout, func(name, text, plan string) {
		all = append(all, stateOf(queue, name, text, plan, now))
	})
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Spec.Name, b.Spec.Name) })
	return all, err
}

// Get returns one recurrence. ErrNoRecurrence.
func (p *Planner) Get(ctx context.Context, queue, name string) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := checkNames(queue, name); err != nil {
		return State{}, err
	}
	k := p.keys(queue)
	text, ok, err := p.specText(ctx, k, name)
	if err == nil && !ok {
		err = ErrNoRecurrence
	}
	if err != nil {
		return State{}, wrap("read", queue, name, err)
	}
	now, err := p.now(ctx, queue)
	if err != nil {
		return State{}, err
	}
	plan, err := p.client.Do(ctx, p.client.B().Hget().Key(k.Planned).Field(name).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return State{}, wrap("read", queue, name, lua.Classify("HGET "+k.Planned, err))
	}
	return stateOf(queue, name, text, plan, now), nil
}

// stateOf returns the state of a recurrence from its stored spec and plan.
func stateOf(queue, name, text, planText string, now time.Time) State {
	spec, err := parse(queue, name, text)
	state := State{Spec: spec, Version: lua.SpecVersion(text)}
	state.Spec.Name, state.Spec.Queue = name, queue
	if err != nil {
		state.Problem = err.Error()
		return state
	}
	s, err := spec.Compile()
	if err != nil {
		state.Problem = err.Error()
		return state
	}
	plan, known := lua.ParsePlan(planText)
	isOfSpec := known && plan.Version == lua.SpecVersion(text) // otherwise it is the plan of a former spec
	if isOfSpec {
		state.Used = plan.Used
	}
	hasMore := s.Count == 0 || state.Used < s.Count
	if isOfSpec && !spec.Paused && len(plan.Spans) > 0 && hasMore {
		if next, ok := s.Next(plan.Planned()); ok && next.Before(now.Add(-Ahead)) {
			state.Unplanned = next.In(s.Location())
		}
	}
	from := now
	past := map[string]time.Time{}
	for _, part := range plan.Recent {
		switch at := occurrenceOf(part); {
		case at.After(now) && len(state.Next) < 3:
			state.Next, from = append(state.Next, at.In(s.Location())), at
		case !at.After(now):
			past[name+"@"+part] = at
			if !at.Before(state.Last) {
				state.Last, state.LastID = at.In(s.Location()), name+"@"+part
			}
		}
	}
	state.Past = slices.SortedFunc(maps.Keys(past), func(a, b string) int {
		return cmp.Or(past[b].Compare(past[a]), strings.Compare(b, a))
	})
	state.Past = state.Past[:min(len(state.Past), MaxPast)]
	for left := s.Count - state.Used; len(state.Next) < 3 && (s.Count == 0 || left > 0); left-- {
		next, ok := s.Next(from)
		if !ok {
			break
		}
		state.Next, from = append(state.Next, next), next
	}
	return state
}

// occurrenceOf returns the time of an occurrence from the part of a message ID after "@".
func occurrenceOf(part string) time.Time {
	ms, _ := strconv.ParseInt(strings.TrimSuffix(part, lua.RunSuffix), 10, 64)
	return time.UnixMilli(ms)
}
