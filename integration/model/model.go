package model

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// Queue is the state of a queue and its groups. Its methods are the transitions.
type Queue struct {
	Scheduled map[string]Message // by member
	Stream    []Entry            // ready and pending entries, ascending
	Groups    map[string]Group
	Dead      []Entry          // dead letters, ascending
	Windows   map[string]int64 // message ID → end of its dedup window
	Calls     map[string]Call  // by token: enqueue calls whose repeats are answered without being executed
	Turns     map[string]bool  // for each key: the messages in flight, and those that wait
	Skip      bool             // a retry that waits does not block the next message of its key
	Held      bool
	Flow      Flow

	Recurrences map[string]Recurrence // by name

	// Decisions of the server, filled in before each transition.
	Now          int64    // Unix ms
	NewEntries   []string // IDs of added entries, in order
	NewLetters   []string // IDs of added dead letters, in order
	EndedWindows int      // expired dedup windows that are still stored

	Former bool // the previous release runs it: a place in line stays, and a cancel mark is ignored

	Woken bool // the transition let a message go on, and wakes the bridge
}

// Message is a member of the schedule. Meta holds the fields of the entry besides payload and due time. Raw is its
// text. If Broken names a fault of Raw, there is no Meta.
type Message struct {
	Due     float64
	Payload string
	Meta    map[string]string
	Raw     string
	Broken  string
}

// Entry is a record of the stream, or a dead letter.
type Entry struct {
	ID     string
	Fields map[string]string
}

// Group is a consumer group: it was given every entry up to Last, and holds those in Pending.
type Group struct {
	Last    string
	Pending map[string]Pending
}

// Pending is a delivered entry that is not acknowledged. Deliveries is the server's counter.
type Pending struct {
	Consumer   string
	Deliveries int
	Idle       bool // idle for longer than any visibility timeout
}

// Call is an enqueue call that is remembered until Ends.
type Call struct {
	Ran, Ends int64
	Refused   []bool // by item
}

func newQueue() *Queue {
	return &Queue{Scheduled: map[string]Message{}, Groups: map[string]Group{}, Windows: map[string]int64{},
		Calls: map[string]Call{}, Recurrences: map[string]Recurrence{}, Turns: map[string]bool{}}
}

// Enqueue: nothing → scheduled; or straight to ready if due, nothing is overdue, and the queue is neither held nor
// limited.
func (q *Queue) Enqueue(token lua.Token, items []lua.Item) []lua.Receipt {
	receipts := make([]lua.Receipt, len(items))
	call, repeated := q.Calls[token.Name]
	if !repeated {
		call = Call{Ran: q.Now, Ends: q.Now + token.Window.Milliseconds(), Refused: make([]bool, len(items))}
	}
	direct := !q.Held && q.Flow == (Flow{}) && !(q.head() <= float64(q.Now))
	for i, item := range items {
		due := when(item.When, call.Ran)
		verdict := lua.Repeated
		switch {
		case repeated && call.Refused[i]:
			verdict = lua.Duplicate
		case !repeated:
			verdict = q.take(item, due, direct)
			call.Refused[i] = verdict <= lua.Duplicate
		}
		receipts[i] = lua.Receipt{Verdict: verdict, Due: time.UnixMilli(due)}
	}
	if token.Name != "" {
		q.Calls[token.Name] = call
	}
	delete(q.Calls, token.Done)
	return receipts
}

func (q *Queue) take(item lua.Item, due int64, direct bool) lua.Verdict {
	old, scheduled := q.Scheduled[item.ID]
	verdict := lua.Scheduled
	switch item.Dedup {
	case lua.Replace, lua.ReplaceLater, lua.ReplaceEarlier:
		later, earlier := float64(due) > unparked(old.Due), float64(due) < unparked(old.Due)
		if scheduled && (item.Dedup == lua.ReplaceLater && !later || item.Dedup == lua.ReplaceEarlier && !earlier) ||
			!scheduled && q.Windows[item.ID] > q.Now || strings.Contains(item.ID, lua.Separator) {
			return lua.Duplicate
		}
		if scheduled {
			verdict = lua.Replaced
			q.leaveLine(item.ID)
		}
		item.Dedup = lua.Fresh
	}
	if item.Dedup != lua.Fresh && (scheduled || q.Windows[item.ID] > q.Now) {
		return lua.Duplicate
	}
	m := NewMessage(item.ID, float64(due), string(item.Payload), item.Meta)
	switch {
	case direct && due <= q.Now && m.Broken != "":
		return lua.Malformed
	case direct && due <= q.Now && !m.expired(q.Now) && m.Meta[lua.FieldFor] == "" && m.key() == "":
		q.ready(m)
		verdict = lua.Ready
		delete(q.Scheduled, item.ID) // a fresh message replaces the scheduled one
	default:
		q.Scheduled[item.ID] = m
		q.holdKey(item.ID)
	}
	if window, _ := strconv.ParseInt(string(item.Dedup), 10, 64); window > 0 {
		q.Windows[item.ID] = q.Now + window
	}
	return verdict
}

// Cancel: scheduled → nothing. The ID may be used again at once.
func (q *Queue) Cancel(ids []string) []bool {
	done := make([]bool, len(ids))
	var held []turn
	for i, id := range ids {
		if _, done[i] = q.Scheduled[id]; done[i] {
			q.leaveLine(id)
			if key := q.Scheduled[id].key(); key != "" && strings.Contains(id, lua.Separator) {
				held = append(held, turn{key, id})
			}
			delete(q.Scheduled, id)
			delete(q.Windows, id)
		}
	}
	q.passOn(held)
	return done
}

// Reschedule: scheduled → scheduled.
func (q *Queue) Reschedule(id string, to lua.When) (due int64, moved bool) {
	due = when(to, q.Now)
	m, moved := q.Scheduled[id]
	if moved {
		q.leaveLine(id)
		m.Due = float64(due)
		q.Scheduled[id] = m
	}
	return due, moved
}

// wait returns the time until the next message is due.
func (q *Queue) wait() time.Duration {
	head := q.head()
	if head >= never {
		return -time.Millisecond
	}
	return time.Duration(max(0, math.Ceil(head)-float64(q.Now))) * time.Millisecond
}

// Survey returns what a bridge's survey reads: when to drain the queue, and whether it needs upkeep.
func (q *Queue) Survey(token string, windows int) lua.Look {
	l := lua.Look{Wait: q.wait(), Token: token, Busy: len(q.Stream) > 0, Untidy: windows > 0}
	if q.Held {
		l.Wait = -time.Millisecond // as if nothing were scheduled, so that a held queue costs nothing
	} else if head := q.head(); head < never {
		l.Overdue = time.Duration(max(0, float64(q.Now)-math.Ceil(max(0, head)))) * time.Millisecond
	}
	l.Recurs, l.Turns = len(q.Recurrences) > 0, len(q.Turns) > 0
	for _, g := range q.Groups {
		l.Busy = l.Busy || len(g.Pending) > 0
	}
	return l
}

// Redrive: dead → scheduled with attempt 1, for the group it died in or another existing one, without its expiry and
// the fields of the dead letter.
func (q *Queue) Redrive(letters []lua.Redrive) []lua.Redriven {
	out := make([]lua.Redriven, len(letters))
	for i, l := range letters {
		out[i] = q.redrive(l)
	}
	return out
}

func (q *Queue) redrive(l lua.Redrive) lua.Redriven {
	at := slices.IndexFunc(q.Dead, func(e Entry) bool { return e.ID == l.Letter })
	if at < 0 {
		return lua.RedriveGone
	}
	letter := q.Dead[at].Fields
	payload, ok := letter[lua.FieldPayload]
	if l.Payload != nil {
		payload, ok = string(*l.Payload), true
	}
	if !ok {
		return lua.RedriveNoPayload
	}
	edits := NewMessage("edits", 0, "", l.Fields)
	if edits.Broken != "" {
		return lua.RedriveMalformed
	}
	if letter[lua.FieldReason] == lua.ReasonMalformed && letter[lua.FieldMeta] != "" && l.Fields == "" {
		return lua.RedriveUnreadable
	}
	meta := fields{}
	for name, value := range letter {
		edited := l.Fields != "" && (strings.HasPrefix(name, lua.HeaderPrefix) || name == lua.FieldMaxAttempts)
		if !edited && !slices.Contains(ofTheLetter, name) {
			keep(meta, inMessage(name), value)
		}
	}
	if !count.MatchString(meta[lua.FieldMaxAttempts]) {
		delete(meta, lua.FieldMaxAttempts)
	}
	maps.Copy(meta, edits.Meta)
	id := letter[lua.FieldID]
	if !usableID(id) {
		id = l.Letter
	}
	meta[lua.FieldID], meta[lua.FieldAttempt] = id, "1"
	group := cmp.Or(l.To, letter[lua.FieldGroup])
	if _, exists := q.Groups[group]; group != "" && !exists {
		return lua.RedriveGroupGone
	}
	if group != "" {
		meta[lua.FieldFor] = group
	}
	q.Dead = slices.Delete(q.Dead, at, at+1)
	q.again(lua.Member{Kind: lua.MemberRedriven, ID: id, Group: group, Of: l.Letter}, when(l.When, q.Now), payload, meta)
	return lua.RedriveScheduled
}

// again puts a message back into the schedule, under a member of its own for this failure.
func (q *Queue) again(member lua.Member, due int64, payload string, meta fields) {
	q.Scheduled[member.String()] = Message{Due: float64(due), Payload: payload, Meta: meta}
}

// ready adds an entry for a message, and returns its ID.
func (q *Queue) ready(m Message) (entry string) {
	entry = next(&q.NewEntries)
	q.Stream = append(q.Stream, Entry{entry, m.fields()})
	return entry
}

// bury adds a dead letter. It has no group if it failed before any delivery.
func (q *Queue) bury(f fields, group, entry, reason, text string) {
	for name, value := range (fields{lua.FieldGroup: group, lua.FieldEntry: entry, lua.FieldError: text}) {
		f[name] = value
		if value == "" {
			delete(f, name)
		}
	}
	f[lua.FieldReason], f[lua.FieldDead] = reason, decimal(q.Now)
	q.Dead = append(q.Dead, Entry{next(&q.NewLetters), f})
}

// next takes the next ID that the server gave, or a text that is no ID.
func next(ids *[]string) string {
	if len(*ids) == 0 {
		return "not added"
	}
	id := (*ids)[0]
	*ids = (*ids)[1:]
	return id
}

// Order returns the members of the schedule by due time, then by member.
func (q *Queue) Order() []string {
	return slices.SortedFunc(maps.Keys(q.Scheduled), func(a, b string) int {
		return cmp.Or(cmp.Compare(q.Scheduled[a].Due, q.Scheduled[b].Due), strings.Compare(a, b))
	})
}

// head returns the earliest due time, or infinity.
func (q *Queue) head() float64 {
	head := math.Inf(1)
	for _, m := range q.Scheduled {
		head = min(head, m.Due)
	}
	return head
}

// Pass lets time pass: due times, expiries of scheduled messages, and ends of windows come nearer.
func (q *Queue) Pass(d time.Duration) {
	ms := d.Milliseconds()
	for member, m := range q.Scheduled {
		switch {
		case isParked(m.Due):
			m.Due = parked + nearer(m.Due-parked, float64(ms))
		case m.Due > 0 && m.Due < never:
			m.Due -= float64(ms)
		}
		if expires, err := strconv.ParseInt(m.Meta[lua.FieldExpires], 10, 64); err == nil && m.Broken == "" {
			m.Meta = maps.Clone(m.Meta)
			m.Meta[lua.FieldExpires] = decimal(expires - ms)
			raw, _ := json.Marshal(m.Meta)
			m.Raw = string(raw)
		}
		q.Scheduled[member] = m
	}
	q.passTime(float64(ms))
	for id := range q.Windows {
		q.Windows[id] -= ms
	}
	for token, call := range q.Calls {
		call.Ran, call.Ends = call.Ran-ms, call.Ends-ms
		q.Calls[token] = call
	}
}
