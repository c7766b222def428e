package model

import (
	"cmp"
	"maps"
	"slices"

	"github.com/duestream/duestream/lua"
)

// This file models groups: delivery, the exits from the pending list, and the deletion of entries.

// EnsureGroup creates a group at the begin of the stream.
func (q *Queue) EnsureGroup(group string) (created bool) {
	if _, ok := q.Groups[group]; ok {
		return false
	}
	q.Groups[group] = Group{"0-0", map[string]Pending{}}
	return true
}

// Read is XREADGROUP: ready → pending.
func (q *Queue) Read(group, consumer string, count int) []string {
	g, ok := q.Groups[group]
	if !ok {
		return nil
	}
	var given []string
	for _, e := range q.Stream {
		if less(g.Last, e.ID) && len(given) < count {
			g.Last = e.ID
			g.Pending[e.ID] = Pending{Consumer: consumer, Deliveries: 1}
			given = append(given, e.ID)
		}
	}
	q.Groups[group] = g
	return given
}

// Receive is Read, with entries that are idle from the start if idle is set. last is the last entry that the group
// has read, if that is known.
func (q *Queue) Receive(group, consumer string, idle bool, count int) (given []string, last string) {
	given = q.Read(group, consumer, count)
	for _, id := range given {
		q.Groups[group].Pending[id] = Pending{consumer, 1, idle}
	}
	if len(given) < count {
		last = q.Groups[group].Last
	}
	return given, last
}

// ReadHistory is XREADGROUP from 0: another delivery of the entries that the consumer holds, except lost ones.
func (q *Queue) ReadHistory(group, consumer string, count int) {
	pending := q.Groups[group].Pending
	for _, id := range slices.SortedFunc(maps.Keys(pending), compareIDs) {
		if p := pending[id]; p.Consumer == consumer && count > 0 {
			count--
			if q.entry(id) != nil {
				pending[id] = Pending{consumer, p.Deliveries + 1, false}
			}
		}
	}
}

// Ack: pending → acknowledged, and the entry is deleted if no group needs it. A given message ID must match.
func (q *Queue) Ack(group string, held []lua.Held) []bool {
	done := make([]bool, len(held))
	for i, h := range held {
		e := q.entry(h.Entry)
		_, pending := q.Groups[group].Pending[h.Entry]
		done[i] = pending && (e == nil || h.ID == "" || h.ID == e.messageID())
		if done[i] {
			delete(q.Groups[group].Pending, h.Entry)
		}
	}
	told := map[string]string{}
	for _, h := range held {
		if h.Key != "" {
			told[h.Entry] = h.Key
		}
	}
	var left []string
	for i, h := range held {
		if done[i] {
			left = append(left, h.Entry)
		}
	}
	q.endTurns(left, told)
	return done
}

// Retry: pending → scheduled for the group, or dead; or scheduled again with the same attempt (release).
func (q *Queue) Retry(group string, policy lua.Attempts, failures []lua.Failure) []lua.Outcome {
	outcomes := make([]lua.Outcome, len(failures))
	var left []string
	keys := q.keys()
	for i, f := range failures {
		if outcomes[i] = q.leave(group, policy, f, 0, false); outcomes[i] != lua.Lost {
			left = append(left, f.Entry)
		}
	}
	q.endTurns(left, keys)
	return outcomes
}

// Reclaim: idle pending → as Retry. Deliveries beyond the first that the server counted are failed attempts, too. An
// entry without its body is reclaimed at once, unless its message was cancelled. The server decides where a call
// stops (until, "" = the end). It may stop only after limit entries or maxBytes, and takes every entry that it
// passes.
func (q *Queue) Reclaim(a lua.ReclaimArgs, until string) lua.Reclaimed {
	r := lua.Reclaimed{}
	seen, taken, bytes := 0, 0, 0
	keys, left := q.keys(), []string(nil)
	text := "visibility timeout: not acknowledged within " + decimal(a.MinIdle.Milliseconds()) + " ms"
	for _, id := range slices.SortedFunc(maps.Keys(q.Groups[a.Group].Pending), compareIDs) {
		if less(id, a.Cursor) {
			continue
		}
		full := taken == a.Limit || bytes >= a.MaxBytes
		if full || id == until && seen >= a.Limit {
			r.Cursor = id
			break
		}
		seen++
		p, e := q.Groups[a.Group].Pending[id], q.entry(id)
		if (e != nil || p.cancelled()) && !p.Idle && a.MinIdle > 0 {
			continue
		}
		failure := lua.Failure{Held: lua.Held{Entry: id}, Action: lua.ActionRetry, Delay: -1, Reason: lua.ReasonVisibilityTimeout,
			Error: text}
		switch q.leave(a.Group, a.Attempts, failure, p.Deliveries-1, true) {
		case lua.Retried:
			r.Retried++
		case lua.Dead:
			r.Dead++
		case lua.Skipped:
			r.Skipped++
		case lua.CancelledOut:
			r.Cancelled++
		}
		taken++
		if e != nil {
			bytes += e.size()
		}
		left = append(left, id)
	}
	q.endTurns(left, keys)
	return r
}

// Extend: pending → pending and not idle, for entries of this consumer. An entry whose body is lost becomes a dead
// letter.
func (q *Queue) Extend(group, consumer string, held []lua.Held) []lua.Extended {
	done := make([]lua.Extended, len(held))
	for i, h := range held {
		p, pending := q.Groups[group].Pending[h.Entry]
		if !pending || p.Consumer != consumer {
			continue
		}
		if p.cancelled() {
			done[i] = lua.HeldCancelled
		}
		if q.entry(h.Entry) == nil {
			if !p.cancelled() {
				q.leave(group, lua.Attempts{}, lua.Failure{Held: h}, 0, false)
			}
			continue
		}
		p.Idle = false
		q.Groups[group].Pending[h.Entry] = p
		done[i] = max(done[i], lua.StillHeld)
	}
	return done
}

// leave is the exit from a pending list for entries that are not acknowledged. burnt are failed attempts beyond those
// in the entry; crash means that no handler failed, but the worker vanished.
func (q *Queue) leave(group string, policy lua.Attempts, how lua.Failure, burnt int, crash bool) lua.Outcome {
	pending := q.Groups[group].Pending
	p, ok := pending[how.Entry]
	if !ok {
		return lua.Lost
	}
	e := q.entry(how.Entry)
	if e == nil && p.cancelled() && !q.Former {
		delete(pending, how.Entry)
		return lua.CancelledOut
	}
	if e == nil {
		delete(pending, how.Entry)
		id := how.ID
		if id == "" {
			id = how.Entry
		}
		q.bury(fields{lua.FieldID: id}, group, how.Entry, lua.ReasonBodyLost, anyText)
		return lua.Dead
	}
	if to := e.Fields[lua.FieldFor]; to != "" && to != group {
		delete(pending, how.Entry)
		return lua.Skipped
	}
	id := e.messageID()
	if how.ID != "" && how.ID != id {
		return lua.Lost
	}
	delete(pending, how.Entry)
	if p.cancelled() && !q.Former {
		return lua.CancelledOut
	}

	f := maps.Clone(e.Fields)
	delete(f, lua.FieldFor)
	attempt, limit, ok := attemptsOf(e, policy)
	if !ok || !usableID(id) {
		q.bury(inLetter(f), group, how.Entry, lua.ReasonMalformed, anyText)
		return lua.Dead
	}
	if how.Error != "" {
		f[lua.FieldError] = how.Error
	}
	if how.Trace != "" {
		f[lua.FieldLastTrace] = how.Trace
	}
	f[lua.FieldID] = id
	failed, reason := attempt+burnt, ""
	due, following, outcome := q.Now, attempt, lua.Released
	crashes := limitOf(e, lua.FieldMaxCrashes, int64(policy.MaxCrashes))
	switch {
	case how.Action == lua.ActionDead:
		reason = how.Reason
	case how.Action == lua.ActionSnooze:
		due, outcome = q.Now+how.Delay.Milliseconds(), lua.Snoozed
		if n := countIn(f, lua.FieldSnoozes, 1); n > cmp.Or(limitOf(e, lua.FieldMaxSnoozes, int64(policy.MaxSnoozes)), 1000) {
			reason, f[lua.FieldError] = lua.ReasonMaxSnoozes, "snoozed "+decimal(n)+" times"
		}
	case crash && crashes > 0:
		n, delays := countIn(f, lua.FieldCrashes, 1+burnt), delaysOf(e, policy)
		failed, outcome = attempt, lua.Retried
		due = q.Now + delays[min(int(n), len(delays))-1].Milliseconds()
		if n >= crashes {
			reason = lua.ReasonCrashes
		}
	case how.Action == lua.ActionRetry:
		delay := how.Delay
		if delays := delaysOf(e, policy); delay < 0 {
			delay = delays[min(failed, len(delays))-1]
		}
		due, following, outcome = q.Now+delay.Milliseconds(), failed+1, lua.Retried
		if failed >= limit {
			reason = how.Reason
		}
	}
	if tried := limitOf(e, lua.FieldRetryFor, policy.For.Milliseconds()); tried > 0 {
		first := firstDue(e)
		f[lua.FieldFirstDue] = decimal(first)
		if reason == "" && outcome == lua.Retried && due > first+tried {
			reason = lua.ReasonRetryFor
		}
	}
	if reason != "" {
		f[lua.FieldAttempt] = decimal(int64(failed))
		q.bury(inLetter(f), group, how.Entry, reason, f[lua.FieldError])
		return lua.Dead
	}
	meta := fields{}
	for name, value := range f {
		if name != lua.FieldPayload && name != lua.FieldDue {
			keep(meta, name, value)
		}
	}
	meta[lua.FieldAttempt], meta[lua.FieldFor] = decimal(int64(following)), group
	of := how.Entry
	if f[lua.FieldOverlap] == "skip" {
		of = "0-0" // a known name
	}
	member := lua.Member{Kind: lua.MemberRetry, ID: id, Group: group, Of: of}
	q.again(member, due, f[lua.FieldPayload], meta)
	if key := e.key(); key != "" && (outcome == lua.Released || !q.Skip) {
		q.Turns[inFlight(key, member.String())] = true
	}
	return outcome
}

// Trim frees entries that every group has acknowledged. First it frees entries before the first needed one, at least
// some of them, because the server deletes whole nodes of a stream before it counts entries. If there are none, it
// looks at limit entries from cursor on. Without a group it frees nothing. The server decides how many go before the
// first needed one, and where the next call continues (told).
func (q *Queue) Trim(cursor string, limit, maxBytes int, told lua.Trimmed) lua.Trimmed {
	t := lua.Trimmed{Groups: len(q.Groups), Windows: min(limit, q.EndedWindows), Turns: len(q.Turns) > 0}
	if len(q.Groups) == 0 {
		return t
	}
	before, front := len(q.Stream), 0
	for front < before && q.passed(q.Stream[front].ID) {
		front++
	}
	if front > 0 {
		t.Cursor, t.Freed = cursor, max(1, min(front, told.Freed))
		q.Stream = q.Stream[t.Freed:]
		return t
	}
	t.Cursor = told.Cursor
	if maxBytes == 0 {
		return t
	}
	looked := 0
	for _, e := range slices.Clone(q.Stream) {
		switch {
		case less(e.ID, cursor) || !q.everyoneHas(e.ID):
		case looked < limit:
			looked++
			q.free(e.ID)
		case told.Cursor == "":
			t.Cursor = e.ID // there are more to look at
		}
	}
	if looked < limit {
		t.Cursor = ""
	}
	t.Freed = before - len(q.Stream)
	return t
}

// free deletes an entry that every group has read and none holds.
func (q *Queue) free(id string) (unneeded bool) {
	for _, g := range q.Groups {
		if _, pending := g.Pending[id]; pending {
			return false
		}
	}
	if !q.everyoneHas(id) {
		return false
	}
	q.Lose(id)
	return true
}

func (q *Queue) everyoneHas(id string) bool {
	for _, g := range q.Groups {
		if less(g.Last, id) {
			return false
		}
	}
	return true
}

// passed reports whether every group is done with the entry and all earlier ones.
func (q *Queue) passed(id string) bool {
	for _, g := range q.Groups {
		for pending := range g.Pending {
			if !less(id, pending) {
				return false
			}
		}
	}
	return q.everyoneHas(id)
}

// Lose deletes an entry even if it is needed, as a plain XDEL does.
func (q *Queue) Lose(id string) {
	q.Stream = slices.DeleteFunc(slices.Clone(q.Stream), func(e Entry) bool { return e.ID == id })
}

func (q *Queue) entry(id string) *Entry {
	for i := range q.Stream {
		if q.Stream[i].ID == id {
			return &q.Stream[i]
		}
	}
	return nil
}

// DropConsumers deletes consumers that hold nothing. Nothing else changes.
func (q *Queue) DropConsumers(group string, consumers []string) int {
	g, ok := q.Groups[group]
	if !ok {
		return 0
	}
	holding := map[string]bool{}
	for _, p := range g.Pending {
		holding[p.Consumer] = true
	}
	n := 0
	for _, name := range consumers {
		if !holding[name] {
			n++
		}
	}
	return n
}

// meant reports whether an entry for to, "" = all, is for the group.
func meant(to, group string) bool { return to == "" || to == group }

// needs reports whether the group has not read the entry, or holds it.
func (g Group) needs(id string) bool {
	_, pending := g.Pending[id]
	return pending || less(g.Last, id)
}
