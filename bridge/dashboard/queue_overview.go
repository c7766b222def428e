package dashboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
)

// queueState is the state of a queue, as the topic of the queue has read it.
type queueState struct {
	Now      admin.QueueSample
	Full     admin.QueueStats // expensive figures, read less often
	First    []admin.Due      // the member of the schedule that is due first; empty = the schedule is empty
	Late     admin.Millis
	Line     []int64 // the last latenesses in ms, oldest first
	Series   queueSeries
	Groups   []queueGroup
	Findings []doctor.Finding
	Recorded []admin.SettingChange // the last changes of settings, the newest first
	Gone     bool                  // the queue does not exist any more
}

// slowWaiting is a wait for workers that is shown as a problem.
const slowWaiting = 10 * time.Second

// Waits returns the group whose entries have waited longest for workers; nil if none wait.
func (s queueState) Waits() *queueGroup {
	var slowest *queueGroup
	for i, g := range s.Groups {
		if g.Waiting != nil && (slowest == nil || *g.Waiting > *slowest.Waiting) {
			slowest = &s.Groups[i]
		}
	}
	return slowest
}

// Pending returns how many entries the consumers of all groups hold.
func (s queueState) Pending() (n int64) {
	for _, g := range s.Groups {
		n += g.Pending
	}
	return n
}

// Retrying returns how many retries of all groups wait.
func (s queueState) Retrying() (n int64) {
	for _, g := range s.Groups {
		n += g.Retrying
	}
	return n
}

// RetryingMore reports whether Retrying is a lower bound.
func (s queueState) RetryingMore() bool {
	return slices.ContainsFunc(s.Groups, func(g queueGroup) bool { return g.RetryingMore })
}

// IsSlow reports whether the group's entries have waited for long.
func (g queueGroup) IsSlow() bool { return g.Waiting != nil && time.Duration(*g.Waiting) > slowWaiting }

// queueGroup is the state of a group, with figures of both readings.
type queueGroup struct {
	admin.GroupSample
	Dead       int64
	DeadApprox bool
	Known      bool // the slow reading has the group, so Dead is known
}

// Times between two readings of the figures that cost more.
const (
	fullEvery  = 30 * time.Second
	quietEvery = time.Minute // while nothing happens, at least
	fullShare  = 20          // a reading that takes long is repeated after this multiple of its duration

	// firstParts is the number of partitions up to which each look that sees a change reads the first member of the
	// schedule.
	firstParts = 16
)

// queueTopic returns the look that all views of a queue share.
func (q *request) queueTopic(queue string) *live {
	op := q.shared()
	r := &queueReader{op: op, adviser: q.adviser, hub: q.hub, queue: queue, watcher: op.Watcher(queue)}
	return &live{topic: "queue " + queue, queue: queue, look: r.look}
}

// queueReader reads a queue at intervals. One loop calls look.
type queueReader struct {
	op      *admin.Admin
	adviser *admin.Adviser
	hub     *hub
	queue   string
	watcher *admin.Watcher

	began    time.Time // first look
	lookedAt time.Time // last look
	contents string    // of the last sample
	moved    bool      // whether a look saw a change since fullAt
	full     admin.QueueStats
	fullAt   time.Time
	fullNext time.Time
	fullTook time.Duration
	first    []admin.Due
	changes  []admin.SettingChange
	pauses   [2]bool // of the last sample: the queue and its workers are paused
	line     []int64
	series   queueSeries
	done     map[string][]doneRate // by group, of the last half minute, oldest first
}

// doneRate is the rate of a group between two looks.
type doneRate struct {
	at   time.Time
	rate float64
}

// meanDone replaces the rates of the last look by means over the time of queueState.Rates, so that a page shows only
// one number of done messages per second.
func (r *queueReader) meanDone(groups []queueGroup) {
	now, means := time.Now(), map[string][]doneRate{}
	for i, g := range groups {
		if g.Done == nil {
			continue
		}
		rates := append(slices.Clone(r.done[g.Name]), doneRate{now, *g.Done})
		for len(rates) > 1 && now.Sub(rates[0].at) > meanFor {
			rates = rates[1:]
		}
		// The first rate is of a time before the others, of unknown length. It counts while there is no other.
		sum, known := 0.0, 0.0
		for j := 1; j < len(rates); j++ {
			span := rates[j].at.Sub(rates[j-1].at).Seconds()
			sum, known = sum+rates[j].rate*span, known+span
		}
		if known > 0 {
			groups[i].Done = new(sum / known)
		}
		means[g.Name] = rates
	}
	r.done = means
}

func (r *queueReader) look(ctx context.Context) (sample, error) {
	samples, err := r.watcher.Look(ctx)
	if err != nil {
		return sample{}, err
	}
	if len(samples) != 1 {
		return sample{}, fmt.Errorf("look at queue %s: %d samples", r.queue, len(samples))
	}
	s := queueState{Now: samples[0], Late: latenessOf(samples[0])}
	if s.Gone, err = r.isGone(ctx, s.Now); err != nil || s.Gone {
		return sample{value: s, mark: "gone"}, err
	}
	contents := contentsOf(s.Now)
	changed := contents != r.contents
	r.contents, r.moved = contents, r.moved || changed
	if s.Now.Err == nil { // else a key has another type, and Now.Err tells it
		if err := r.read(ctx, s.Now, changed); err != nil {
			return sample{}, err
		}
	}
	s.Full, s.First, s.Recorded = r.full, r.first, r.changes
	s.Groups = groupsOf(s.Now, s.Full)
	r.meanDone(s.Groups)
	bridges, err := r.op.Bridges(ctx)
	all := r.adviser.Advise(ctx, admin.Seen{Samples: samples, Bridges: bridges, BridgesFailed: err != nil})
	for _, f := range all {
		if f.Queue == r.queue || f.Queue == "" {
			s.Findings = append(s.Findings, f)
		}
	}
	r.line = append(slices.Clone(r.line), int64(s.Late))
	if len(r.line) > latenessPoints {
		r.line = r.line[len(r.line)-latenessPoints:]
	}
	s.Line = r.line
	r.addRates(s.Now)
	s.Series = r.series
	return sample{value: s, mark: s.mark()}, nil
}

// isGone reports whether somebody has deleted the queue while it was watched. It asks Redis only if the sample is
// empty.
func (r *queueReader) isGone(ctx context.Context, now admin.QueueSample) (bool, error) {
	if now.Err != nil || now.Scheduled+now.Entries+now.Dead > 0 || len(now.Groups) > 0 {
		return false, nil
	}
	err := r.op.CheckKnown(ctx, r.queue)
	if errors.Is(err, admin.ErrNoQueue) {
		return true, nil
	}
	return false, err
}

// addRates adds the rates of a look to the series. Its times are those of the first look and of the monotonic clock, so
// that they never go back.
func (r *queueReader) addRates(now admin.QueueSample) {
	at := time.Now()
	if r.began.IsZero() {
		r.began = at
	}
	r.series = r.series.with(now, r.began.Add(at.Sub(r.began)), at.Sub(r.lookedAt))
	r.lookedAt = at
}

// mark returns a text that is equal for two states that look the same on a page. The mean rates change for half a
// minute after the last message. Ages are in it as far as they are in markOf.
func (s queueState) mark() string {
	var text strings.Builder
	text.WriteString(markOf(s.Now))
	fmt.Fprintln(&text, s.Rates(), s.Late, s.Full.Turns, s.Full.WaitForKey, s.Full.LooksSeconds, s.Full.DedupWindows,
		s.Full.MemoryBytes()>>10, s.Full.Warnings, s.Full.Policy.History, s.First, s.Recorded)
	for _, g := range s.Groups {
		fmt.Fprintln(&text, g.Name, g.Dead, g.DeadApprox, g.Known)
	}
	for _, f := range s.Findings {
		fmt.Fprintln(&text, f.Code, f.Queue, f.Group, f.Count)
	}
	return text.String()
}

// read reads the first member of the schedule if the sample changed, and also the figures that cost more if it is time,
// or if a viewer has changed something since. The changes of settings are read with these figures, and also when the
// queue was paused or resumed.
func (r *queueReader) read(ctx context.Context, now admin.QueueSample, changed bool) error {
	begun := time.Now()
	isTime := begun.After(r.fullNext) && (r.moved || begun.Sub(r.fullAt) > r.quiet())
	isTime = isTime || r.hub.lastChange(r.queue).After(r.fullAt) && begun.Sub(r.fullAt) > fullShare*r.fullTook
	if isTime || changed && now.Partitions <= firstParts {
		peeked, err := r.op.Peek(ctx, r.queue, 1, false)
		if err != nil {
			return err
		}
		r.first = peeked.Next
	}
	if pauses := [2]bool{now.Held, now.HeldWorkers}; isTime || pauses != r.pauses {
		changes, err := r.op.SettingChanges(ctx, r.queue)
		if err != nil {
			return err
		}
		r.changes, r.pauses = changes, pauses
	}
	if !isTime {
		return nil
	}
	full, err := r.op.Stats(ctx, r.queue)
	if err != nil {
		return err
	}
	r.full, r.fullAt, r.fullTook, r.moved = full, begun, time.Since(begun), false
	r.fullNext = time.Now().Add(max(fullEvery, fullShare*r.fullTook))
	return nil
}

// quiet returns the time between two readings of the expensive figures while nothing happens. A reading sends about 40
// commands for each partition, and three more for each of its groups. The time allows one command a second.
func (r *queueReader) quiet() time.Duration {
	commands := r.full.Partitions * (40 + 3*len(r.full.Groups))
	return max(quietEvery, time.Duration(commands)*time.Second)
}

// groupsOf joins the two readings of the groups.
func groupsOf(now admin.QueueSample, full admin.QueueStats) []queueGroup {
	groups := make([]queueGroup, len(now.Groups))
	for i, g := range now.Groups {
		groups[i].GroupSample = g
		for _, other := range full.Groups {
			if other.Name == g.Name {
				groups[i].Dead, groups[i].DeadApprox, groups[i].Known = other.Dead, other.DeadApprox, true
			}
		}
	}
	return groups
}

// ofKnownQueue returns an action that is refused if the queue does not exist. Otherwise a page that was loaded before
// somebody deleted the queue would create settings of it.
func ofKnownQueue(do func(*request) (done, error)) func(*request) (done, error) {
	return func(q *request) (done, error) {
		if err := q.op.CheckKnown(q.ctx, q.queue()); err != nil {
			return done{}, err
		}
		return do(q)
	}
}

// pauseQueue, pauseWorkers and resumeQueue are the actions of the buttons below the title.
func pauseQueue(q *request) (done, error) {
	changed, err := q.op.Pause(q.ctx, q.queue(), true)
	return q.paused(changed, err, "is paused.")
}

func pauseWorkers(q *request) (done, error) {
	changed, err := q.op.PauseWorkers(q.ctx, q.queue())
	return q.paused(changed, err, "is paused, also for its workers: they take nothing new within about two seconds.")
}

func resumeQueue(q *request) (done, error) {
	changed, err := q.op.Pause(q.ctx, q.queue(), false)
	return q.paused(changed, err, "is resumed: due messages become ready.")
}

func (q *request) paused(changed bool, err error, text string) (done, error) {
	if err != nil {
		return done{}, err
	}
	if !changed {
		return done{notice: q.queue() + " was already in this state. Nothing was changed."}, nil
	}
	return done{notice: q.queue() + " " + text}, nil
}
