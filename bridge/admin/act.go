package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/bulk"
	"github.com/duestream/duestream/stream/deadletter"
)

// ActionKind is a kind of change.
type ActionKind string

// Kinds of an Action, with the states of messages to which they apply.
const (
	ActCancel     ActionKind = "cancel"     // scheduled, retrying, ready, pending: it will not be delivered
	ActReschedule ActionKind = "reschedule" // scheduled, retrying: it gets a new due time
	ActExpire     ActionKind = "expire"     // scheduled, retrying: it becomes a dead letter of reason expired
	ActRedrive    ActionKind = "redrive"    // dead: it is scheduled again, and the letter is deleted
	ActPurge      ActionKind = "purge"      // dead: the letter is deleted
)

// States returns the states of messages to which an action of this kind applies.
func (k ActionKind) States() []State {
	switch k {
	case ActCancel:
		return []State{StateScheduled, StateRetrying, StateReady, StatePending}
	case ActReschedule, ActExpire:
		return []State{StateScheduled, StateRetrying}
	}
	return []State{StateDead}
}

// actionKinds has all kinds, in their order.
var actionKinds = []ActionKind{ActCancel, ActReschedule, ActExpire, ActRedrive, ActPurge}

// Action is a change of messages.
type Action struct {
	Kind   ActionKind
	At     time.Time     // reschedule: the new due time; zero: the server's time plus Delay
	Delay  time.Duration // reschedule: from the start of Act to the due time; redrive: from the redrive of each letter
	Spread time.Duration // reschedule, redrive: a further delay of 0 to Spread; whole milliseconds
	To     string        // redrive: the group that gets the messages; "": each goes to the group in which it failed
}

// ActOptions control Act and ActOn. The zero value changes all messages as fast as possible.
type ActOptions struct {
	// Rate is the greatest number of messages per second; 0: no limit. After a pause, at most as many as in one second
	// are changed at once.
	Rate     float64
	DryRun   bool            // change nothing, and only count the changes
	Load     float64         // Act: as in SearchOptions; the changes themselves are not part of it
	Progress func(ActResult) // called as by Search, and after each batch of changes
}

// ActResult counts the outcomes of Act and ActOn. A message that is in two places counts twice.
type ActResult struct {
	SearchProgress
	Changed   int64 `json:"changed"`   // were changed, or in a dry run would be
	Unchanged int64 `json:"unchanged"` // needed no change: they had the due time, had expired or were cancelled already
	Gone      int64 `json:"gone"`      // left their state, or did not match any more, before the change reached them
	// Refused counts messages that cannot be changed: their headers leave no room for an expiry, another group needs the
	// entry, too, the letter has no payload or unreadable headers, or its group does not exist.
	Refused int64     `json:"refused"`
	Unfit   int64     `json:"unfit"`       // matched, but are in a state to which the action does not apply
	To      time.Time `json:"to,omitzero"` // reschedule: the new due time, or the beginning of the Spread

	ChangedIn map[string]int64 `json:"changed_in,omitempty"` // Changed, by queue
	UnfitIn   map[State]int64  `json:"unfit_in,omitempty"`   // Unfit, by state
}

// Act changes everything that matches a filter, in bounded steps: it searches as Search does, and changes the hits in
// batches. When ctx ends, the running step is finished first, so that the result counts every change.
//
// A repeat continues after an error or a kill. To continue a reschedule, give the time To of the first run as At: with
// a Delay, all messages are moved again. A repeated redrive also redrives letters that came back dead meanwhile.
//
// Scheduled messages and retries are read again right before their change, and are counted as Gone if they do not match
// any more. Entries and dead letters never change. Only dead letters that existed at the beginning are redriven or
// purged. If a message moves to another state meanwhile, the action may miss it: see Search.
//
// Cancelling a ready entry without a group in the filter cancels it for all groups, also for those that hold it: see
// bridge.Client.CancelRunning. With a group it is refused while another group needs the entry. If the filter has States
// without StatePending, an entry that all its groups have read since it was found is left alone, and counted as Gone.
//
// If a key of a queue has a wrong type, the other queues are changed, and bridge.ErrWrongType is returned at the end.
//
// ErrInvalid: a fault of the arguments, before Redis is touched. bridge.ErrOldBridge, before any change: a bridge is
// alive that would dead-letter a cancelled delivery.
func (a *Admin) Act(ctx context.Context, f SearchFilter, what Action, o ActOptions) (ActResult, error) {
	so := SearchOptions{Load: o.Load}
	if err := errors.Join(f.Validate(), so.Validate(), what.Validate(), o.validate()); err != nil {
		return ActResult{}, err
	}
	act := &actor{admin: a, what: what, options: o, filter: f, pace: loop.Pace{Rate: o.Rate}}
	searching, stop := context.WithCancel(ctx)
	defer stop()
	so.Progress = func(p SearchProgress) {
		act.result.SearchProgress = p
		act.tell()
		if act.failed = act.flushOld(ctx); act.failed != nil {
			stop()
		}
	}
	inStreams := len(f.States) == 0 || slices.Contains(f.States, StateReady) || slices.Contains(f.States, StatePending)
	err := act.begin(ctx, inStreams)
	if err == nil {
		_, err = a.Search(searching, f, so, func(h Hit) error { return act.add(ctx, h) })
	}
	return act.end(ctx, err)
}

// ActOn changes chosen hits, as Search returned them. Of a hit it reads Queue, State, Partition, ID, Group, Member,
// Entry and Letter. A hit whose place does not exist any more is counted as Gone. ActOn does not compare contents: a
// message that was scheduled since with the same ID, or moved to another time, is changed. Else it is like Act.
func (a *Admin) ActOn(ctx context.Context, hits []Hit, what Action, o ActOptions) (ActResult, error) {
	errs := []error{what.Validate(), o.validate()}
	for _, h := range hits {
		errs = append(errs, checkHit(h))
	}
	if err := errors.Join(errs...); err != nil {
		return ActResult{}, err
	}
	act := &actor{admin: a, what: what, options: o, isChosen: true, pace: loop.Pace{Rate: o.Rate}}
	act.result.Total = int64(len(hits))
	inStreams := slices.ContainsFunc(hits, func(h Hit) bool { return roomOf(h.State) == inStream })
	err := act.begin(ctx, inStreams)
	for _, h := range slices.SortedStableFunc(slices.Values(hits), compareHits) {
		if err != nil {
			break
		}
		act.result.Looked++
		act.result.Found++
		err = act.add(ctx, h)
	}
	act.result.Complete = err == nil
	return act.end(ctx, err)
}

// Validate returns the faults of the action, each a *bridge.InvalidError with field, value and rule. Act and ActOn
// check the action, too.
func (w Action) Validate() error {
	var errs []error
	if !slices.Contains(actionKinds, w.Kind) {
		errs = append(errs, lua.Invalid("action", string(w.Kind), "must be one of %v", actionKinds))
	}
	errs = append(errs, lua.CheckDelay("delay", w.Delay), lua.CheckDelay("spread", w.Spread))
	delays := w.Kind == ActReschedule || w.Kind == ActRedrive
	if !delays && w.Delay != 0 {
		errs = append(errs, lua.Invalid("delay", w.Delay.String(), "must be zero for %s", w.Kind))
	}
	if !delays && w.Spread != 0 {
		errs = append(errs, lua.Invalid("spread", w.Spread.String(), "must be zero for %s", w.Kind))
	}
	if !w.At.IsZero() {
		at := w.At.Format(time.RFC3339Nano)
		switch {
		case w.Kind != ActReschedule:
			errs = append(errs, lua.Invalid("at", at, "must be zero for %s", w.Kind))
		case w.Delay != 0:
			errs = append(errs, lua.Invalid("delay", w.Delay.String(), "must be zero when a point in time is given"))
		}
		errs = append(errs, lua.CheckTime("at", w.At), lua.CheckTime("at", w.At.Add(w.Spread)))
	}
	if w.To != "" {
		errs = append(errs, lua.CheckGroup(w.To))
		if w.Kind != ActRedrive {
			errs = append(errs, lua.Invalid("to", w.To, "must be empty for %s", w.Kind))
		}
	}
	return errors.Join(errs...)
}

func (o ActOptions) validate() error {
	if !(o.Rate >= 0) || math.IsInf(o.Rate, 0) {
		return lua.Invalid("rate", fmt.Sprint(o.Rate), "must be a number of messages per second, or 0 for no limit")
	}
	return nil
}

// room is a kind of key that holds messages: the states of one room are changed in the same way.
type room string

const (
	inSchedule room = "schedule"
	inStream   room = "stream"
	inLetters  room = "letters"
)

func roomOf(state State) room {
	switch state {
	case StateReady, StatePending:
		return inStream
	case StateDead:
		return inLetters
	}
	return inSchedule
}

// compareRooms orders hits by queue and room.
func compareRooms(a, b Hit) int {
	if order := strings.Compare(a.Queue, b.Queue); order != 0 {
		return order
	}
	return strings.Compare(string(roomOf(a.State)), string(roomOf(b.State)))
}

// compareHits orders hits so that those that are changed together follow one another: by queue and room, then by entry.
// The deliveries of an entry are cancelled before the entry is, because that deletes it.
func compareHits(a, b Hit) int {
	return cmp.Or(
		compareRooms(a, b),
		cmp.Compare(a.Partition, b.Partition),
		strings.Compare(a.Entry, b.Entry),
		strings.Compare(string(a.State), string(b.State)), // pending before ready
	)
}

// checkHit refuses a hit that does not identify a place.
func checkHit(h Hit) error {
	errs := []error{lua.CheckQueue(h.Queue), SearchFilter{States: []State{h.State}}.Validate()}
	if h.Partition < 0 || h.Partition >= lua.MaxPartitions {
		rule := "must be between 0 and %d"
		errs = append(errs, lua.Invalid("partition", fmt.Sprint(h.Partition), rule, lua.MaxPartitions-1))
	}
	switch roomOf(h.State) {
	case inSchedule:
		m := lua.ParseMember(memberOf(h))
		if m.ID != h.ID || m.Group != h.Group || (m.Group != "") != (h.State == StateRetrying) {
			rule := "must be the name of %s in the schedule, as a search returns it"
			errs = append(errs, lua.Invalid("member", h.Member, rule, h.ID))
		}
	case inStream:
		if _, err := view.ParseEntryID(h.Entry); err != nil {
			errs = append(errs, lua.Invalid("entry", h.Entry, "must be <milliseconds>-<sequence>"))
		}
		if h.Group != "" || h.State == StatePending {
			errs = append(errs, lua.CheckGroup(h.Group))
		}
	case inLetters:
		_, _, err := deadletter.SplitLetter(h.Letter)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func memberOf(h Hit) string {
	if h.Member != "" {
		return h.Member
	}
	return h.ID
}

// actor is one call of Act or ActOn.
type actor struct {
	admin    *Admin
	what     Action
	options  ActOptions
	filter   SearchFilter
	isChosen bool // the hits were given; they may be old, and there is no filter
	pace     loop.Pace
	result   ActResult

	began      time.Time // by the server's clock
	batch      []Hit     // hits of one queue and one room that are changed next
	batchBegan time.Time // when the first hit of the batch was added
	failed     error     // the error of flushOld, which ended the search
	skipped    []error   // of queues with a key of a wrong type, one each
	skips      string    // the last one of these queues
}

// mostWait is how long a hit waits for others that are changed together with it. Meanwhile it may become ready.
const mostWait = time.Second

// batchSize is the greatest number of messages of a batch.
const batchSize = 250

// begin reads what the whole action needs. inStreams: the hits may be in streams.
func (t *actor) begin(ctx context.Context, inStreams bool) (err error) {
	client, prefix := t.admin.redis.Client, t.admin.prefix
	if t.began, err = view.ServerTime(ctx, client); err != nil {
		return err
	}
	if t.what.Kind == ActReschedule {
		at := t.what.At
		if at.IsZero() {
			at = t.began.Add(t.what.Delay)
		}
		if whole := at.Truncate(time.Millisecond); whole.Before(at) { // due times are whole milliseconds
			at = whole.Add(time.Millisecond)
		}
		t.result.To = at
	}
	if inStreams && t.what.Kind == ActCancel && !t.admin.allowOldBridges {
		return lua.NewLevels(client, prefix).Allow(ctx, lua.LevelCancelled, "cancellations of what runs")
	}
	return nil
}

// add counts a hit that the action does not apply to, and adds any other one to the batch.
func (t *actor) add(ctx context.Context, h Hit) error {
	if !slices.Contains(t.what.Kind.States(), h.State) {
		// Entries that were added after the beginning are not counted: this action may have made them due, and then they
		// were counted before. A dry run makes none due.
		if t.options.DryRun || roomOf(h.State) != inStream || !lua.EntryTime(h.Entry).After(t.began) {
			t.result.Unfit++
			addTo(&t.result.UnfitIn, h.State, 1)
		}
		return nil
	}
	if h.Queue == t.skips {
		return nil
	}
	if len(t.batch) > 0 && compareRooms(t.batch[0], h) != 0 {
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	if len(t.batch) == 0 {
		t.batchBegan = time.Now()
	}
	t.batch = append(t.batch, h)
	if len(t.batch) < t.pace.Batch(batchSize) {
		return nil
	}
	return t.flush(ctx)
}

// flushOld changes a batch that waits for longer than mostWait.
func (t *actor) flushOld(ctx context.Context) error {
	if t.failed != nil || len(t.batch) == 0 || time.Since(t.batchBegan) < mostWait {
		return t.failed
	}
	return t.flush(ctx)
}

// end changes the last batch, unless an error ended the search, and returns the result.
func (t *actor) end(ctx context.Context, err error) (ActResult, error) {
	if t.failed != nil {
		err = t.failed
	}
	if err == nil || errors.Is(err, lua.ErrWrongType) { // then the search left out a queue, and searched the others
		err = errors.Join(err, t.flush(ctx))
	}
	err = errors.Join(append(t.skipped, err)...)
	t.result.Complete = t.result.Complete && err == nil
	t.tell()
	if err != nil {
		return t.result, fmt.Errorf("%s: %w", t.what.Kind, err)
	}
	return t.result, nil
}

// tell reports the result so far. The receiver may keep it, so it gets maps of its own.
func (t *actor) tell() {
	if t.options.Progress != nil {
		r := t.result
		r.ChangedIn, r.UnfitIn = maps.Clone(r.ChangedIn), maps.Clone(r.UnfitIn)
		t.options.Progress(r)
	}
}

// addTo adds to a count, and makes the map with the first one.
func addTo[K comparable](counts *map[K]int64, key K, n int64) {
	if n == 0 {
		return
	}
	if *counts == nil {
		*counts = map[K]int64{}
	}
	(*counts)[key] += n
}

// flush changes the batch, as soon as the rate allows it.
func (t *actor) flush(ctx context.Context) error {
	hits := t.batch
	t.batch = nil
	if len(hits) == 0 {
		return nil
	}
	if !t.options.DryRun && !t.pace.Wait(ctx, len(hits)) {
		return ctx.Err()
	}
	before := t.result.Changed
	var err error
	switch roomOf(hits[0].State) {
	case inSchedule:
		err = t.changeScheduled(ctx, hits)
	case inStream:
		err = t.cancelEntries(ctx, hits)
	case inLetters:
		err = t.changeLetters(ctx, hits)
	}
	addTo(&t.result.ChangedIn, hits[0].Queue, t.result.Changed-before)
	t.tell()
	if errors.Is(err, lua.ErrWrongType) { // the other queues are changed nevertheless
		t.skips, t.skipped, err = hits[0].Queue, append(t.skipped, err), nil
	}
	return err
}

// changeScheduled changes scheduled messages and retries of one queue that still match the filter.
func (t *actor) changeScheduled(ctx context.Context, hits []Hit) error {
	f := BulkFilter{
		Retries: true, Headers: t.filter.Headers, From: t.filter.From, Until: t.filter.Until, Error: t.filter.Error,
		Text: t.filter.Text, Key: t.filter.Key,
	}
	for _, h := range hits {
		f.Messages = append(f.Messages, bulk.MessageOf(h.Partition, memberOf(h)))
	}
	o := BulkOptions{DryRun: t.options.DryRun, Spread: t.what.Spread}
	queue := hits[0].Queue
	var done BulkResult
	var err error
	switch b := t.admin.Bulk(); t.what.Kind {
	case ActCancel:
		done, err = b.Cancel(ctx, queue, f, o)
	case ActReschedule:
		done, err = b.Reschedule(ctx, queue, f, 0, t.result.To, o)
	default:
		done, err = b.Expire(ctx, queue, f, o)
	}
	t.result.Changed += int64(done.Changed)
	t.result.Unchanged += int64(done.Unchanged)
	t.result.Gone += int64(done.Gone)
	t.result.Refused += int64(done.Refused)
	return err
}

// changeLetters redrives or purges dead letters of one queue.
func (t *actor) changeLetters(ctx context.Context, hits []Hit) error {
	names := make([]string, len(hits))
	for i, h := range hits {
		names[i] = h.Letter
	}
	queue, letters := hits[0].Queue, t.admin.DeadLetters()
	if t.what.Kind == ActRedrive {
		done, err := letters.Redrive(ctx, queue, names, RedriveOptions{
			Delay: t.what.Delay, Spread: t.what.Spread, To: t.what.To, DryRun: t.options.DryRun,
		})
		t.result.Changed += int64(done.Scheduled)
		t.result.Gone += int64(done.Gone)
		t.result.Refused += int64(done.Left())
		return err
	}
	if t.options.DryRun {
		return t.countEach(ctx, hits, t.foreseePurge)
	}
	purged, err := letters.Purge(ctx, queue, names)
	t.result.Changed += int64(purged)
	if err == nil {
		t.result.Gone += int64(len(names) - purged)
	}
	return err
}
