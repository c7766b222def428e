package model

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// The transitions of a queue without partitions. Each row is a method of Queue; its comment and its code are the law.
//
//	method              from → to                                        guard
//	Enqueue             nothing → scheduled, or ready                    the ID is free, and its window is over
//	Cancel              scheduled → gone                                 still scheduled
//	Withdraw            scheduled → gone, to another partition           unchanged since it was exported
//	Reschedule          scheduled → scheduled                            still scheduled
//	Expire              scheduled → scheduled, due and expired           still scheduled
//	Drain               scheduled and due → ready, dead, or parked       limit, bytes, rate, ready limit, key, group
//	Read, Receive       ready → pending                                  not given to the group before
//	ReadHistory         pending → pending, delivered again               held by this consumer
//	Ack                 pending → acknowledged                           pending, and the ID is the same
//	Retry               pending → scheduled for the group, or dead       pending, and the ID is the same
//	Reclaim             idle and pending → as Retry                      idle for long enough
//	Extend              pending → pending, not idle                      held by this consumer
//	CancelEntries       ready → gone; pending → marked as cancelled      no other group needs the entry
//	CancelRetries       scheduled again → gone                           still scheduled
//	RescheduleRetries   scheduled again → scheduled again                still scheduled
//	Redrive             dead → scheduled for a group, or for all         the letter and its group exist
//	Trim                acknowledged by every group → freed              no group needs the entry
//	PassTurns           parked → scheduled                               no message of its key is in flight
//	Recur               nothing, or recurrence → recurrence              the caller knew the stored one
//	RemoveRecurrence    recurrence → nothing; its occurrences → gone     –
//	Plan                recurrence → scheduled occurrences               the caller knew the stored plan
//	Run                 recurrence → one scheduled occurrence            the recurrence exists
//	EnsureGroup         nothing → group at the begin of the stream       –
//	DropConsumers       consumer → nothing                               it holds nothing
//	Survey              reads                                            –
//	FindEntries         reads                                            –
//	Lose, Pass          steps of other programs, and of time             –

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
	Held      bool             // the queue is paused
	Flow      Flow

	Recurrences map[string]Recurrence // by name

	// Decisions of the server, filled in before each transition.
	Now          int64    // Unix ms
	NewEntries   []string // IDs of added entries, in order
	NewLetters   []string // IDs of added dead letters, in order
	EndedWindows int      // expired dedup windows that are still stored

	// Former means that the previous release runs the transition. It leaves places in line, and ignores cancel marks.
	Former bool

	Woken bool // the transition let a message with a key go on, so its script adds a wake token for the bridge
}

// Message is a member of the schedule. Raw is the stored meta. Meta has the fields that Raw describes: those of the
// entry besides payload and due time. If Raw cannot be used, Broken says why, and Meta may lack fields.
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
	Ran, Ends int64  // Unix ms
	Refused   []bool // by item
}

func newQueue() *Queue {
	return &Queue{Scheduled: map[string]Message{}, Groups: map[string]Group{}, Windows: map[string]int64{},
		Calls: map[string]Call{}, Recurrences: map[string]Recurrence{}, Turns: map[string]bool{}}
}

// EnqueueOne is Enqueue of one message with a fresh ID, except that the first try is not remembered if the message is
// due after the token's window. A repeat changes nothing as long as the message is scheduled.
func (q *Queue) EnqueueOne(token lua.Token, again bool, item lua.Item) []lua.Receipt {
	due, window := when(item.When, q.Now), token.Window.Milliseconds()
	remembers := token.Name != "" && (again || due-q.Now <= window)
	if m, scheduled := q.Scheduled[item.ID]; scheduled && again {
		if remembers {
			q.Calls[token.Name] = Call{Ran: q.Now, Ends: q.Now + window, Refused: make([]bool, 1)}
		}
		if item.When[0] == '+' {
			due = int64(m.Due)
		}
		return []lua.Receipt{{Verdict: lua.Repeated, Due: time.UnixMilli(due)}}
	}
	if isKnown := q.Calls[token.Name].Ends > q.Now; !remembers && !isKnown {
		token.Name = ""
	}
	return q.Enqueue(token, []lua.Item{item})
}

// Enqueue: nothing → scheduled; or straight to ready if due, nothing is overdue, and the queue is neither held nor
// limited.
func (q *Queue) Enqueue(token lua.Token, items []lua.Item) []lua.Receipt {
	receipts := make([]lua.Receipt, len(items))
	call := q.Calls[token.Name]
	repeated := call.Ends > q.Now
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
			call.Refused[i] = verdict == lua.Duplicate || verdict == lua.Malformed
		}
		receipts[i] = lua.Receipt{Verdict: verdict, Due: time.UnixMilli(due)}
	}
	if token.Name != "" {
		q.Calls[token.Name] = call
	}
	delete(q.Calls, token.Done)
	return receipts
}

// take decides about one item of an enqueue. direct means that a due message becomes ready at once.
func (q *Queue) take(item lua.Item, due int64, direct bool) lua.Verdict {
	old, scheduled := q.Scheduled[item.ID]
	verdict := lua.Scheduled
	switch item.Dedup {
	case lua.Replace, lua.ReplaceLater, lua.ReplaceEarlier:
		later, earlier := float64(due) > ownDue(old.Due), float64(due) < ownDue(old.Due)
		wrongDirection := item.Dedup == lua.ReplaceLater && !later || item.Dedup == lua.ReplaceEarlier && !earlier
		inWindow := q.Windows[item.ID] > q.Now
		isRetry := strings.Contains(item.ID, lua.Separator) // only a first delivery can be replaced
		if scheduled && wrongDirection || !scheduled && inWindow || isRetry {
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
	var givenUp []turn
	for i, id := range ids {
		if _, done[i] = q.Scheduled[id]; done[i] {
			givenUp = append(givenUp, q.unschedule(id)...)
			delete(q.Windows, id)
		}
	}
	q.passOn(givenUp)
	return done
}

// unschedule removes a member from the schedule. It returns the key that the member may hold: only a retry holds one.
func (q *Queue) unschedule(member string) (givenUp []turn) {
	key := q.Scheduled[member].key()
	q.leaveLine(member)
	delete(q.Scheduled, member)
	if key != "" && strings.Contains(member, lua.Separator) {
		givenUp = []turn{{key, member}}
	}
	return givenUp
}

// Withdraw: scheduled → nothing, because another partition has the message now. Nothing happens if the due time, the
// payload or the meta differs from the export. The dedup window stays.
func (q *Queue) Withdraw(one lua.Exported) (removed bool) {
	m, scheduled := q.Scheduled[one.Member]
	due, err := strconv.ParseFloat(one.Score, 64)
	sameDue := err == nil && ownDue(m.Due) == ownDue(due)
	if !scheduled || !sameDue || m.Payload != string(one.Payload) || m.Raw != one.Meta {
		return false
	}
	q.passOn(q.unschedule(one.Member))
	return true
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

// wait returns the time until the next message is due, or a negative time if none ever is.
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

// mostBytes ends a search for entries: a search that has read mostBytes looks at no further entry.
const mostBytes = 1 << 20

// FindEntries looks at the entries after a cursor, and returns the IDs of the entries that carry the message. next is
// the search that continues this one.
func FindEntries(entries []Entry, id string, s lua.EntrySearch) (next lua.EntrySearch, found []string) {
	next = lua.EntrySearch{Cursor: cmp.Or(s.Cursor, "0-0"), Limit: s.Limit}
	bytes := 0
	for next.Looked < s.Limit && bytes < mostBytes {
		at := slices.IndexFunc(entries, func(e Entry) bool { return less(next.Cursor, e.ID) })
		if at < 0 {
			return next, found
		}
		e := entries[at]
		next.Cursor = e.ID
		next.Looked++
		bytes += e.size()
		if e.messageID() == id {
			found = append(found, e.ID)
		}
	}
	next.More = true
	return next, found
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
	_, raw := letter[lua.FieldRaw]
	if letter[lua.FieldReason] == lua.ReasonMalformed && (letter[lua.FieldMeta] != "" || raw) && l.Fields == "" {
		return lua.RedriveUnreadable
	}
	meta := fields{}
	for name, value := range letter {
		edited := l.Fields != "" && (strings.HasPrefix(name, lua.HeaderPrefix) || name == lua.FieldMaxAttempts)
		// A value that is not UTF-8 is carried in the field b64:…. It is left out if the letter already has that field.
		_, hasBase64 := letter["b64:"+inMessage(name)]
		carried := utf8.ValidString(name) && (utf8.ValidString(value) || !hasBase64)
		if carried && !edited && !slices.Contains(ofTheLetter, name) {
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
	member := lua.Member{Kind: lua.MemberRedriven, ID: id, Group: group, Of: l.Letter}
	q.again(member, when(l.When, q.Now), payload, meta)
	return lua.RedriveScheduled
}

// again puts a message into the schedule again, under the given member, which is its own for this failure or redrive.
func (q *Queue) again(member lua.Member, due int64, payload string, meta fields) {
	raw, err := json.Marshal(meta)
	if err != nil {
		panic(err)
	}
	q.Scheduled[member.String()] = NewMessage(member.String(), float64(due), payload, string(raw))
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

// next removes and returns the next ID that the server gave. If the server added fewer records than the model, it
// returns a text that is no ID, so that the comparison fails.
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
			m.Meta[lua.FieldExpires] = decimal(max(1, expires-ms))
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

// Draining: scheduled and due → ready.

// draining is a drain in progress.
type draining struct {
	lua.Drained
	room    int    // messages that may still become ready under the ready limit
	bytes   int    // size of the processed members
	parked  int    // messages that now wait for their keys
	known   bool   // the lateness is known
	givenUp []turn // keys that their holders give up
}

// Drain: scheduled and due → ready, in the order of due time, then member. Malformed, expired, or for a deleted group
// → dead. With a key that another message holds → parked.
func (q *Queue) Drain(limit, maxBytes int) lua.Drained {
	const nothing = -time.Microsecond // the answer if nothing is scheduled
	if q.Held {
		return lua.Drained{Wait: nothing}
	}
	d := draining{room: q.room()}
	due := slices.DeleteFunc(q.Order(), func(member string) bool { return q.Scheduled[member].Due > float64(q.Now) })
	for i, member := range due {
		if d.Moved+d.Dead+d.parked == limit || d.bytes >= maxBytes {
			break
		}
		m := q.Scheduled[member]
		d.Drained.Held = q.holdsBack(member, d.room)
		// A message with a key that passes tells nothing about the lateness, because it may have waited for others.
		if !d.known && (d.Drained.Held != "" || m.key() == "") {
			d.known = true
			const firstTime = 1e12 // a smaller due time, before 2001, is no time in ms, and says nothing about lateness
			if m.Due >= firstTime {
				d.Late = time.Duration(float64(q.Now)-math.Ceil(m.Due)) * time.Millisecond
			}
		}
		if d.Drained.Held != "" {
			due = due[i:]
			break
		}
		q.drainOne(member, &d)
	}
	// If a limit stopped the drain, due retries that are exempt from it still pass.
	for _, member := range due {
		if d.Drained.Held == "" || d.Drained.Held == lua.HeldByRate && !q.Flow.Free {
			break
		}
		if !passes(member) {
			continue
		}
		if by := q.holdsBack(member, d.room); by != "" || d.Moved+d.Dead == limit || d.bytes >= maxBytes {
			d.Drained.Held = cmp.Or(by, d.Drained.Held)
			break
		}
		q.drainOne(member, &d)
	}
	q.handOn(d.givenUp)
	if d.Wait = q.wait(); d.Wait < 0 {
		d.Wait = nothing
	}
	return d.Drained
}

// drainOne processes one due member.
func (q *Queue) drainOne(member string, d *draining) {
	m := q.Scheduled[member]
	d.bytes += len(member) + len(m.Payload) + len(m.Raw)
	name, to, key := lua.ParseMember(member), m.Meta[lua.FieldFor], m.key()
	_, exists := q.Groups[to]
	switch {
	case m.Broken != "":
		q.bury(fields{lua.FieldID: name.ID, lua.FieldPayload: m.Payload, lua.FieldAttempt: "1", lua.FieldDue: m.dueMs(),
			lua.FieldMeta: m.Raw},
			name.Group, "", lua.ReasonMalformed, m.Broken)
		d.Dead++
	case m.expired(q.Now) || to != "" && !exists:
		letter, reason := inLetter(m.fields()), lua.ReasonGroupGone
		if m.expired(q.Now) {
			reason = lua.ReasonExpired
		}
		delete(letter, lua.FieldFor)
		q.bury(letter, to, "", reason, letter[lua.FieldError])
		d.Dead++
		d.givenUp = append(d.givenUp, turn{key, member})
	case key != "" && q.awaitsTurn(key, member, d):
		d.parked++
		return
	default:
		entry := q.ready(m)
		q.spend(member, &d.room)
		d.Moved++
		if key != "" {
			q.Turns[inFlight(key, entry)] = true
		}
		if passes(member) {
			d.givenUp = append(d.givenUp, turn{key, member})
		}
	}
	delete(q.Scheduled, member)
}

// The limits of a queue: its rate, and its ready limit.

// Flow holds the limits on messages that become ready. The rate of a model is 1/h, and its clock stands still: so
// Burst messages pass until the key of the bucket is deleted.
type Flow struct {
	Burst int // 0 = no rate
	Spent int
	Free  bool // retries are exempt from the rate
	Limit int  // ready limit; 0 = none
}

// limits are the flows that sequences use.
var limits = []Flow{{}, {Burst: 1}, {Limit: 1}, {Burst: 2, Free: true}, {Limit: 2}, {Burst: 1, Free: true, Limit: 1}}

// passes reports whether a member is exempt from a ready limit, because its message was ready before.
func passes(member string) bool { return strings.Contains(member, lua.Separator) }

// room returns how many messages may become ready under the ready limit.
func (q *Queue) room() int { return q.Flow.Limit - q.waiting() }

// waiting returns the number of entries that wait for their first delivery to the slowest group. It counts as the
// script drain counts.
func (q *Queue) waiting() int {
	n := len(q.Stream)
	if n == 0 || n < q.Flow.Limit || len(q.Groups) == 0 {
		return n
	}
	last, pending := "", 0
	for _, g := range q.Groups {
		switch {
		case last == "" || view.CompareEntries(g.Last, last) < 0:
			last, pending = g.Last, len(g.Pending)
		case g.Last == last:
			pending = max(pending, len(g.Pending))
		}
	}
	if n-pending >= q.Flow.Limit && view.CompareEntries(q.Stream[n-1].ID, last) <= 0 {
		// The slowest group has read everything. The rest are entries that it acknowledged and another group holds.
		return 0
	}
	return n - pending
}

// holdsBack returns the limit that makes a due member wait, or "".
func (q *Queue) holdsBack(member string, room int) string {
	switch f := q.Flow; {
	case f.Burst > 0 && f.Spent >= f.Burst && !(f.Free && passes(member)):
		return lua.HeldByRate
	case f.Limit > 0 && room < 1 && !passes(member):
		return lua.HeldByReadyLimit
	}
	return ""
}

// spend counts a member that became ready against the limits.
func (q *Queue) spend(member string, room *int) {
	*room--
	if q.Flow.Burst > 0 && !(q.Flow.Free && passes(member)) {
		q.Flow.Spent++
	}
}

// commands returns commands that write a flow into the policy, with a full bucket.
func (f Flow) commands(k lua.Keys) [][]string {
	set := func(name, value string) []string {
		if value == "" || value == "0" {
			return []string{"HDEL", k.Policy, name}
		}
		return []string{"HSET", k.Policy, name, value}
	}
	rate, free := "", ""
	if f.Burst > 0 {
		rate = "1/h"
	}
	if f.Free {
		free = "1"
	}
	return [][]string{set("rate", rate), set("burst", strconv.Itoa(f.Burst)), set("free_retries", free),
		set("ready_limit", strconv.Itoa(f.Limit)), {"DEL", k.Rate}}
}

func (f Flow) String() string {
	return fmt.Sprintf("burst %d, free %v, limit %d", f.Burst, f.Free, f.Limit)
}

// Groups: delivery, the exits from the pending list, and the deletion of entries.

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
	for _, id := range slices.SortedFunc(maps.Keys(pending), view.CompareEntries) {
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
// entry without its body is reclaimed at once, unless its message was cancelled. A call stops when it has reclaimed
// Limit entries, or entries of MaxBytes. The server may stop the call earlier, at the entry until ("" = it did not),
// but only after the call has looked at Limit entries. Before it stops, a call skips no idle entry.
func (q *Queue) Reclaim(a lua.ReclaimArgs, until string) lua.Reclaimed {
	r := lua.Reclaimed{}
	seen, taken, bytes := 0, 0, 0
	keys, left := q.keys(), []string(nil)
	text := "visibility timeout: not acknowledged within " + decimal(a.MinIdle.Milliseconds()) + " ms"
	for _, id := range slices.SortedFunc(maps.Keys(q.Groups[a.Group].Pending), view.CompareEntries) {
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
		failure := lua.Failure{
			Held:   lua.Held{Entry: id},
			Action: lua.ActionRetry,
			Delay:  -1,
			Reason: lua.ReasonVisibilityTimeout,
			Error:  text,
		}
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

// leave is the exit from a pending list for an entry that is not acknowledged. burnt is the number of failed attempts
// beyond those in the entry. crash means that no handler failed, but the worker vanished.
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
	if !ok || !usableID(id) || !e.canBeCarried() {
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
		const mostSnoozes = 1000 // for a message without a limit
		due, outcome = q.Now+how.Delay.Milliseconds(), lua.Snoozed
		most := cmp.Or(limitOf(e, lua.FieldMaxSnoozes, int64(policy.MaxSnoozes)), mostSnoozes)
		if n := raise(f, lua.FieldSnoozes, 1); n > most {
			reason, f[lua.FieldError] = lua.ReasonMaxSnoozes, "snoozed "+decimal(n)+" times"
		}
	case crash && crashes > 0:
		n, delays := raise(f, lua.FieldCrashes, 1+burnt), delaysOf(e, policy)
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
	if retryFor := limitOf(e, lua.FieldRetryFor, policy.For.Milliseconds()); retryFor > 0 {
		first := firstDue(e)
		f[lua.FieldFirstDue] = decimal(first)
		if reason == "" && outcome == lua.Retried && due > first+retryFor {
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
		of = overlapEntry
	}
	member := lua.Member{Kind: lua.MemberRetry, ID: id, Group: group, Of: of}
	q.again(member, due, f[lua.FieldPayload], meta)
	if key := e.key(); key != "" && (outcome == lua.Released || !q.Skip) {
		q.Turns[inFlight(key, member.String())] = true
	}
	return outcome
}

// overlapEntry stands for the entry in the member of a message that no other occurrence may overlap. The planner looks
// the message up by its member, and does not know the entry.
const overlapEntry = "0-0"

// Trim frees entries that every group has acknowledged. If there are such entries before the first needed entry, Trim
// frees at least one of them, and no others. The server decides how many (told.Freed), because it deletes whole nodes
// of a stream. If there are none, Trim looks at limit entries from cursor on, and the server decides where the next
// call continues (told.Cursor). Without a group, Trim frees nothing.
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
			t.Cursor = e.ID // an entry is left to free, so an answer that says "done" differs
		}
	}
	if looked < limit {
		t.Cursor = ""
	}
	t.Freed = before - len(q.Stream)
	return t
}

// free deletes an entry that every group has read and none holds, and reports whether the entry is such a one.
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

// everyoneHas reports whether every group has read the entry.
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

// entry returns an entry of the stream, or nil if it is not there.
func (q *Queue) entry(id string) *Entry {
	for i := range q.Stream {
		if q.Stream[i].ID == id {
			return &q.Stream[i]
		}
	}
	return nil
}

// DropConsumers deletes consumers that hold nothing, and returns how many of the names hold nothing. The state of the
// model does not change, because it has no consumers.
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

// isFor reports whether an entry with the value to in the field "for" is for the group. "" is for all groups.
func isFor(to, group string) bool { return to == "" || to == group }

// needs reports whether the entry still waits for its first delivery to the group, or is pending there.
func (g Group) needs(id string) bool {
	_, pending := g.Pending[id]
	return pending || less(g.Last, id)
}

// Retries and redriven letters that wait, and expiry by hand.

// Waiting returns the members that will deliver a message again to a group, or to any group if it is "".
func (q *Queue) Waiting(id, group string) (members []string) {
	for member := range q.Scheduled {
		if m := lua.ParseMember(member); m.Kind != lua.MemberFirst && m.ID == id && (group == "" || group == m.Group) {
			members = append(members, member)
		}
	}
	slices.Sort(members)
	return members
}

// CancelRetries removes the scheduled retries of a message. The dedup window stays, because the message was accepted
// and delivered. The next message with its key goes on.
func (q *Queue) CancelRetries(id, group string) []string {
	members := q.Waiting(id, group)
	var givenUp []turn
	for _, member := range members {
		if key := q.Scheduled[member].key(); key != "" {
			givenUp = append(givenUp, turn{key, member})
		}
		q.leaveLine(member)
		delete(q.Scheduled, member)
	}
	q.passOn(givenUp)
	return members
}

// RescheduleRetries changes the due time of the scheduled retries of a message.
func (q *Queue) RescheduleRetries(id, group string, to lua.When) []string {
	members := q.Waiting(id, group)
	for _, member := range members {
		q.leaveLine(member)
		m := q.Scheduled[member]
		m.Due = float64(when(to, q.Now))
		q.Scheduled[member] = m
	}
	return members
}

// Expire makes scheduled messages due now, and lets them expire. A message that cannot be read has no expiry, and
// becomes only due.
func (q *Queue) Expire(members []string) []lua.Expired {
	answers := make([]lua.Expired, len(members))
	for i, member := range members {
		m, scheduled := q.Scheduled[member]
		due, expired := m.Due <= float64(q.Now), m.Broken != "" || m.expired(q.Now)
		switch {
		case !scheduled:
			continue
		case due && expired:
			answers[i] = lua.ExpireBefore
			continue
		case !expired:
			m.Meta = maps.Clone(m.Meta)
			m.Meta[lua.FieldExpires] = decimal(q.Now)
		}
		if !due {
			q.leaveLine(member)
			m.Due = float64(q.Now)
		}
		q.Scheduled[member], answers[i] = m, lua.ExpireNow
	}
	return answers
}

// Cancelling a message that is ready or pending.

// cancelMark is added to the delivery count of a pending entry whose message was cancelled.
const cancelMark = 1_000_000_000_000

func (p Pending) cancelled() bool { return p.Deliveries >= cancelMark }

// CancelEntries removes ready entries, unless another group still needs them, and marks pending entries as cancelled.
// The group "" means all groups. The result is sorted by entry, then by group.
func (q *Queue) CancelEntries(id, group string) (found []lua.FoundEntry) {
	var givenUp []turn
	for _, e := range slices.Clone(q.Stream) {
		to := e.Fields[lua.FieldFor]
		if e.Fields[lua.FieldID] != id || group != "" && !isFor(to, group) {
			continue
		}
		// unread: the entry waits for its first delivery to a group that is asked for, or there is no group.
		// needed: a group that is not asked for still needs the entry.
		unread, needed, holders := len(q.Groups) == 0 && group == "", false, 0
		for name, g := range q.Groups {
			_, pending := g.Pending[e.ID]
			if pending {
				holders++
			}
			asked := isFor(to, name) && (group == "" || group == name)
			unread = unread || asked && less(g.Last, e.ID)
			needed = needed || isFor(to, name) && !asked && g.needs(e.ID)
		}
		goes := unread && !needed
		// The holders in the groups that are asked for get the mark. If the entry goes, all holders do.
		for name, g := range q.Groups {
			p, pending := g.Pending[e.ID]
			asked := isFor(to, name) && (group == "" || group == name)
			if !pending || !asked && !goes {
				continue
			}
			if !p.cancelled() {
				p.Deliveries += cancelMark
				g.Pending[e.ID] = p
			}
			if asked {
				found = append(found, lua.FoundEntry{
					ID:       id,
					Group:    name,
					Verdict:  lua.EntryCancelling,
					Consumer: p.Consumer,
				})
			}
		}
		switch {
		case goes:
			q.Lose(e.ID)
			found = append(found, lua.FoundEntry{ID: id, Group: group, Verdict: lua.EntryCancelled})
			if to == "" {
				delete(q.Windows, id)
			}
			if key := e.key(); key != "" && holders == 0 {
				givenUp = append(givenUp, turn{key, e.ID})
			}
		case unread:
			found = append(found, lua.FoundEntry{ID: id, Group: group, Verdict: lua.EntryUnread})
		}
	}
	q.passOn(givenUp)
	return found
}

// Keys: at most one message of a key is in flight, in due order.

// parked is an offset that is added to the stored due time of a message that waits for its key.
const parked = 4e15

func isParked(due float64) bool { return due >= parked && due < 2*parked }

// ownDue returns the due time of a message: the stored one, without the offset parked if the message waits for its key.
func ownDue(due float64) float64 {
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

// inFlight returns the note that a message holds a key.
func inFlight(key, by string) string { return key + lua.Separator + "busy" + lua.Separator + by }

// inLine returns the note that a message, due at a time, waits for a key: its place in line.
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

// keys returns the keys of the entries, by entry ID.
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
	if waits { // the first note is of a waiting message, so none is in flight: the first one in line goes on
		d.givenUp = append(d.givenUp, turn{key, ""})
	}
	return true
}

// handOn takes the keys away from their holders, and schedules the next parked message of each key.
func (q *Queue) handOn(givenUp []turn) (moved int) {
	for _, h := range givenUp {
		delete(q.Turns, inFlight(h.key, h.by))
	}
	for _, h := range givenUp {
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
func (q *Queue) passOn(givenUp []turn) { q.Woken = q.handOn(givenUp) > 0 || q.Woken }

// endTurns frees entries that have left a pending list, and releases the keys of the freed entries. keys has the known
// keys by entry.
func (q *Queue) endTurns(left []string, keys map[string]string) {
	var givenUp []turn
	for _, entry := range left {
		if q.free(entry) && keys[entry] != "" {
			givenUp = append(givenUp, turn{keys[entry], entry})
		}
	}
	q.passOn(givenUp)
}

// tells reports whether a script has to add a wake token: the earliest due time became earlier, or a message went on.
// A drain does not add one, because its caller learns the same from the reply. what is the text of the step.
func (q *Queue) tells(what string, before *Queue) bool {
	const plainStep = "somebody's " // as plainly in compare_test.go: commands of other programs
	if strings.HasPrefix(what, "drain ") || strings.HasPrefix(what, plainStep) {
		return false
	}
	return q.Woken || q.head() < before.head()
}

// PassTurns is the sweep of keys. A message that every group is done with, or that is gone, no longer holds its key.
// A waiting message without a note or without a key becomes due again. The sweep deletes places in line of messages
// that do not wait there any more.
func (q *Queue) PassTurns(from lua.TurnsPassed, limit int) lua.TurnsPassed {
	var keys []string
	for note := range q.Turns {
		key, _, _ := strings.Cut(note, lua.Separator)
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var t lua.TurnsPassed
	var alive, gone []turn
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
		alive, gone = q.lookAt(key, alive, gone)
	}
	if looked < limit {
		t.Cursor = "" // the sweep is complete
	}
	for _, h := range alive {
		if len(q.Groups) > 0 && q.free(h.by) {
			gone = append(gone, h)
		}
	}
	for _, h := range gone {
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

// lookAt looks at the holders of a key. It adds entries that still exist to alive, and holders that do not exist any
// more to gone. For a key without a holder, it adds an empty holder to gone, so that the next message goes on. A retry
// that waits keeps the key, and is added to neither.
func (q *Queue) lookAt(key string, alive, gone []turn) (_, _ []turn) {
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
			alive = append(alive, turn{key, by})
		case isEntry || !waits:
			gone = append(gone, turn{key, by})
		}
	}
	if free {
		gone = append(gone, turn{key, ""})
	}
	return alive, gone
}

// isThere reports whether an entry is in the stream, or pending in some group.
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
		key, at := m.key(), m.Due-parked
		lostNote := key != "" && !q.Turns[inLine(key, at, member)]
		lostKey := key == "" && at < never // a greater time is a due time that is never reached, and not a parked one
		if lostNote || lostKey {
			m.Due = at
			q.Scheduled[member] = m
			t.Moved++
		}
		if rank >= last {
			return rank
		}
	}
}

// passTime moves the due times in the notes of messages that wait for their keys nearer.
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

// nearer returns the due time of a waiting message after ms have passed. A time that would become 0 or less stays as
// it is.
func nearer(at, ms float64) float64 {
	if at <= ms {
		return at
	}
	return at - ms
}

// Recurrences.

// Recurrence is a recurrence and what is stored about its plan. An empty Version means that no plan is stored.
type Recurrence struct {
	Spec    string
	Version string
	Times   string
	Spans   []lua.Span
	Used    int
	Recent  []string // the parts after "@" in the IDs of its messages
}

func (r Recurrence) plan() string {
	if r.Version == "" {
		return ""
	}
	return lua.Plan{Version: r.Version, Times: r.Times, Spans: r.Spans, Used: r.Used, Recent: r.Recent}.String()
}

// takeBack removes the recent occurrences that are later than from and still scheduled. A planned span that contained
// removed occurrences then ends before the first of them.
func (q *Queue) takeBack(name string, r *Recurrence, from int64) (back int) {
	var stay []string
	spans := slices.Clone(r.Spans)
	for _, part := range r.Recent {
		at, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			at = 0 // it was run by hand
		}
		m, waits := q.Scheduled[name+"@"+part]
		if waits && at > from && m.Due > float64(from) {
			delete(q.Scheduled, name+"@"+part)
			back++
			for i, span := range spans {
				if at > span.From.UnixMilli() && at <= span.To.UnixMilli() {
					spans[i].To = time.UnixMilli(at - 1)
				}
			}
			continue
		}
		stay = append(stay, part)
	}
	r.Spans = nil
	for i, span := range spans {
		if span.From.Before(span.To) || i == len(spans)-1 {
			r.Spans = append(r.Spans, span)
		}
	}
	r.Recent, r.Used = stay, max(0, r.Used-back)
	return back
}

// Recur writes a spec. Later occurrences that were planned by the previous spec are removed.
func (q *Queue) Recur(name, before, spec, times string, paused bool) lua.Recurred {
	r := q.Recurrences[name]
	version := lua.SpecVersion(spec)
	switch {
	case r.Version == version && r.Spec == spec:
		return lua.Recurred{Same: true, Plan: r.plan()}
	case before != "" && r.Spec != before && r.Spec != spec:
		return lua.Recurred{Plan: r.plan()}
	}
	from := q.Now
	if paused {
		from = 0
	}
	back := q.takeBack(name, &r, from)
	if r.Times != times {
		r.Spans = []lua.Span{{From: time.UnixMilli(q.Now), To: time.UnixMilli(q.Now)}}
	}
	r.Spec, r.Version, r.Times = spec, version, times
	q.Recurrences[name] = r
	return lua.Recurred{Written: true, TakenBack: back, Plan: r.plan()}
}

// RemoveRecurrence removes the spec and all messages that were planned by it.
func (q *Queue) RemoveRecurrence(name string) (removed bool, back int) {
	r := q.Recurrences[name]
	back = q.takeBack(name, &r, 0)
	delete(q.Recurrences, name)
	return r.Spec != "", back
}

// Plan schedules occurrences and stores the new plan in the same step, if the stored plan is still the given one.
func (q *Queue) Plan(name, before string, spans []lua.Span, payload, meta string,
	occurrences []lua.Occurrence) (ok bool, plan string) {
	r := q.Recurrences[name]
	if r.plan() != before || r.Spec == "" {
		return false, r.plan()
	}
	var waits, newestGone []string // the parts after "@"
	for _, part := range r.Recent {
		at, _ := strconv.ParseInt(part, 10, 64) // 0 for one that was run by hand
		_, ok := q.Scheduled[name+"@"+part]
		if ok || at > spans[len(spans)-1].To.UnixMilli() {
			waits = append(waits, part)
		} else {
			newestGone = []string{part} // of those that have left the schedule, only the newest is kept
		}
	}
	if len(occurrences) > 0 {
		r.Recent = slices.Concat(newestGone, waits)
	}
	for _, o := range occurrences {
		part := decimal(o.At.UnixMilli())
		id := name + "@" + part
		if _, known := q.Scheduled[id]; !known { // otherwise the ID belongs to a message of somebody else
			r.Recent = append(slices.Clip(r.Recent), part)
			q.Scheduled[id] = NewMessage(id, float64(o.Due.UnixMilli()), payload, meta)
		}
	}
	r.Spans, r.Used = spans, r.Used+len(occurrences)
	q.Recurrences[name] = r
	return true, r.plan()
}

// Run schedules a message of a recurrence that is due now. If alone is set, occurrences that are planned for later are
// removed, to be planned anew after this message.
func (q *Queue) Run(name, payload, meta string, alone bool) (id string, due time.Time, ok bool) {
	r := q.Recurrences[name]
	if r.Spec == "" {
		return "", time.UnixMilli(-1), false
	}
	part := ""
	for n := q.Now; ; n++ {
		part = decimal(n) + lua.RunSuffix
		_, waits := q.Scheduled[name+"@"+part]
		if !waits && (len(r.Recent) == 0 || r.Recent[len(r.Recent)-1] != part) {
			break
		}
	}
	if alone && r.Version != "" {
		q.takeBack(name, &r, q.Now)
	}
	if r.Version != "" {
		r.Recent = append(slices.Clip(r.Recent), part)
	}
	id = name + "@" + part
	q.Scheduled[id] = NewMessage(id, float64(q.Now), payload, meta)
	q.Recurrences[name] = r
	return id, time.UnixMilli(q.Now), true
}
