package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/duestream/duestream/lua"
)

// ledger follows accepted messages through the stored data, by the serial number at the begin of the payload. It does
// not use the model: if model and scripts were wrong in the same way, a message would still be missing here.
type ledger struct {
	waiting map[string]bool            // accepted and not ready yet
	owed    map[string]map[string]bool // group → serials that it must get and is not done with
	serials map[string]string          // entry ID → serial, including deleted entries
	whole   func() string              // in a partition: audits the whole queue
}

func newLedger() *ledger {
	return &ledger{waiting: map[string]bool{}, owed: map[string]map[string]bool{}, serials: map[string]string{}}
}

// serialOf returns the serial number of a payload, or "" if it is not followed.
func serialOf(payload string) string {
	serial, _, _ := strings.Cut(payload, ":")
	return serial
}

// audit updates the debts, and describes messages that are nowhere.
func (l *ledger) audit(q *Queue) string {
	if l.whole != nil {
		return l.whole()
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
			if meant(e.Fields[lua.FieldFor], name) && g.needs(e.ID) && !g.Pending[e.ID].cancelled() {
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
		if to := lua.ParseMember(member).Group; meant(to, group) && serialOf(m.Payload) == serial {
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
		return l.serials[e.ID] == serial && meant(e.Fields[lua.FieldFor], group) && g.needs(e.ID)
	})
}

func (l *ledger) dead(q *Queue, serial, group string) bool {
	return slices.ContainsFunc(q.Dead, func(letter Entry) bool {
		return l.serialIn(letter) == serial && meant(letter.Fields[lua.FieldGroup], group)
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

// done records that the group acknowledged the entry, or that it was taken away from the group.
func (l *ledger) done(group string, e *Entry, id string) {
	if e == nil || meant(e.Fields[lua.FieldFor], group) {
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
		if meant(letter.Fields[lua.FieldGroup], group) {
			delete(l.owed[group], l.serialIn(letter))
		}
	}
}
