package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/duestream/duestream/lua"
)

// ledger follows accepted messages through the stored data, by the serial number at the begin of the payload. It does
// not use the model: if model and scripts were wrong in the same way, a message would still be missing here.
type ledger struct {
	waiting    map[string]bool            // accepted and not ready yet
	owed       map[string]map[string]bool // group → serials that it must get and is not done with
	serials    map[string]string          // entry ID → serial of its message, including deleted entries
	auditQueue func() string              // set if the queue has partitions: audits all of them together
}

func newLedger() *ledger {
	return &ledger{waiting: map[string]bool{}, owed: map[string]map[string]bool{}, serials: map[string]string{}}
}

// serialOf returns the serial number of a payload, or "" if it is not followed.
func serialOf(payload string) string {
	serial, _, _ := strings.Cut(payload, ":")
	return serial
}

// audit updates what groups are owed, and describes a message that was accepted and is nowhere, or returns "".
func (l *ledger) audit(q *Queue) string {
	if l.auditQueue != nil {
		return l.auditQueue()
	}
	return auditAll([]*ledger{l}, []*Queue{q})
}

// auditAll is audit for the partitions of a queue. Their ledgers share the waiting and owed messages.
func auditAll(books []*ledger, queues []*Queue) string {
	for i, l := range books {
		l.enter(queues[i])
	}
	l := books[0]
	for _, serial := range slices.Sorted(maps.Keys(l.waiting)) {
		if !slices.ContainsFunc(queues, func(q *Queue) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(q.Scheduled)),
				func(m Message) bool { return serialOf(m.Payload) == serial })
		}) {
			return fmt.Sprintf("%s was accepted and is not scheduled, ready or dead", serial)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(l.owed)) {
		for _, serial := range slices.Sorted(maps.Keys(l.owed[group])) {
			there := false
			for i, l := range books {
				q := queues[i]
				there = there || l.scheduled(q, serial, group) || l.ready(q, serial, group) || l.dead(q, serial, group)
			}
			if !there {
				return fmt.Sprintf("%s is not acknowledged by %s, and not scheduled, ready, pending or dead", serial, group)
			}
		}
	}
	return ""
}

// enter records the messages that groups must get.
func (l *ledger) enter(q *Queue) {
	for _, e := range q.Stream {
		serial := serialOf(e.Fields[lua.FieldPayload])
		if serial == "" {
			continue
		}
		delete(l.waiting, serial)
		l.serials[e.ID] = serial
		for name, g := range q.Groups {
			if isFor(e.Fields[lua.FieldFor], name) && g.needs(e.ID) && !g.Pending[e.ID].cancelled() {
				if l.owed[name] == nil {
					l.owed[name] = map[string]bool{}
				}
				l.owed[name][serial] = true
			}
		}
	}
	for _, letter := range q.Dead {
		delete(l.waiting, l.serialIn(letter))
	}
}

func (l *ledger) scheduled(q *Queue, serial, group string) bool {
	for member, m := range q.Scheduled {
		if to := lua.ParseMember(member).Group; isFor(to, group) && serialOf(m.Payload) == serial {
			return true
		}
	}
	return false
}

func (l *ledger) ready(q *Queue, serial, group string) bool {
	g := q.Groups[group]
	for id := range g.Pending { // even without the body
		if l.serials[id] == serial {
			return true
		}
	}
	return slices.ContainsFunc(q.Stream, func(e Entry) bool {
		return l.serials[e.ID] == serial && isFor(e.Fields[lua.FieldFor], group) && g.needs(e.ID)
	})
}

func (l *ledger) dead(q *Queue, serial, group string) bool {
	return slices.ContainsFunc(q.Dead, func(letter Entry) bool {
		return l.serialIn(letter) == serial && isFor(letter.Fields[lua.FieldGroup], group)
	})
}

// serialIn returns the serial of a dead letter, whose body may be lost.
func (l *ledger) serialIn(letter Entry) string {
	if payload, ok := letter.Fields[lua.FieldPayload]; ok {
		return serialOf(payload)
	}
	return l.serials[letter.Fields[lua.FieldEntry]]
}

func (l *ledger) accept(payload []byte) { l.waiting[serialOf(string(payload))] = true }

// withdraw records that a scheduled message was cancelled or replaced.
func (l *ledger) withdraw(m Message) { delete(l.waiting, serialOf(m.Payload)) }

// withdrawRetry records that a retry, or a redriven letter on its way to a group, was cancelled.
func (l *ledger) withdrawRetry(m Message, group string) {
	if group != "" {
		delete(l.owed[group], serialOf(m.Payload))
	}
	l.withdraw(m)
}

// done records that the group acknowledged the entry, or that it was taken away from the group.
func (l *ledger) done(group string, e *Entry, id string) {
	if e == nil || isFor(e.Fields[lua.FieldFor], group) {
		delete(l.owed[group], l.serials[id])
	}
}

// destroyed records that a group was deleted, with the entries that it held or had not read. Its retries and dead
// letters stay.
func (l *ledger) destroyed(group string, q *Queue) {
	kept := map[string]bool{}
	for member, m := range q.Scheduled {
		if serial := serialOf(m.Payload); lua.ParseMember(member).Group == group && l.owed[group][serial] {
			kept[serial] = true
		}
	}
	for _, letter := range q.Dead {
		if serial := l.serialIn(letter); letter.Fields[lua.FieldGroup] == group && l.owed[group][serial] {
			kept[serial] = true
		}
	}
	l.owed[group] = kept
}

// moved records that a dead letter was redriven for another group.
func (l *ledger) moved(letter Entry) {
	if serial := l.serialIn(letter); serial != "" {
		delete(l.owed[letter.Fields[lua.FieldGroup]], serial)
		l.waiting[serial] = true
	}
}

// purge records that a dead letter was deleted.
func (l *ledger) purge(letter Entry) {
	for group := range l.owed {
		if isFor(letter.Fields[lua.FieldGroup], group) {
			delete(l.owed[group], l.serialIn(letter))
		}
	}
}

func (r *sequence) audit() {
	if lost := r.book.audit(r.seen.Queue); lost != "" {
		r.refuse("lost: %s", lost)
	}
	r.oneAtATime()
}

// oneAtATime checks that at most one message of each key is in flight: in an entry that some group is not done with,
// or in a retry that keeps the key. Like the ledger, it does not look at the notes about keys.
func (r *sequence) oneAtATime() {
	if r.lostTurn {
		return
	}
	flying := map[string]map[string]bool{}
	add := func(key, serial string) {
		if key == "" || serial == "" {
			return
		}
		if flying[key] == nil {
			flying[key] = map[string]bool{}
		}
		flying[key][serial] = true
	}
	q := r.seen.Queue
	for _, e := range q.Stream {
		serial := serialOf(e.Fields[lua.FieldPayload])
		r.keyOf[e.ID] = e.key()
		for name, g := range q.Groups {
			if g.needs(e.ID) && isFor(e.Fields[lua.FieldFor], name) {
				add(e.key(), serial)
			}
		}
		if len(q.Groups) == 0 {
			add(e.key(), serial)
		}
	}
	for _, g := range q.Groups { // also entries whose body is lost
		for entry := range g.Pending {
			add(r.keyOf[entry], r.book.serials[entry])
		}
	}
	for member, m := range q.Scheduled {
		if lua.ParseMember(member).Kind == lua.MemberRetry && !r.q.Skip {
			add(m.key(), serialOf(m.Payload))
		}
	}
	for key, serials := range flying {
		if len(serials) > 1 {
			r.refuse("in flight at once with the key %q: %v", key, slices.Sorted(maps.Keys(serials)))
		}
	}
}

// inOrder checks a step that made messages ready: no message that still waits for its key was due before one of them
// with the same key. newestBefore is the ID of the newest entry before the step.
func (r *sequence) inOrder(newestBefore string) {
	for _, e := range r.seen.Stream {
		key, due := e.key(), 0
		due, _ = strconv.Atoi(e.Fields[lua.FieldDue])
		if key == "" || !less(newestBefore, e.ID) || e.Fields[lua.FieldFor] != "" {
			continue
		}
		for note := range r.seen.Turns {
			of, at, member, waits := parseWait(note)
			m, there := r.seen.Scheduled[member]
			// While a message waits for its key, its stored due time is its own one (at) plus the offset parked.
			waitsForKey := waits && of == key && there && m.Due == parked+at
			if waitsForKey && at < float64(due) {
				r.refuse("%q was due before %q, which went on with the key %q", member, e.Fields[lua.FieldID], key)
			}
		}
	}
}

// lost audits the whole queue.
func (w *queueSequence) lost() string {
	var books []*ledger
	var queues []*Queue
	for _, part := range w.parts {
		books, queues = append(books, part.book), append(queues, part.seen.Queue)
	}
	return auditAll(books, queues)
}

// audit checks what the stored state shows without the model: every message is somewhere, and neither a key nor an ID
// is in two partitions.
func (w *queueSequence) audit() {
	flying, scheduled := map[string]int{}, map[string]int{}
	for i, part := range w.parts {
		part.audit()
		for note := range part.seen.Turns {
			key, holder, busy := strings.Cut(note, lua.Separator+"busy"+lua.Separator)
			if busy && holder != "" { // a note without a holder names no message
				if in, known := flying[key]; known && in != i && !w.mixed {
					part.refuse("the key %q is in flight in partitions %d and %d", key, in, i)
				}
				flying[key] = i
			}
		}
		for member := range part.seen.Scheduled {
			if strings.Contains(member, lua.Separator) {
				continue
			}
			if in, twice := scheduled[member]; twice {
				part.refuse("%q is scheduled in partitions %d and %d", member, in, i)
			}
			scheduled[member] = i
		}
	}
}
