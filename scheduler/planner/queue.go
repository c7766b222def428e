package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	rereadPause    = 100 * time.Millisecond // until the next pass if a spec was seen to have changed
	atOnce         = 16                     // concurrent calls
	maxBytes       = 1 << 20                // planned by one call, unless one occurrence is larger
	maxSearchPause = 5 * time.Minute
	maxWalk        = time.Second // time limit for all walks of a pass; each recurrence makes one step in any case
	walkPause      = 100 * time.Millisecond
)

// Queue plans the recurrences of one queue. Only one goroutine at a time may use it.
type Queue struct {
	p        *Planner
	name     string
	keys     lua.Keys
	parts    partitions
	revision string
	count    int64
	read     time.Time // local time at which all specs were read; zero = never
	now      time.Time // the server's clock at the last pass
	walkEnd  time.Time // local time at which the walks of this pass stop
	items    map[string]*item
	gone     map[string]*item  // removed recurrences whose messages may be unfinished
	warned   map[string]string // recurrence → version of an invalid spec that was logged
	stale    atomic.Bool       // a stored spec differs from the one that was read
}

// item is the state of one recurrence in a Queue. It holds no payload, because there may be many recurrences.
type item struct {
	name, version string
	schedule      *recurrence.Schedule // nil: the spec is invalid
	problem       error
	planText      string
	plan          lua.Plan
	idleUntil     time.Time     // there is nothing to plan before that
	searchPause   time.Duration // until the next search for unfinished messages of the last occurrence
	searchAt      time.Time
	walk          lua.Unfinished
	walkFrom      time.Time // the clock when the current walk began; it decides which occurrences are due; zero = no walk
}

// Queue returns the planner of one queue's recurrences. It does not touch Redis.
func (p *Planner) Queue(name string) *Queue {
	return &Queue{p: p, name: name, keys: p.keys(name), items: map[string]*item{}, gone: map[string]*item{},
		warned: map[string]string{}}
}

func newItem(queue, name, text string) *item {
	it := &item{name: name, version: lua.SpecVersion(text)}
	spec, err := parse(queue, name, text)
	if err == nil {
		it.schedule, err = spec.Compile()
	}
	if err != nil {
		it.schedule, it.problem = nil, err
		return it
	}
	it.schedule.Payload, it.schedule.Headers = nil, nil
	return it
}

// take adopts a stored plan. It returns false if there is none, or if it is of another spec. A walk belongs to the plan
// for which it began: the entries that it passed may belong to messages that only the new plan names.
func (it *item) take(planText string) bool {
	plan, ok := lua.ParsePlan(planText)
	if !ok || plan.Version != it.version {
		return false
	}
	it.planText, it.plan, it.idleUntil = planText, plan, time.Time{}
	it.walk, it.searchPause, it.searchAt = lua.Unfinished{}, 0, time.Time{}
	it.walkFrom = time.Time{}
	return true
}

// takeOwn adopts the plan that this Queue has just written. Its walk continues: no entry of a message that was just
// added can lie behind it.
func (it *item) takeOwn(planText string, added int) {
	walk, pause, at := it.walk, it.searchPause, it.searchAt
	if it.take(planText) {
		it.walk = walk
		if added == 0 {
			it.searchPause, it.searchAt = pause, at
		}
	}
}

// Empty reports whether the last pass found no recurrence, and no plan of a removed one.
func (q *Queue) Empty() bool { return len(q.items) == 0 && len(q.gone) == 0 }

// Pass plans the occurrences that are to be planned now, and returns the time until the next pass. When there is
// nothing to plan it is one round trip. A server that does not hold the queue delays it only briefly.
func (q *Queue) Pass(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	c := q.p.client
	replies := c.DoMulti(call, c.B().Time().Build().SetSlot(q.keys.Due),
		c.B().Hget().Key(q.keys.Planned).Field("").Build(), c.B().Hlen().Key(q.keys.Recurring).Build())
	cancel()
	words, err := replies[0].AsStrSlice()
	revision, unread := replies[1].ToString()
	if rueidis.IsRedisNil(unread) {
		unread = nil
	}
	count, failed := replies[2].AsInt64()
	if err := cmp.Or(err, unread, failed); err != nil {
		return Interval, fmt.Errorf("plan %s: %w", q.name, lua.Classify("HGET "+q.keys.Planned, err))
	}
	now := clockOf(words)
	if now.Before(q.now) { // the clock was set back: decisions by the old time no longer hold
		for _, it := range q.items {
			it.idleUntil, it.searchAt, it.walk = time.Time{}, time.Time{}, lua.Unfinished{}
			it.walkFrom = time.Time{}
		}
	}
	q.now = now
	if revision != q.revision || count != q.count || q.read.IsZero() || q.stale.Load() || time.Since(q.read) > rereadInterval {
		q.stale.Store(false)
		if err := q.readAll(ctx); err != nil {
			q.stale.Store(true)
			return Interval, fmt.Errorf("plan %s: %w", q.name, err)
		}
		q.revision, q.count, q.read = revision, count, time.Now()
	}
	q.walkEnd = time.Now().Add(maxWalk)
	err = errors.Join(q.planAll(ctx, now), q.forgetDone(ctx))
	wait := Interval
	for _, it := range q.items {
		if it.schedule != nil && !it.schedule.Paused {
			wait = min(wait, it.idleUntil.Sub(now)-time.Since(began))
		}
	}
	if q.stale.Load() {
		wait = min(wait, rereadPause)
	}
	return max(time.Millisecond, wait), err
}

// planAll plans each recurrence that has something to plan, several at once.
func (q *Queue) planAll(ctx context.Context, now time.Time) error {
	var mu sync.Mutex
	var errs []error
	var calls sync.WaitGroup
	room := make(chan struct{}, atOnce)
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

// readAll reads all specs and plans. It adopts specs that plain clients have written, and takes back the messages of
// specs that they have removed.
func (q *Queue) readAll(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	plans, err := q.p.plans(call, q.keys)
	cancel()
	if err != nil {
		return err
	}
	items := map[string]*item{}
	var errs []error
	err = q.p.walk(ctx, q.keys, func(name, text string) {
		it := q.items[name]
		if it == nil || it.version != lua.SpecVersion(text) {
			it = newItem(q.name, name, text)
		}
		items[name] = it
		if it.problem != nil {
			q.warn(it)
			return
		}
		if (it.planText == "" || it.planText != plans[name]) && !it.take(plans[name]) {
			errs = append(errs, q.adopt(ctx, it, text))
		}
	})
	if err != nil {
		return err
	}
	before, left := q.items, map[string]*item{}
	q.items = items
	for name := range before { // also recurrences without a plan: the removal of the last one leaves no field behind
		plans[name] += ""
	}
	for name, text := range plans {
		if name == "" || items[name] != nil {
			continue
		}
		if plan, ok := lua.ParsePlan(text); ok && plan.Version == lua.PlanGone {
			if left[name] = q.gone[name]; left[name] == nil || left[name].planText != text {
				left[name] = &item{name: name, planText: text, plan: plan}
			}
			continue
		}
		it := before[name]
		remember := it != nil && it.schedule != nil && it.schedule.Overlap == recurrence.OverlapSkip
		errs = append(errs, q.forget(ctx, name, remember))
		if remember && text != "" {
			q.stale.Store(true) // to read the plan that the removal leaves
		}
	}
	if _, counted := plans[""]; counted && len(plans) == 1 { // only the revision is left, perhaps by an earlier release
		errs = append(errs, q.forget(ctx, "-", false))
	}
	q.gone = left
	return errors.Join(errs...)
}

// forgetDone deletes the plans of removed recurrences whose messages are all finished.
func (q *Queue) forgetDone(ctx context.Context) error {
	var errs []error
	for name, it := range q.gone {
		left, done, err := q.isUnfinished(ctx, it)
		if err == nil && done && !left {
			err = q.forget(ctx, name, false)
			delete(q.gone, name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (q *Queue) warn(it *item) {
	if q.warned[it.name] != it.version {
		q.warned[it.name] = it.version
		q.p.log.Warn("a recurrence is not planned", slog.String("queue", q.name), slog.String("recurrence", it.name),
			slog.Any("error", it.problem))
	}
}

// adopt starts a recurrence whose spec a plain client wrote.
func (q *Queue) adopt(ctx context.Context, it *item, text string) error {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	r, err := lua.Recur(call, q.p.client, q.keys, it.name, text, text, timesOf(it.schedule.Spec), it.schedule.Paused)
	if err == nil && !it.take(r.Plan) {
		q.reread(it)
	}
	return err
}

// forget takes back the planned messages of a recurrence whose spec is gone.
func (q *Queue) forget(ctx context.Context, name string, remember bool) error {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	return lua.ForgetRecurrence(call, q.p.client, q.keys, name, remember)
}

// plan plans one recurrence, and sets the time until which there is nothing more to plan.
func (q *Queue) plan(ctx context.Context, it *item, now time.Time) error {
	began := now
	if !it.walkFrom.IsZero() {
		began = it.walkFrom
	}
	d := decide(it.schedule, it.plan, began)
	if len(d.occurrences) == 0 || it.schedule.Paused {
		it.idleUntil = d.idleUntil
		return nil
	}
	if it.schedule.Overlap == recurrence.OverlapSkip {
		var err error
		if d, err = q.overlapping(ctx, it, d, began, now); err != nil || d.upTo.IsZero() {
			return err
		}
	}
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	text, ok, err := q.p.specText(call, q.keys, it.name)
	if err != nil {
		return err
	}
	if !ok || lua.SpecVersion(text) != it.version {
		q.reread(it)
		return nil
	}
	spec, err := parse(q.name, it.name, text)
	if err != nil {
		return err
	}
	meta := metaOf(spec)
	most := max(1, min(lua.MaxPlanned, maxBytes/max(1, len(spec.Payload)+len(meta))))
	if len(d.occurrences) > most {
		d.occurrences = d.occurrences[:most]
		d.upTo = d.occurrences[most-1]
	}
	all := make([]lua.Occurrence, len(d.occurrences))
	for i, at := range d.occurrences {
		all[i] = lua.Occurrence{At: at, Due: spec.Due(at)}
	}
	if !q.markTaken(ctx, it.name, all, now) {
		it.idleUntil = earlier(now.Add(Interval), all[0].At.Add(-lookPatience))
		return nil
	}
	call, cancel = context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	done, plan, err := lua.PlanOccurrences(call, q.p.client, q.keys, it.name, it.planText, d.through(), spec.Payload, meta, all)
	if err != nil {
		return err
	}
	if !done && !it.take(plan) {
		q.reread(it)
		return nil
	}
	if done {
		if d.anew {
			q.p.log.Warn("the server's clock was set back: a recurrence goes on from now", slog.String("queue", q.name),
				slog.String("recurrence", it.name))
		}
		it.takeOwn(plan, len(all))
		it.idleUntil = decide(it.schedule, it.plan, now).idleUntil
	}
	return nil
}

// reread makes the next pass read all specs, because this one has changed.
func (q *Queue) reread(it *item) {
	it.idleUntil = farAway
	q.stale.Store(true)
	q.p.log.Debug("a recurrence has changed", slog.String("queue", q.name), slog.String("recurrence", it.name))
}

// overlapping applies overlap skip to a decision: it plans one occurrence as soon as no message of the plan is
// unfinished. Occurrences that are due before that are left out. It returns the zero value if there is nothing to do
// yet. The decision was made for the time began, at which the walk began.
func (q *Queue) overlapping(ctx context.Context, it *item, d decision, began, now time.Time) (decision, error) {
	latest, next := time.Time{}, time.Time{}
	for _, at := range d.occurrences {
		if !at.After(began) {
			latest = at
		} else if next.IsZero() {
			next = at
		}
	}
	if latest.IsZero() && it.searchAt.After(now) {
		it.idleUntil = earlier(next, it.searchAt)
		return decision{}, nil
	}
	left, done, err := q.isUnfinished(ctx, it)
	if err != nil {
		return decision{}, err
	}
	if !done {
		it.walkFrom, it.idleUntil = began, now.Add(walkPause)
		return decision{}, nil
	}
	it.walkFrom = time.Time{}
	switch {
	case !left:
		at := latest
		if at.IsZero() {
			at = next
		}
		d.occurrences, d.upTo = []time.Time{at}, at
		return d, nil
	case !latest.IsZero():
		it.searchAt = now.Add(Interval)
		d.occurrences, d.upTo = nil, latest
		return d, nil
	}
	it.searchPause = min(maxSearchPause, max(Interval, 2*it.searchPause))
	it.searchAt = now.Add(it.searchPause)
	it.idleUntil = earlier(next, it.searchAt)
	return decision{}, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// isUnfinished reports whether any message of the plan is unfinished. It searches in bounded steps and reads each entry
// once; messages in the schedule it finds by their IDs. done is false if the time for walks of this pass is
// over: the next call goes on.
func (q *Queue) isUnfinished(ctx context.Context, it *item) (left, done bool, err error) {
	ids := make([]string, len(it.plan.Recent))
	for i, part := range it.plan.Recent {
		ids[i] = it.name + "@" + part
	}
	for len(ids) > 0 {
		step, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		left, done, err := lua.FindUnfinished(step, q.p.client, q.keys, &it.walk, 1000, ids)
		cancel()
		if done || err != nil || time.Now().After(q.walkEnd) {
			return left, done, err
		}
	}
	return false, true, nil
}
