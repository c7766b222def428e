package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

const (
	// Ahead is how long before its due time an occurrence is planned; the next one always is. It must exceed the time
	// that another bridge needs to take over a queue and find its recurrences.
	Ahead = 20 * time.Second
	// Interval is the longest time between two passes over a queue.
	Interval = 5 * time.Second
	// rereadInterval is the time after which all specs are read again, for plain clients that do not increment the
	// revision.
	rereadInterval = time.Minute
	rereadPause    = 100 * time.Millisecond // before the next pass if a spec has changed during this one
	maxCalls       = 16                     // number of concurrent calls
	maxPlanBytes   = 1 << 20                // planned by one call, unless a single message is larger
	keptMessage    = 4 << 10                // bytes of payload and meta; a larger message is not kept in memory
)

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

// Queue plans the recurrences of one queue. Only one goroutine at a time may use it.
type Queue struct {
	planner    *Planner
	name       string
	keys       lua.Keys
	partitions partitions
	revision   string    // value of a counter that writers of specs increment, at the last reading of all specs
	count      int64     // number of specs at the last reading of all specs
	read       time.Time // local time at which all specs were read; zero = never
	now        time.Time // the server's time at the last pass
	walkEnd    time.Time // local time at which the walks of this pass stop
	items      map[string]*item
	removed    map[string]*item  // removed recurrences whose messages may be unfinished
	warned     map[string]string // recurrence → version of an invalid spec that was logged
	mustReread atomic.Bool       // a stored spec differs from the spec that was read
}

// item is the state of one recurrence in a Queue. Its spec is parsed once per version. Only a small message is kept in
// memory, because there may be many recurrences.
type item struct {
	name, version string
	schedule      *recurrence.Schedule // without payload and headers; nil = the spec is invalid
	message       *message             // nil = the message is large, and must be read for each plan
	problem       error                // why the spec is invalid
	planText      string               // the stored form of plan
	plan          lua.Plan
	idleUntil     time.Time // before this time there is nothing to plan
	search        search    // only used with overlap skip
}

// message is the message of each occurrence.
type message struct {
	payload []byte
	meta    string
}

func (m *message) size() int { return len(m.payload) + len(m.meta) }

// Queue returns the planner of one queue's recurrences. It does not touch Redis.
func (p *Planner) Queue(name string) *Queue {
	return &Queue{planner: p, name: name, keys: p.keys(name), items: map[string]*item{}, removed: map[string]*item{},
		warned: map[string]string{}}
}

// Pass plans the occurrences that must be planned now, and returns the time until the next pass. It takes one round
// trip if there is nothing to plan. On a cluster, a server that is unavailable and does not hold the queue delays Pass
// only briefly.
func (q *Queue) Pass(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	c := q.planner.client
	replies := c.DoMulti(call, c.B().Time().Build().SetSlot(q.keys.Due),
		c.B().Hget().Key(q.keys.Planned).Field("").Build(), c.B().Hlen().Key(q.keys.Recurring).Build())
	cancel()
	clock, clockErr := replies[0].AsStrSlice()
	revision, revisionErr := replies[1].ToString()
	if rueidis.IsRedisNil(revisionErr) {
		revisionErr = nil
	}
	count, countErr := replies[2].AsInt64()
	if err := cmp.Or(clockErr, revisionErr, countErr); err != nil {
		return Interval, fmt.Errorf("plan %s: %w", q.name, lua.Classify("HGET "+q.keys.Planned, err))
	}
	now := timeOf(clock)
	if now.Before(q.now) { // the clock was set back, so decisions by the former time are not valid any more
		for _, it := range q.items {
			it.idleUntil, it.search = time.Time{}, search{pause: it.search.pause}
		}
	}
	q.now = now
	changed := revision != q.revision || count != q.count || q.mustReread.Load()
	if changed || q.read.IsZero() || time.Since(q.read) > rereadInterval {
		q.mustReread.Store(false)
		if err := q.readAll(ctx); err != nil {
			q.mustReread.Store(true)
			return Interval, fmt.Errorf("plan %s: %w", q.name, err)
		}
		q.revision, q.count, q.read = revision, count, time.Now()
	}
	q.walkEnd = time.Now().Add(maxWalk)
	err := errors.Join(q.planAll(ctx, now), q.removeFinishedPlans(ctx))
	wait := Interval
	for _, it := range q.items {
		if it.schedule != nil && !it.schedule.Paused {
			wait = min(wait, it.idleUntil.Sub(now)-time.Since(began))
		}
	}
	if q.mustReread.Load() {
		wait = min(wait, rereadPause)
	}
	return max(time.Millisecond, wait), err
}

// readAll reads all specs and plans. Plain clients may write and remove specs without a script. So readAll starts
// recurrences without a plan, and cancels the planned messages of recurrences without a spec.
func (q *Queue) readAll(ctx context.Context) error {
	items := map[string]*item{}
	var errs []error
	plans, err := lua.ReadRecurrences(ctx, q.planner.client, q.keys, loop.CallTimeout, func(name, text, plan string) {
		it := q.items[name]
		if it == nil || it.version != lua.SpecVersion(text) {
			it = newItem(q.name, name, text)
		}
		items[name] = it
		if it.problem != nil {
			q.warn(it)
			return
		}
		if (it.planText == "" || it.planText != plan) && !it.adoptPlan(plan) {
			errs = append(errs, q.startPlain(ctx, it, text))
		}
	})
	if err != nil {
		return err
	}
	before, removed := q.items, map[string]*item{}
	q.items = items
	for name := range before { // plans has no field for a recurrence that was removed without a plan: add one
		if _, found := plans[name]; !found {
			plans[name] = ""
		}
	}
	for name, text := range plans {
		if name == "" || items[name] != nil {
			continue
		}
		if plan, ok := lua.ParsePlan(text); ok && plan.Version == lua.PlanGone {
			it := q.removed[name]
			if it == nil || it.planText != text {
				it = &item{name: name, planText: text, plan: plan}
			}
			removed[name] = it
			continue
		}
		it := before[name]
		remember := it != nil && it.schedule != nil && it.schedule.Overlap == recurrence.OverlapSkip
		errs = append(errs, q.removePlan(ctx, name, remember))
		if remember && text != "" {
			q.mustReread.Store(true) // the next pass reads the plan that the removal leaves behind
		}
	}
	// If only the revision is left, an earlier release may have left it. Removing any plan removes the revision as
	// well.
	if _, hasRevision := plans[""]; hasRevision && len(plans) == 1 {
		errs = append(errs, q.removePlan(ctx, "-", false))
	}
	q.removed = removed
	return errors.Join(errs...)
}

func newItem(queue, name, text string) *item {
	spec, err := parse(queue, name, text)
	var schedule *recurrence.Schedule
	if err == nil {
		schedule, err = spec.Compile()
	}
	if err != nil {
		return &item{name: name, version: lua.SpecVersion(text), problem: err}
	}
	return itemOf(schedule, text)
}

// parse parses a stored spec. The name and the queue come from the place where it is stored.
func parse(queue, name, text string) (recurrence.Spec, error) {
	var spec recurrence.Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return spec, err
	}
	spec.Name, spec.Queue = name, queue
	return spec.WithDefaults(), nil
}

// itemOf returns the item of a spec whose stored form is text. It keeps the schedule, and removes its payload and
// headers.
func itemOf(schedule *recurrence.Schedule, text string) *item {
	it := &item{name: schedule.Name, version: lua.SpecVersion(text), schedule: schedule}
	if m := messageOf(schedule.Spec); m.size() <= keptMessage {
		it.message = m
	}
	schedule.Payload, schedule.Headers = nil, nil
	return it
}

// messageOf returns the message of a spec's occurrences.
func messageOf(spec recurrence.Spec) *message {
	var fields []lua.FieldValue
	if spec.Overlap == recurrence.OverlapSkip {
		fields = append(fields, lua.FieldValue{Field: lua.FieldOverlap, Value: "skip"})
	}
	return &message{spec.Payload, lua.EncodeMeta(spec.Headers, 0, time.Time{}, fields...)}
}

// adoptPlan makes a stored plan the plan of the item. It returns false if the text is no plan, or the plan of another
// version of the spec. The search begins again, because the entries that the current walk has passed may belong to
// messages that only the new plan names.
func (it *item) adoptPlan(planText string) bool {
	plan, ok := lua.ParsePlan(planText)
	if !ok || plan.Version != it.version {
		return false
	}
	it.planText, it.plan, it.idleUntil = planText, plan, time.Time{}
	it.search = search{}
	return true
}

// startPlain starts a recurrence whose spec a plain client wrote.
func (q *Queue) startPlain(ctx context.Context, it *item, text string) error {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	r, err := lua.Recur(call, q.planner.client, q.keys, it.name, text, text,
		timesOf(it.schedule.Spec), it.schedule.Paused)
	if err == nil && !it.adoptPlan(r.Plan) {
		q.requestReread(it)
	}
	return err
}

func (q *Queue) warn(it *item) {
	if q.warned[it.name] != it.version {
		q.warned[it.name] = it.version
		q.planner.log.Warn("a recurrence is not planned",
			slog.String("queue", q.name), slog.String("recurrence", it.name), slog.Any("error", it.problem))
	}
}

// removePlan cancels the planned messages of a recurrence that has no spec any more, and deletes its plan. If remember
// is set and messages of the plan may be unfinished, a plan with these messages is left.
func (q *Queue) removePlan(ctx context.Context, name string, remember bool) error {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	return lua.ForgetRecurrence(call, q.planner.client, q.keys, name, remember)
}

// planAll plans each recurrence that has something to plan, several at once.
func (q *Queue) planAll(ctx context.Context, now time.Time) error {
	var mu sync.Mutex
	var errs []error
	var calls sync.WaitGroup
	room := make(chan struct{}, maxCalls)
	var due []*item
	for _, it := range q.items {
		if it.schedule != nil && !it.schedule.Paused && !it.idleUntil.After(now) {
			due = append(due, it)
		}
	}
	if len(due) > 0 {
		q.readCounts(ctx)
	}
	for _, it := range due {
		room <- struct{}{}
		calls.Go(func() {
			defer func() { <-room }()
			if err := q.plan(ctx, it, now); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("plan %s of %s: %w", it.name, q.name, err))
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	if len(errs) > 3 {
		errs = append(errs[:3], fmt.Errorf("and of %d more", len(errs)-3))
	}
	return errors.Join(errs...)
}

// plan plans one recurrence, and sets the time until which there is nothing more to plan.
func (q *Queue) plan(ctx context.Context, it *item, now time.Time) error {
	walkStart := now
	if !it.search.began.IsZero() {
		walkStart = it.search.began
	}
	d := decide(it.schedule, it.plan, walkStart)
	if len(d.occurrences) == 0 || it.schedule.Paused {
		it.idleUntil = d.idleUntil
		return nil
	}
	if it.schedule.Overlap == recurrence.OverlapSkip {
		var err error
		if d, err = q.applyOverlapSkip(ctx, it, d, walkStart, now); err != nil || d.upTo.IsZero() {
			return err
		}
	}
	m := it.message
	if m == nil {
		var err error
		if m, err = q.readMessage(ctx, it); err != nil || m == nil {
			return err
		}
	}
	limit := max(1, min(lua.MaxPlanned, maxPlanBytes/max(1, m.size())))
	if len(d.occurrences) > limit {
		d.occurrences = d.occurrences[:limit]
		d.upTo = d.occurrences[limit-1].At
	}
	if !q.partitions.isOne() && !q.markTaken(ctx, it.name, d.occurrences, now) { // another partition must answer first
		it.idleUntil = earlier(now.Add(Interval), d.occurrences[0].At.Add(-plannedAnyway))
		return nil
	}
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	done, plan, err := lua.PlanOccurrences(call, q.planner.client, q.keys, it.name, it.planText, d.plannedSpans(),
		m.payload, m.meta, d.occurrences)
	if err != nil {
		return err
	}
	if !done {
		// If the plan in the reply is unchanged, the spec was removed.
		if plan == it.planText || !it.adoptPlan(plan) {
			q.requestReread(it)
		}
		return nil
	}
	if d.clockSetBack {
		q.planner.log.Warn("the server's clock was set back: a recurrence goes on from now",
			slog.String("queue", q.name), slog.String("recurrence", it.name))
	}
	it.adoptOwnPlan(plan, len(d.occurrences))
	it.idleUntil = decide(it.schedule, it.plan, now).idleUntil
	return nil
}

// readMessage reads the message of a recurrence that is not kept in memory. It returns nil if the spec has changed.
func (q *Queue) readMessage(ctx context.Context, it *item) (*message, error) {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	text, ok, err := q.planner.specText(call, q.keys, it.name)
	if err != nil {
		return nil, err
	}
	if !ok || lua.SpecVersion(text) != it.version {
		q.requestReread(it)
		return nil, nil
	}
	spec, err := parse(q.name, it.name, text)
	if err != nil {
		return nil, err
	}
	return messageOf(spec), nil
}

// specText returns the stored spec of a recurrence.
func (p *Planner) specText(ctx context.Context, k lua.Keys, name string) (text string, ok bool, err error) {
	text, err = p.client.Do(ctx, p.client.B().Hget().Key(k.Recurring).Field(name).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", false, nil
	}
	return text, err == nil, lua.Classify("HGET "+k.Recurring, err)
}

// adoptOwnPlan makes the plan that this Queue has just written the plan of the item. The walk continues, because it
// cannot have passed an entry of a message that was just added.
func (it *item) adoptOwnPlan(planText string, added int) {
	before := it.search
	if it.adoptPlan(planText) {
		it.search.walk = before.walk
		if added == 0 {
			it.search.pause, it.search.notBefore = before.pause, before.notBefore
		}
	}
}

// requestReread makes the next pass read all specs, because the spec of an item has changed.
func (q *Queue) requestReread(it *item) {
	it.idleUntil = farAway
	q.mustReread.Store(true)
	q.planner.log.Debug("a recurrence has changed", slog.String("queue", q.name), slog.String("recurrence", it.name))
}

// removeFinishedPlans deletes the plans of removed recurrences whose messages are all finished.
func (q *Queue) removeFinishedPlans(ctx context.Context) error {
	var errs []error
	for name, it := range q.removed {
		unfinished, done, err := q.isUnfinished(ctx, it)
		if err == nil && done && !unfinished {
			err = q.removePlan(ctx, name, false)
			delete(q.removed, name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// NextPass returns the server's time from which on a pass has something to do. If a pass must follow at once, it is the
// time of the last pass. If a pass has nothing to do before somebody changes a recurrence, it is the zero time. Pass
// itself returns at most Interval, because it also looks for such changes.
func (q *Queue) NextPass() time.Time {
	if q.mustReread.Load() {
		return q.now
	}
	var next time.Time
	for _, it := range q.items {
		if it.schedule == nil || it.schedule.Paused {
			continue
		}
		from := it.idleUntil
		if from.Before(q.now) { // zero: the plan has changed during the pass
			from = q.now
		}
		if next.IsZero() || from.Before(next) {
			next = from
		}
	}
	return next
}

// Empty reports whether the last pass found no recurrence, and no plan of a removed one.
func (q *Queue) Empty() bool { return len(q.items) == 0 && len(q.removed) == 0 }

// now returns the time of the server that holds a queue.
func (p *Planner) now(ctx context.Context, queue string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	words, err := p.client.Do(ctx, p.client.B().Time().Build().SetSlot(p.keys(queue).Due)).AsStrSlice()
	if err != nil {
		return time.Time{}, lua.Classify("TIME", err)
	}
	return timeOf(words), nil
}

func timeOf(words []string) time.Time {
	if len(words) != 2 {
		return time.Time{}
	}
	s, _ := strconv.ParseInt(words[0], 10, 64)
	us, _ := strconv.ParseInt(words[1], 10, 64)
	return time.UnixMilli(s*1000 + us/1000)
}
