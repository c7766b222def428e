package bridgetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// pollEvery is the longest time between two looks at the state while workers are busy. A command of theirs causes a
// look at once.
const pollEvery = 2 * time.Millisecond

// mostTimes bounds the times at which Advance stops the clock, so that a recurrence of every second does not hold up a
// test of a year for hours.
const mostTimes = 100_000

// mostPasses bounds the passes of the bridge at one time.
const mostPasses = 100_000

// mostInChain bounds a chain of messages at one time, in which each message leads to the next. It counts the looks that
// find no unread message although messages were handled since the look before. A chain has one such look for each
// message. Many messages that are ready together have few.
const mostInChain = 10_000

// errEnded ends an Advance of a handler when the test ends.
var errEnded = errors.New("the test has ended")

// Advance moves the clock forward by d, and everything that falls due in this time happens, in the order of its time:
// messages are delivered, failed ones are retried, recurrences are planned, and abandoned deliveries are reclaimed. The
// clock stands still while a handler runs. Advance returns when the clock has moved by d, and nothing is left to do at
// that time. Advance(0) only waits until nothing is left to do now. d is rounded up to whole milliseconds.
//
// It fails the test if d is negative, if a handler or a worker makes no progress for Config.Patience, if a message is
// handled more than 1,000 times at one time, or if another Advance runs, for example because a handler calls it. It
// takes some milliseconds for each time at which something is due, and fails the test after 100,000 such times. It also
// fails the test if some 10,000 messages follow one another at one time, for example because each handler schedules a
// message that is due at once.
func (k *Kit) Advance(d time.Duration) {
	k.t.Helper()
	if d < 0 {
		k.t.Fatalf("bridgetest: advance by %s: must not be negative, because the clock of a server does not run backwards", d)
		return
	}
	k.advanceTo(ceilTime(k.Now().Add(d)))
}

// AdvanceTo is Advance up to a time, rounded up to whole milliseconds. It must not be before Now.
func (k *Kit) AdvanceTo(t time.Time) {
	k.t.Helper()
	if now := k.Now(); t.Before(now) {
		k.t.Fatalf("bridgetest: advance to %s: must not be before the time of the kit, %s", t.Format(time.RFC3339Nano),
			now.Format(time.RFC3339Nano))
		return
	}
	k.advanceTo(ceilTime(t))
}

func (k *Kit) advanceTo(t time.Time) {
	k.t.Helper()
	select {
	case <-k.ending:
		k.t.Errorf("bridgetest: Advance is called after the test has ended")
		return
	default:
	}
	if !k.advancing.CompareAndSwap(false, true) {
		// The caller may be a handler, and only the goroutine of the test may end the test.
		k.t.Errorf("bridgetest: Advance is called while another Advance runs: a handler must not call it")
		return
	}
	k.clock.order()
	err := k.step(t)
	k.clock.order()
	k.advancing.Store(false)
	if errors.Is(err, errEnded) { // the caller is not the goroutine of the test, so it must not call Fatalf
		return
	}
	if err != nil {
		k.t.Fatalf("bridgetest: advance to %s: %v", k.Now().UTC().Format(time.RFC3339Nano), err)
	}
}

// step moves the clock from one event to the next, up to a time.
func (k *Kit) step(until time.Time) error {
	k.passing.Lock()
	defer k.passing.Unlock()
	limit := lua.CheckTime("time", until)
	if limit != nil {
		return limit
	}
	for times := 0; ; times++ {
		state, err := k.settle()
		if err != nil {
			return err
		}
		if times == k.mostTimes {
			return fmt.Errorf("something was due at %d times, in the last place in %s: advance in smaller steps, or less far",
				times, state.busiest())
		}
		next, err := k.bridge.next(k.ctx, state)
		if err != nil {
			return err
		}
		now := k.Now()
		if !now.Before(until) {
			return errors.Join(k.bridge.trim(k.ctx, state), k.bridge.beat(k.ctx))
		}
		if next.IsZero() || next.After(until) {
			next = until
		}
		k.setClock(next)
		k.settlements.clockSet()
	}
}

// settle lets everything happen that is due now, and returns the state in which nothing is left to do.
func (k *Kit) settle() (*state, error) {
	quiet := time.Now() // real time at which the bridge or a handler last did something
	timer := time.NewTimer(0)
	defer timer.Stop()
	chain, settled := 0, k.settlements.count()
	for passes := 0; ; passes++ {
		if passes == mostPasses {
			return nil, fmt.Errorf("the bridge has something to do at this time without end%s", k.settlements.lastOne())
		}
		select {
		case <-k.ending:
			return nil, errEnded
		default:
		}
		if err := k.endedWorker(); err != nil {
			return nil, err
		}
		count := k.activity.count.Load()
		state, err := k.bridge.look(k.ctx)
		if err != nil {
			return nil, err
		}
		if n := k.settlements.count(); n > settled && k.unread(state) == "" {
			chain, settled = chain+1, n
		}
		if chain == k.mostInChain {
			return nil, fmt.Errorf("messages follow one another without end at this time%s: does its handler schedule a "+
				"message that is due at once?", k.settlements.lastOne())
		}
		changed, err := k.bridge.pass(k.ctx, state)
		if err != nil {
			return nil, err
		}
		if k.clock.fire() || changed {
			quiet = time.Now()
			if len(k.workers) > 0 { // a look before the workers have read finds nothing new
				k.awaitActivity(timer)
			}
			continue
		}
		obstacle := k.obstacle(state)
		if obstacle == "" && !k.activity.since(count) {
			return state, nil
		}
		if text := k.settlements.endless(); text != "" {
			return nil, errors.New(text)
		}
		if last := k.settlements.lastTime(); last.After(quiet) {
			quiet = last
		}
		if time.Since(quiet) > k.cfg.Patience {
			return nil, k.stuck(state, obstacle)
		}
		k.awaitActivity(timer)
	}
}

// busiest names the queue in which something is due next.
func (s *state) busiest() string {
	var first *partition
	for _, p := range s.partitions {
		if !p.due.IsZero() && (first == nil || p.due.Before(first.due)) {
			first = p
		}
	}
	if first == nil {
		return "no queue"
	}
	return fmt.Sprintf("queue %q", first.queue)
}

// awaitActivity waits until the program under test has sent a command, but at most for pollEvery.
func (k *Kit) awaitActivity(timer *time.Timer) {
	timer.Reset(pollEvery)
	select {
	case <-k.ending:
	case <-k.activity.changed:
	case <-timer.C:
	}
}

// obstacle returns the reason why workers still have work at the present time; "" if they have none.
func (k *Kit) obstacle(s *state) string {
	if text := k.unread(s); text != "" {
		return text
	}
	// Handlers that wait in an open batch hold their messages until the clock moves.
	if held := k.heldByWorkers(s); len(held) > k.clock.waits() {
		return fmt.Sprintf("workers hold %d messages", len(held))
	}
	return k.missingGroup(s)
}

// unread names messages that are ready, and that a worker has to read at the present time; "" if there are none.
func (k *Kit) unread(s *state) string {
	for _, p := range s.partitions {
		for _, g := range p.groups {
			if p.hasEntry && !p.areWorkersHeld && g.Last.Compare(p.lastID) < 0 && k.isServed(p, g.Name) &&
				!k.mustWait(p, g.Name) {
				return fmt.Sprintf("no worker of group %q reads the messages of queue %q that are ready", g.Name, p.name)
			}
		}
	}
	return ""
}

// endedWorker returns an error if a worker has ended before the test.
func (k *Kit) endedWorker() error {
	for _, w := range k.workers {
		if !w.isRunning() {
			return fmt.Errorf("the worker of group %q has ended: %w", w.group, cmp.Or(w.err, errors.New("no reason")))
		}
	}
	return nil
}

// missingGroup names a worker that has not created its group yet, although its queue exists; "" if there is none.
func (k *Kit) missingGroup(s *state) string {
	for _, w := range k.workers {
		for _, queue := range w.queues {
			if !s.hasGroup(queue, w.group) {
				return fmt.Sprintf("the worker of group %q has not created its group in queue %q", w.group, queue)
			}
		}
	}
	return ""
}

// hasGroup reports whether all partitions of a queue have a group. A queue that nobody has used has no partition yet.
func (s *state) hasGroup(queue, group string) bool {
	for _, p := range s.partitions {
		if p.queue != queue {
			continue
		}
		found := false
		for _, g := range p.groups {
			found = found || g.Name == group
		}
		if !found {
			return false
		}
	}
	return true
}

// isServed reports whether a worker reads a partition for a group.
func (k *Kit) isServed(p *partition, group string) bool {
	for _, w := range k.workers {
		for _, queue := range w.queues {
			if queue == p.queue && w.group == group {
				return true
			}
		}
	}
	return k.readers.serves(p.keys.Stream, group)
}

// mustWait reports whether all workers of a group wait for the rate of the group before they read a partition.
func (k *Kit) mustWait(p *partition, group string) bool {
	workers := 0
	for _, w := range k.workers {
		if w.group == group && slices.Contains(w.queues, p.queue) {
			workers++
		}
	}
	return workers > 0 && k.clock.waitsToRead(p.keys.Stream, group) >= workers
}

// heldByWorker is a pending entry of a worker.
type heldByWorker struct {
	*partition
	heldEntry
	seen time.Time // real time of the first look that found it
}

func (k *Kit) heldByWorkers(s *state) (all []heldByWorker) {
	for _, p := range s.partitions {
		for _, held := range p.held {
			if k.readers.isLive(consumer{p.keys.Stream, held.group, held.consumer}) {
				all = append(all, heldByWorker{p, held, k.bridge.ages.seen(p, held)})
			}
		}
	}
	slices.SortFunc(all, func(a, b heldByWorker) int { return a.seen.Compare(b.seen) })
	return all
}

// handlersOf describes the handlers that hold messages, the oldest first.
func (k *Kit) handlersOf(s *state) (all []string) {
	for _, held := range k.heldByWorkers(s) {
		text := fmt.Sprintf("entry %s of queue %q", held.id, held.name)
		entries, err := k.own.Do(k.ctx, k.own.B().Xrange().Key(held.keys.Stream).Start(held.id).End(held.id).Build()).
			AsXRangeSlices()
		if err == nil && len(entries) == 1 {
			m := lua.ParseEntry(held.id, entries[0].FieldValues)
			text = describe(&bridge.Message{ID: m.ID, Queue: held.queue, Group: held.group, Headers: m.Headers,
				Attempt: m.Attempt})
		}
		all = append(all, fmt.Sprintf("the handler of %s has run for %s", text,
			time.Since(held.seen).Round(time.Millisecond)))
	}
	return all
}

// stuck returns the error of workers that make no progress.
func (k *Kit) stuck(s *state, obstacle string) error {
	why := k.handlersOf(s)
	if len(why) == 0 && obstacle != "" {
		why = append(why, obstacle)
	}
	for _, w := range k.workers {
		if err := w.worker.Ready(); err != nil {
			why = append(why, fmt.Sprintf("the worker of group %q: %v", w.group, err))
		}
	}
	if len(why) == 0 {
		why = append(why, "the program under test sends commands without end")
	}
	return fmt.Errorf("nothing happened for %s (Config.Patience), and the clock waits:\n\t%s", k.cfg.Patience,
		strings.Join(why, "\n\t"))
}
