package redistest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Ledger records what was sent and what was delivered, and reports what was lost, delivered again or delivered early.
// The zero value is ready for use. All methods are safe for concurrent use and may be called in any order: a delivery
// may be recorded before the send that caused it.
type Ledger struct {
	mu     sync.Mutex
	sent   map[string]*sending
	groups map[string]map[string]*receipt // by group, then by ID
}

// sending is what a ledger knows about a message that was sent. If it is neither expected nor optional, it was
// cancelled.
type sending struct {
	dueMs    int64
	expected bool // every group must get the message
	optional bool // a group may get the message
}

// receipt is what a ledger knows about the deliveries of a message to a group.
type receipt struct {
	deliveries   int
	early        int // deliveries before the due time in their entry
	acknowledged bool
	firstMs      int64 // Unix ms of the first delivery
	firstEarly   bool  // the first delivery is counted in early
}

// Result is the summary of a ledger. Counts are per group and message: two groups that each got 10 messages make 20.
type Result struct {
	Sent         int // messages
	Delivered    int // messages delivered at least once
	Duplicated   int // deliveries beyond the first
	Lost         int // messages sent and expected, but never delivered
	Early        int // deliveries before they were due
	Acknowledged int // messages recorded by Acknowledged
	Unexpected   int // messages delivered although cancelled, or never sent
}

// Sent records an accepted message that every group must get, and not before dueMs (Unix ms; 0 means at once).
// Recording an ID again replaces its due time, as a reschedule does.
func (l *Ledger) Sent(id string, dueMs int64) {
	l.record(id, sending{dueMs: dueMs, expected: true})
}

// MaybeSent records a message of which the producer does not know whether it was accepted, because the reply was
// lost: it may be delivered. It does not undo Sent.
func (l *Ledger) MaybeSent(id string, dueMs int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent[id] == nil {
		l.put(id, sending{dueMs: dueMs, optional: true})
	}
}

// NotExpected records that a message must not be delivered, because its cancellation was confirmed. If it is
// delivered, Check fails.
func (l *Ledger) NotExpected(id string) { l.record(id, sending{}) }

func (l *Ledger) record(id string, s sending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(id, s)
}

func (l *Ledger) put(id string, s sending) {
	if l.sent == nil {
		l.sent = map[string]*sending{}
	}
	l.sent[id] = &s
}

// Delivered records a delivery to a group at atMs (Unix ms) of an entry with the due time dueMs. The delivery is early
// if atMs is before dueMs or, if it is the first delivery, before the due time given to Sent.
func (l *Ledger) Delivered(group, id string, atMs, dueMs int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.receipt(group, id)
	r.deliveries++
	if r.deliveries == 1 {
		r.firstMs, r.firstEarly = atMs, atMs < dueMs
	}
	if atMs < dueMs {
		r.early++
	}
}

// Acknowledged records that the group is done with the message.
func (l *Ledger) Acknowledged(group, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.receipt(group, id).acknowledged = true
}

func (l *Ledger) receipt(group, id string) *receipt {
	if l.groups == nil {
		l.groups = map[string]map[string]*receipt{}
	}
	if l.groups[group] == nil {
		l.groups[group] = map[string]*receipt{}
	}
	r := l.groups[group][id]
	if r == nil {
		r = &receipt{}
		l.groups[group][id] = r
	}
	return r
}

// Summary adds up the given groups, or all groups that had a delivery if none are given. If there is no group at all,
// every expected message is lost.
func (l *Ledger) Summary(groups ...string) Result {
	r, _ := l.summary(groups)
	return r
}

// Missing returns up to limit IDs that the group should have got and did not get, sorted.
func (l *Ledger) Missing(group string, limit int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for id, s := range l.sent {
		if r := l.groups[group][id]; s.expected && (r == nil || r.deliveries == 0) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids[:min(len(ids), limit)]
}

func (l *Ledger) summary(groups []string) (Result, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var notes []string
	note := func(format string, args ...any) {
		if len(notes) < 30 { // enough to see what went wrong
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	if len(groups) == 0 {
		for g := range l.groups {
			groups = append(groups, g)
		}
		slices.Sort(groups)
	}
	if len(groups) == 0 {
		groups = []string{"(no group)"}
	}
	var res Result
	for _, s := range l.sent {
		if s.expected {
			res.Sent++
		}
	}
	for _, g := range groups {
		for id, s := range l.sent {
			if r := l.groups[g][id]; s.expected && (r == nil || r.deliveries == 0) {
				res.Lost++
				note("%s never delivered to %s", id, g)
			}
		}
		for id, r := range l.groups[g] {
			if r.acknowledged {
				res.Acknowledged++
			}
			if r.deliveries == 0 {
				continue
			}
			res.Delivered++
			res.Duplicated += r.deliveries - 1
			if r.early > 0 {
				res.Early += r.early
				note("%s delivered to %s before its due_ms, %d times", id, g, r.early)
			}
			s := l.sent[id]
			switch {
			case s == nil || !s.expected && !s.optional:
				res.Unexpected++
				note("%s delivered to %s, but cancelled or never sent", id, g)
			case r.firstMs < s.dueMs && !r.firstEarly:
				res.Early++
				note("%s to %s %d ms before the due time it was sent with", id, g, s.dueMs-r.firstMs)
			}
		}
	}
	return res, notes
}

// String returns the line that a guarantee test prints at its end.
func (r Result) String() string {
	line := fmt.Sprintf("ledger: sent=%d delivered=%d duplicated=%d lost=%d early=%d",
		r.Sent, r.Delivered, r.Duplicated, r.Lost, r.Early)
	if r.Unexpected > 0 {
		line += fmt.Sprintf(" unexpected=%d", r.Unexpected)
	}
	return line
}

// Check prints the ledger's line. It fails the test, and names some of the messages, when any were lost, early or
// unexpected. Duplicates are allowed by the guarantee; a test that forbids them looks at the result.
func (l *Ledger) Check(t testing.TB, groups ...string) Result {
	t.Helper()
	res, notes := l.summary(groups)
	t.Log(res.String())
	if res.Lost > 0 || res.Early > 0 || res.Unexpected > 0 {
		t.Errorf("%s\n  %s", res, strings.Join(notes, "\n  "))
	}
	return res
}

// ForgetDeliveries drops what Delivered and Acknowledged have recorded. A test calls it before it reads deliveries from
// files again.
func (l *Ledger) ForgetDeliveries() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.groups = nil
}
