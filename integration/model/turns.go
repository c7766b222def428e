package model

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/duestream/duestream/lua"
)

// parked is added to the due time of a message that waits for its key.
const parked = 4e15

func isParked(due float64) bool { return due >= parked && due < 2*parked }

func unparked(due float64) float64 {
	if isParked(due) {
		return due - parked
	}
	return due
}

func usableKey(key string) bool {
	return key != "" && len(key) <= 256 && utf8.ValidString(key) &&
		!strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// turn names the holder of a key: an entry, or a retry. An empty holder means nobody.
type turn struct{ key, by string }

func inFlight(key, by string) string { return key + lua.Separator + "busy" + lua.Separator + by }

func inLine(key string, at float64, member string) string {
	return key + lua.Separator + "wait" + lua.Separator + fmt.Sprintf("%016.0f", at) + lua.Separator + member
}

// key returns the key of a message, or "" if the message cannot be read.
func (m Message) key() string {
	if m.Broken != "" {
		return ""
	}
	return m.Meta[lua.FieldKey]
}

func (e *Entry) key() string {
	if key := e.Fields[lua.FieldKey]; usableKey(key) {
		return key
	}
	return ""
}

// keys returns the keys of the entries.
func (q *Queue) keys() map[string]string {
	keys := map[string]string{}
	for _, e := range q.Stream {
		if key := e.key(); key != "" {
			keys[e.ID] = key
		}
	}
	return keys
}

// notes returns what is stored about a key: first the messages in flight, then those that wait, by due time.
func (q *Queue) notes(key string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(q.Turns)),
		func(note string) bool { return !strings.HasPrefix(note, key+lua.Separator) })
}

// parseWait parses the note of a message that waits.
func parseWait(note string) (key string, at float64, member string, ok bool) {
	parts := strings.SplitN(note, lua.Separator, 4)
	if len(parts) < 4 || parts[1] != "wait" {
		return "", 0, "", false
	}
	at, _ = strconv.ParseFloat(parts[2], 64)
	return parts[0], at, parts[3], true
}

// awaitsTurn parks a scheduled message when another message with its key is in flight, or when an older one waits.
func (q *Queue) awaitsTurn(key, member string, d *draining) bool {
	notes := q.notes(key)
	if len(notes) == 0 || q.Turns[inFlight(key, member)] {
		return false
	}
	m := q.Scheduled[member]
	at := math.Ceil(max(0, m.Due))
	_, first, _, waits := parseWait(notes[0])
	if waits && first >= at {
		return false
	}
	m.Due = parked + at
	q.Scheduled[member], q.Turns[inLine(key, at, member)] = m, true
	if waits { // and nobody is in flight
		d.held = append(d.held, turn{key, ""})
	}
	return true
}

// handOn takes the keys away from their holders, and schedules the next parked message of each key.
func (q *Queue) handOn(held []turn) (moved int) {
	for _, h := range held {
		delete(q.Turns, inFlight(h.key, h.by))
	}
	for _, h := range held {
		if h.key != "" && q.next(h.key) {
			moved++
		}
	}
	return moved
}

// next lets the next message with a key go on, unless one is in flight. It skips messages that were cancelled or
// moved.
func (q *Queue) next(key string) bool {
	for _, note := range q.notes(key) {
		_, at, member, waits := parseWait(note)
		if !waits {
			return false
		}
		delete(q.Turns, note)
		if m, ok := q.Scheduled[member]; ok && m.Due == parked+at {
			m.Due = at
			q.Scheduled[member] = m
			return true
		}
	}
	return false
}

// passOn calls handOn, and records whether the bridge has to be woken.
func (q *Queue) passOn(held []turn) { q.Woken = q.handOn(held) > 0 || q.Woken }

// endTurns releases the keys of entries that have left a pending list. keys has their keys, where these are known.
func (q *Queue) endTurns(left []string, keys map[string]string) {
	var held []turn
	for _, entry := range left {
		if q.free(entry) && keys[entry] != "" {
			held = append(held, turn{keys[entry], entry})
		}
	}
	q.passOn(held)
}

// tells reports whether a script has to add a wake token: the earliest due time became earlier, or a message went on.
// A drain does not add one, because its caller learns the same from the reply.
func (q *Queue) tells(what string, before *Queue) bool {
	if strings.HasPrefix(what, "drain ") || strings.HasPrefix(what, "somebody's ") {
		return false
	}
	return q.Woken || q.head() < before.head()
}

// PassTurns is the sweep of keys. A message that every group is done with, or that is gone, no longer holds its key.
// A waiting message without a note or without a key becomes due again. Places in line that no message is in are
// deleted.
func (q *Queue) PassTurns(from lua.TurnsPassed, limit int) lua.TurnsPassed {
	var keys []string
	for note := range q.Turns {
		key, _, _ := strings.Cut(note, lua.Separator)
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var t lua.TurnsPassed
	var there, held []turn
	looked := 0
	for _, key := range slices.Compact(keys) {
		if key <= from.Cursor {
			continue
		}
		if looked == limit {
			break
		}
		looked++
		t.Cursor = key
		there, held = q.lookAt(key, there, held)
	}
	if looked < limit {
		t.Cursor = "" // the sweep is complete
	}
	for _, h := range there {
		if len(q.Groups) > 0 && q.free(h.by) {
			held = append(held, h)
		}
	}
	for _, h := range held {
		if h.by != "" {
			t.Freed++
		}
		t.Moved += q.handOn([]turn{h})
	}
	t.Rank = q.findWaiting(from.Rank, limit, &t)
	if !q.Former {
		q.clearPlaces(from.Place, limit, &t)
	}
	return t
}

// clearPlaces looks at limit notes after a given one, and deletes the places of messages that do not wait there.
func (q *Queue) clearPlaces(behind string, limit int, t *lua.TurnsPassed) {
	looked := 0
	for _, note := range slices.Sorted(maps.Keys(q.Turns)) {
		if note <= behind {
			continue
		}
		if looked == limit {
			return
		}
		looked, t.Place = looked+1, note
		_, at, member, waits := parseWait(note)
		if m, ok := q.Scheduled[member]; waits && !(ok && m.Due == parked+at) {
			delete(q.Turns, note)
			t.Cleared++
		}
	}
	if looked < limit {
		t.Place = "" // the sweep is complete
	}
}

// retryMember matches the end of the name that a retry has in the schedule.
var retryMember = regexp.MustCompile(lua.Separator + `\d+-\d+$`)

// holdKey lets a retry that was imported or redriven hold its key, unless another message holds it, or waiting
// retries do not block their key.
func (q *Queue) holdKey(member string) {
	key := q.Scheduled[member].key()
	if q.Skip || key == "" || !retryMember.MatchString(member) {
		return
	}
	if notes := q.notes(key); len(notes) > 0 {
		by, busy := strings.CutPrefix(notes[0], inFlight(key, ""))
		id, _, _ := strings.Cut(member, lua.Separator)
		if busy && !strings.HasPrefix(by, id+lua.Separator) {
			return
		}
	}
	q.Turns[inFlight(key, member)] = true
}

// leaveLine deletes the place in line of a waiting member, before the member is cancelled, moved or replaced.
func (q *Queue) leaveLine(member string) {
	if q.Former {
		return
	}
	m := q.Scheduled[member]
	if key := m.key(); key != "" && isParked(m.Due) {
		delete(q.Turns, inLine(key, m.Due-parked, member))
	}
}

// lookAt sorts the holders of a key: it adds those that still exist to there, and the others to held.
func (q *Queue) lookAt(key string, there, held []turn) (_, _ []turn) {
	free := true
	for _, note := range q.notes(key) {
		by, busy := strings.CutPrefix(note, inFlight(key, ""))
		if !busy {
			break
		}
		free = false
		_, waits := q.Scheduled[by]
		switch isEntry := !strings.Contains(by, lua.Separator); {
		case isEntry && q.isThere(by):
			there = append(there, turn{key, by})
		case isEntry || !waits:
			held = append(held, turn{key, by})
		}
	}
	if free {
		held = append(held, turn{key, ""})
	}
	return there, held
}

func (q *Queue) isThere(entry string) bool {
	for _, g := range q.Groups {
		if _, pending := g.Pending[entry]; pending {
			return true
		}
	}
	return q.entry(entry) != nil
}

// inLine returns how many messages wait for their turn.
func (q *Queue) inLine() (n int) {
	for _, m := range q.Scheduled {
		if isParked(m.Due) {
			n++
		}
	}
	return n
}

// findWaiting looks at limit waiting members, starting at a rank, and returns the rank to continue at.
func (q *Queue) findWaiting(rank, limit int, t *lua.TurnsPassed) int {
	var line []string
	for _, member := range q.Order() {
		if q.Scheduled[member].Due >= parked {
			line = append(line, member)
		}
	}
	for last := rank + limit; ; {
		if rank >= len(line) || !isParked(q.Scheduled[line[rank]].Due) {
			return 0
		}
		m, member := q.Scheduled[line[rank]], line[rank]
		rank++
		if key, at := m.key(), m.Due-parked; key != "" && !q.Turns[inLine(key, at, member)] || key == "" && at < never {
			m.Due = at
			q.Scheduled[member] = m
			t.Moved++
		}
		if rank >= last {
			return rank
		}
	}
}

// passTime moves the due times of waiting messages nearer, in the notes.
func (q *Queue) passTime(ms float64) {
	turns := map[string]bool{}
	for note := range q.Turns {
		if key, at, member, ok := parseWait(note); ok {
			note = inLine(key, nearer(at, ms), member)
		}
		turns[note] = true
	}
	q.Turns = turns
}

// nearer returns the due time of a waiting message after ms have passed. It is never less than 0.
func nearer(at, ms float64) float64 {
	if at <= ms {
		return at
	}
	return at - ms
}
