package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// ErrNoRecurrence: the queue has no recurrence of this name.
var ErrNoRecurrence = errors.New("no such recurrence")

// ErrChanged: another client changed the recurrence in between. Nothing was written.
var ErrChanged = errors.New("the recurrence was changed by somebody else")

// patience bounds one call of a Planner: the client library would repeat reads for as long as the context lasts.
const patience = 2 * loop.CallTimeout

// Planner writes, lists and removes recurrences. It is safe for concurrent use.
type Planner struct {
	client rueidis.Client
	prefix string
	actor  string
	log    *slog.Logger
	levels *lua.Levels // of the live bridges; nil = not checked
}

// New returns a Planner. Histories of queues name actor as the author of its changes. It does not touch Redis.
func New(client rueidis.Client, prefix, actor string, log *slog.Logger) *Planner {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Planner{client, prefix, actor, log, lua.NewLevels(client, prefix)}
}

// AllowOldBridges returns a Planner that writes recurrences even if a live bridge does not know them.
func (p *Planner) AllowOldBridges() *Planner {
	all := *p
	all.levels = nil
	return &all
}

func (p *Planner) keys(queue string) lua.Keys { return lua.NewKeys(p.prefix, queue).As(p.actor) }

// Change is the outcome of Put.
type Change struct {
	Added, Changed bool // neither: it exists unchanged
	TakenBack      int  // scheduled messages of the former spec that were removed
}

// Put writes a recurrence, or replaces the one of this name, and plans its next occurrence. ErrInvalid;
// lua.ErrOldBridge while a live bridge does not know recurrences. Five round trips, and one more for a queue with
// several partitions. Harmless to repeat.
func (p *Planner) Put(ctx context.Context, spec recurrence.Spec) (Change, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
	if err != nil {
		return Change{}, wrap("write", spec.Queue, spec.Name, err)
	}
	if _, err = lua.Register(ctx, p.client, lua.NewGlobals(p.prefix), []string{spec.Queue}); err == nil {
		var r lua.Recurred
		if r, err = lua.Recur(ctx, p.client, k, spec.Name, "", string(text), timesOf(spec), spec.Paused); err == nil {
			p.planFirst(ctx, s, string(text), r)
			return Change{!known, known && before != string(text), r.TakenBack}, nil
		}
	}
	return Change{}, wrap("write", spec.Queue, spec.Name, err)
}

// planFirst plans the next occurrence. It ignores errors, because a bridge does the same within seconds.
func (p *Planner) planFirst(ctx context.Context, s *recurrence.Schedule, text string, r lua.Recurred) {
	q := p.Queue(s.Queue)
	q.readCounts(ctx)
	q.walkEnd = time.Now().Add(maxWalk)
	it := newItem(s.Queue, s.Name, text)
	if now, err := p.now(ctx, s.Queue); err == nil && it.take(r.Plan) {
		_ = q.plan(ctx, it, now)
	}
}

// specText returns the stored spec of a recurrence.
func (p *Planner) specText(ctx context.Context, k lua.Keys, name string) (text string, ok bool, err error) {
	text, err = p.client.Do(ctx, p.client.B().Hget().Key(k.Recurring).Field(name).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", false, nil
	}
	return text, err == nil, lua.Classify("HGET "+k.Recurring, err)
}

// now returns the clock of the server that holds a queue.
func (p *Planner) now(ctx context.Context, queue string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	words, err := p.client.Do(ctx, p.client.B().Time().Build().SetSlot(p.keys(queue).Due)).AsStrSlice()
	if err != nil {
		return time.Time{}, lua.Classify("TIME", err)
	}
	return clockOf(words), nil
}

func clockOf(words []string) time.Time {
	if len(words) != 2 {
		return time.Time{}
	}
	s, _ := strconv.ParseInt(words[0], 10, 64)
	us, _ := strconv.ParseInt(words[1], 10, 64)
	return time.UnixMilli(s*1000 + us/1000)
}

// Pause stops the planning of a recurrence and takes back its planned messages, or lets it continue from now.
// ErrNoRecurrence, ErrChanged.
func (p *Planner) Pause(ctx context.Context, queue, name string, paused bool) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
		p.planFirst(ctx, s, string(text), r)
	}
	return err == nil, wrap("pause", queue, name, err)
}

// Remove removes a recurrence, and takes back its planned messages. It returns their number. ErrNoRecurrence.
func (p *Planner) Remove(ctx context.Context, queue, name string) (takenBack int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := checkNames(queue, name); err != nil {
		return 0, err
	}
	k := p.keys(queue)
	text, _, err := p.specText(ctx, k, name)
	if err != nil {
		return 0, wrap("remove", queue, name, err)
	}
	spec, _ := parse(queue, name, text) // an invalid one was never planned
	removed, back, err := lua.RemoveRecurrence(ctx, p.client, k, name, spec.Overlap == recurrence.OverlapSkip)
	if err == nil && !removed {
		err = ErrNoRecurrence
	}
	return back, wrap("remove", queue, name, err)
}

// Run schedules a message of a recurrence for now, even if it is paused, and returns its ID and due time.
// ErrNoRecurrence. If an error leaves open whether the message was scheduled, a repeated call may schedule another one.
func (p *Planner) Run(ctx context.Context, queue, name string) (id string, due time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := checkNames(queue, name); err != nil {
		return "", time.Time{}, err
	}
	k := p.keys(queue)
	text, ok, err := p.specText(ctx, k, name)
	if err == nil && ok {
		var spec recurrence.Spec
		if spec, err = parse(queue, name, text); err == nil {
			id, due, ok, err = lua.RunRecurrence(ctx, p.client, k, name, spec.Payload, metaOf(spec),
				spec.Overlap == recurrence.OverlapSkip)
		}
	}
	if err == nil && !ok {
		err = ErrNoRecurrence
	}
	return id, due, wrap("run", queue, name, err)
}

func metaOf(spec recurrence.Spec) string {
	if spec.Overlap == recurrence.OverlapSkip {
		return lua.EncodeMeta(spec.Headers, 0, time.Time{}, lua.FieldValue{Field: lua.FieldOverlap, Value: "skip"})
	}
	return lua.EncodeMeta(spec.Headers, 0, time.Time{})
}

func checkNames(queue, name string) error {
	return errors.Join(lua.CheckQueue(queue), recurrence.CheckName(name))
}

func wrap(what, queue, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s recurrence %s of %s: %w", what, name, queue, err)
}

// parse parses a stored spec. Name and queue are those of the place where it is stored.
func parse(queue, name, text string) (recurrence.Spec, error) {
	var spec recurrence.Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return spec, err
	}
	spec.Name, spec.Queue = name, queue
	return spec.WithDefaults(), nil
}

// State is a recurrence and its plan.
type State struct {
	Spec recurrence.Spec
	// Next are the next occurrences, at most three, in the recurrence's own zone; also if it is paused.
	Next []time.Time
	// Last and LastID are of the last remembered message that is due; zero = none.
	Last    time.Time
	LastID  string
	Used    int    // occurrences planned or past since it was added
	Problem string // why it is not planned: the spec is invalid
	// Unplanned is the first occurrence that nobody has planned although its time was 20s ago or earlier; zero = none.
	// Bridges plan at least 20s ahead.
	Unplanned time.Time
}

// List returns the recurrences of a queue, sorted by name. It scans the hash in steps.
func (p *Planner) List(ctx context.Context, queue string) ([]State, error) {
	if err := lua.CheckQueue(queue); err != nil {
		return nil, err
	}
	now, err := p.now(ctx, queue)
	if err != nil {
		return nil, err
	}
	plans, err := p.plans(ctx, p.keys(queue))
	if err != nil {
		return nil, err
	}
	var all []State
	err = p.walk(ctx, p.keys(queue), func(name, text string) { all = append(all, stateOf(queue, name, text, plans[name], now)) })
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Spec.Name, b.Spec.Name) })
	return slices.CompactFunc(all, func(a, b State) bool { return a.Spec.Name == b.Spec.Name }), err
}

// Get returns one recurrence. ErrNoRecurrence.
func (p *Planner) Get(ctx context.Context, queue, name string) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
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

func (p *Planner) plans(ctx context.Context, k lua.Keys) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	plans, err := p.client.Do(ctx, p.client.B().Hgetall().Key(k.Planned).Build()).AsStrMap()
	return plans, lua.Classify("HGETALL "+k.Planned, err)
}

// walk calls found for each recurrence of a queue, for some of them twice.
func (p *Planner) walk(ctx context.Context, k lua.Keys, found func(name, text string)) error {
	count := int64(4)
	for cursor := uint64(0); ; {
		step, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		page, err := p.client.Do(step, p.client.B().Hscan().Key(k.Recurring).Cursor(cursor).Count(count).Build()).AsScanEntry()
		cancel()
		if err != nil {
			return lua.Classify("HSCAN "+k.Recurring, err)
		}
		count = nextCount(count, page.Elements)
		for i := 0; i+1 < len(page.Elements); i += 2 {
			found(page.Elements[i], page.Elements[i+1])
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

// nextCount returns how many specs to read next: about 1 MiB by the sizes in this page, at most twice as many as now.
func nextCount(count int64, page []string) int64 {
	bytes := int64(0)
	for _, text := range page {
		bytes += int64(len(text))
	}
	each := bytes/max(1, int64(len(page)/2)) + 1
	return max(1, min(2*count, 100, maxBytes/each))
}

func stateOf(queue, name, text, planText string, now time.Time) State {
	spec, err := parse(queue, name, text)
	state := State{Spec: spec}
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
	if known && plan.Version == lua.SpecVersion(text) {
		state.Used = plan.Used
	}
	if known && plan.Version == lua.SpecVersion(text) && !spec.Paused && len(plan.Spans) > 0 &&
		(s.Count == 0 || state.Used < s.Count) {
		if next, ok := s.Next(plan.Spans[len(plan.Spans)-1].To); ok && next.Before(now.Add(-Ahead)) {
			state.Unplanned = next.In(s.Location())
		}
	}
	from := now
	for _, part := range plan.Recent {
		switch at := occurrenceOf(part); {
		case at.After(now) && len(state.Next) < 3:
			state.Next, from = append(state.Next, at.In(s.Location())), at
		case !at.After(now) && !at.Before(state.Last):
			state.Last, state.LastID = at.In(s.Location()), name+"@"+part
		}
	}
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
