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

// turn is who holds a key: an entry, or a retry; "" is nobody.
type turn struct{ key, by string }

func inFlight(key, by string) string { return key + lua.Separator + "busy" + lua.Separator + by }

func inLine(key string, at float64, member string) string {
	return key + lua.Separator + "wait" + lua.Separator + fmt.Sprintf("%016.0f", at) + lua.Separator + member
}

// key is what a message has, unless it cannot be read.
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

// keys are those of the entries.
func (q *Queue) keys() map[string]string {
	keys := map[string]string{}
	for _, e := range q.Stream {
		if key := e.key(); key != "" {
			keys[e.ID] = key
		}
	}
	return keys
}

// notes are what is noted of a key: who is in flight, then who waits, by due time.
func (q *Queue) notes(key string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(q.Turns)),
		func(note string) bool { return !strings.HasPrefix(note, key+lua.Separator) })
}

// parseWait reads a note of one that waits.
func parseWait(note string) (key string, at float64, member string, ok bool) {
	parts := strings.SplitN(note, lua.Separator, 4)
	if len(parts) < 4 || parts[1] != "wait" {
		return "", 0, "", false
	}
	at, _ = strconv.ParseFloat(parts[2], 64)
	return parts[0], at, parts[3], true
}

// awaitsTurn: scheduled → parked, when one of its key is in flight, or an older one waits.
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

// handOn: who gave a key away does not hold it, and parked → scheduled for the next of each.
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

// next has the next message of a key go on, unless one is in flight. Who was cancelled, or moved, is passed over.
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

// passOn does so, and tells the bridge.
func (q *Queue) passOn(held []turn) { q.Woken = q.handOn(held) > 0 || q.Woken }

// endTurns frees entries that left a pending list. keys are those that are known of them.
func (q *Queue) endTurns(left []string, keys map[string]string) {
	var held []turn
	for _, entry := range left {
		if q.free(entry) && keys[entry] != "" {
			held = append(held, turn{keys[entry], entry})
		}
	}
	q.passOn(held)
}

// tells says whether a script has to add a wake token: the earliest due time became earlier, or a message went on. Who drains
// knows.
func (q *Queue) tells(what string, before *Queue) bool {
	if strings.HasPrefix(what, "drain ") || strings.HasPrefix(what, "somebody's ") {
		return false
	}
	return q.Woken || q.head() < before.head()
}

// PassTurns is the sweep of keys: what is done with in every group, or gone, holds its key no more; who waits without a note, or
// without a key, is due again; places that nobody is in are cleared away.
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
		t.Cursor = "" // came round
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

// clearPlaces looks at limit notes behind one, and deletes the places of messages that do not wait there.
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
		t.Place = "" // came round
	}
}

// retryMember matches the end of the name of a retry in the schedule.
var retryMember = regexp.MustCompile(lua.Separator + `\d+-\d+$`)

// holdKey has a retry that comes from elsewhere hold its key, unless another message does, or the next one passes a retry.
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

// leaveLine takes away the place of a member that waits, before it is cancelled, moved or replaced.
func (q *Queue) leaveLine(member string) {
	if q.Former {
		return
	}
	m := q.Scheduled[member]
	if key := m.key(); key != "" && isParked(m.Due) {
		delete(q.Turns, inLine(key, m.Due-parked, member))
	}
}

// lookAt adds who holds a key to those that are there, or gone.
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

// inLine is how many wait for their turn.
func (q *Queue) inLine() (n int) {
	for _, m := range q.Scheduled {
		if isParked(m.Due) {
			n++
		}
	}
	return n
}

// findWaiting looks at limit members that wait, from a rank on, and says where to go on.
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

// passTime has the due times of those that wait come nearer, where these are noted.
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

// nearer is a due time of one that waits, which is never before 0.
func nearer(at, ms float64) float64 {
	if at <= ms {
		return at
	}
	return at - ms
}
