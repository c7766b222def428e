package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

const (
	idleTime    = 30 * time.Minute // the visibility timeout; an abandoned entry is made to look idle for twice as long
	tokenWindow = 10 * time.Minute
	plenty      = 1 << 20 // a limit in bytes that no step reaches
	ownID       = "fresh" // how an ID begins that no other message has
	unknown     = "1-1"   // an entry ID and a dead-letter ID that never existed
)

var (
	idNames   = []string{"a", "b", "c"}
	consumers = []string{"w1", "w2"}
	policies  = []lua.Attempts{
		{Max: 3, Delays: []time.Duration{0, time.Hour}},
		{Max: 2, Delays: []time.Duration{2 * time.Hour}},
		{Max: 3, Delays: []time.Duration{0, time.Hour}, For: 90 * time.Minute, MaxSnoozes: 2, MaxCrashes: 1},
		{Max: 2, Delays: []time.Duration{0, time.Hour}, MaxCrashes: 3},
	}
)

// memory holds the tokens, cursors and IDs that callers keep from one call to the next.
type memory struct {
	token   lua.Token         // of the last enqueue that had a token
	items   []lua.Item        // of the same enqueue
	tokens  int               // number of tokens
	serials *int              // number of serials in payloads, shared by all partitions of a queue
	sweep   string            // the cursor of trim
	cursors map[string]string // cursors of reclaim, by group
	turns   lua.TurnsPassed   // where the last sweep of keys stopped
}

// actions are the steps of a sequence. Rapid prefers names that sort early, so the steps that move messages on are
// listed twice.
func (r *sequence) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){"": func(*rapid.T) { r.audit() }}
	for i, step := range []struct {
		name string
		do   func()
	}{
		{"enqueue", r.enqueue}, {"drain", r.drain}, {"read", r.read}, {"fail", r.fail}, {"time", r.pass},
		{"abandon", r.abandon},
		{"reclaim", r.reclaim},
		{"ack", r.ack}, {"enqueue", r.enqueue}, {"drain", r.drain}, {"read", r.read}, {"fail", r.fail},
		{"time", r.pass},
		{"ack plainly", r.ackPlainly}, {"trim", r.trim}, {"extend", r.extend}, {"redrive", r.redrive},
		{"repeat", r.repeat},
		{"skip", r.skip},
		{"cancel", r.cancel}, {"reschedule", r.reschedule}, {"produce plainly", r.produce}, {"claim", r.claim},
		{"cancel retries", r.cancelRetries}, {"reschedule retries", r.rescheduleRetries},
		{"expire", r.expire},
		{"read history", r.readHistory}, {"create group", r.createGroup}, {"lose body", r.loseBody},
		{"damage meta", r.damageMeta},
		{"add entry", r.addEntry}, {"purge", r.purge}, {"hold", r.hold}, {"limit", r.limit}, {"survey", r.survey},
		{"drop consumers", r.dropConsumers}, {"destroy group", r.destroyGroup}, {"read", r.read}, {"recur", r.recur},
		{"plan", r.plan}, {"plan", r.plan}, {"run", r.runByHand}, {"remove recurrence", r.removeRecurrence},
		{"pass turns", r.passTurns}, {"lose turns", r.loseTurns}, {"receive", r.receive},
		{"withdraw", r.withdraw}, {"withdraw", r.withdraw}, {"withdraw", r.withdraw}, {"find entries", r.findEntries},
	} {
		actions[fmt.Sprintf("%02d %s", i, step.name)] = func(*rapid.T) { step.do() }
	}
	return actions
}

// skipIf makes rapid draw another step if this step cannot do anything.
func (r *sequence) skipIf(futile bool) {
	if futile {
		r.SkipNow()
	}
}

// pick draws one of the values, for the argument what. A value that is listed twice is drawn more often.
func pick[T any](r *sequence, what string, from ...T) T {
	return rapid.SampledFrom(from).Draw(r.T, what)
}

// seldom draws true in about one of ten cases.
func seldom(r *sequence, what string) bool {
	return pick(r, what, false, false, false, false, false, false, true, false)
}

// payload returns a new payload, which begins with a serial that the ledger follows.
func (r *sequence) payload() []byte {
	*r.serials++
	return fmt.Appendf(nil, "m%d:%s", *r.serials,
		pick(r, "body", "", "\x00\xff", "a longer payload that matters to limits by bytes"))
}

// at returns a point in time, counted from before the first step.
func (r *sequence) at(d time.Duration) time.Time { return time.UnixMilli(r.start).Add(d) }

func (r *sequence) when() lua.When {
	return pick(r, "when", lua.After(0), lua.After(time.Hour), lua.After(3*time.Hour), lua.At(r.at(-time.Hour)),
		lua.At(r.at(2*time.Hour)))
}

// invalidDelays are lists of delays that count as none: the policy decides.
var invalidDelays = []lua.Delays{"soon", "1,,2", "0", "1,", "1, 2", "315360000001"}

func (r *sequence) meta() string {
	most, expires := pick(r, "max_attempts", 0, 0, 2, 1), pick(r, "expires", 0, 0, 0, 0, 0, 2*time.Hour, -time.Hour, 0)
	headers := pick(r, "headers", nil, map[string]string{"trace": "grün/7", "": "x"})
	more := pick(r, "retries", lua.Retries{}, lua.Retries{}, lua.Retries{}, lua.Retries{Delays: "1,7200000"},
		lua.Retries{For: 2 * time.Hour}, lua.Retries{Delays: "3600000,0"},
		lua.Retries{Delays: pick(r, "invalid", invalidDelays...), For: time.Millisecond},
		lua.Retries{Delays: pick(r, "invalid", invalidDelays...)},
		lua.Retries{MaxSnoozes: 1}, lua.Retries{MaxCrashes: 2}).Fields()
	if key := pick(r, "key", append(keys, "", "", "", "")...); key != "" {
		more = append(more, lua.FieldValue{Field: lua.FieldKey, Value: key})
	}
	if expires == 0 {
		return lua.EncodeMeta(headers, most, time.Time{}, more...)
	}
	return lua.EncodeMeta(headers, most, r.at(expires), more...)
}

// junk returns a meta that no client of this module writes.
func (r *sequence) junk() string {
	if seldom(r, "any bytes") {
		return string(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(r.T, "bytes"))
	}
	if seldom(r, "any texts") {
		return fmt.Sprintf(`{"%s":"%s"}`, rapid.String().Draw(r.T, "name"), rapid.String().Draw(r.T, "value"))
	}
	return pick(r, "junk", oddMetas...)
}

// oddMetas are metas that no client of this module writes. Some of them are sound.
var oddMetas = []string{
	"junk", `{}`, `null`, `[]`, `["a"]`, `"x"`, `5`, `{"max_attempts":5}`,
	`{"h:a":"b","h:ü":"世\u4e16\ud83d\ude80","color":"\"\\\/\b\f\n\r\t"}`,
	`{"h:a":null}`, `{"h:a":1}`, `{"h:a":true}`, `{"h:a":{"b":"c"}}`, `{"h:a":[]}`,
	`{"h:a":"b"`, `{"h:a":"b"}}`, `{"h:a":"b"} x`, `{"h:a":"b",}`, "\ufeff{}", "\v{}",
	"{\"h:a\":\"\xff\"}", `{"h:a":"\ud800"}`, `{"h:a":"\udc00\ud800"}`, `{"h:a":"\\ud800"}`,
	`{"h:a":"\u0000"}`, "{\"h:a\":\"\x00\"}", "{\"h:a\":\"b\"}\x00{\"h:c\":\"d\"}", "\x00{}", "{}\x00",
	"{\"h:a\":\"\\\x16\"}", "{\"h:a\":\"\x16\"}", "{\"\":\"\\\x16\"}",
	`{"id":""}`, `{"id":"\u001f"}`, `{"key":""}`, `{"attempt":"0"}`, `{"attempt":"1e3"}`,
	`{"max_attempts":"1000000000000000"}`,
	`{"expires_ms":"soon"}`, `{"expires_ms":"1"}`, `{"expires_ms":"999999999999999"}`,
	`{"payload":"x"}`, `{"due_ms":"5"}`, `{"":""}`,
	`{"h:a":"1","h:a":"2"}`, `{"h:a":1,"h:a":"2"}`, `{"h:a":"2","h:a":null}`, " \t\r\n{ \"h:a\" : \"b\" } ",
	`{"h:a":NaN}`, `{"h:a":0x10}`, `{'h:a':'b'}`, `{"h:a":"\x41"}`, `{"meta":"x","raw":"y"}`,
	`{"h:a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`,
}

func (r *sequence) enqueue() {
	token := lua.Token{Window: tokenWindow}
	if pick(r, "token", true, true, false) {
		r.tokens++
		token.Name = fmt.Sprint("call", r.tokens)
		if pick(r, "done", true, false) {
			token.Done = r.token.Name
		}
	}
	items := make([]lua.Item, pick(r, "items", 1, 1, 2, 3))
	for i := range items {
		items[i] = lua.Item{ID: pick(r, "id", idNames...), When: r.when(), Payload: r.payload(), Meta: r.meta()}
		if seldom(r, "malformed") {
			items[i].Meta = r.junk()
		}
		if items[i].Dedup = pick(r, "dedup", lua.Refuse, lua.Fresh, lua.Window(2*time.Hour), lua.Replace,
			lua.ReplaceLater, lua.ReplaceEarlier); items[i].Dedup == lua.Fresh &&
			pick(r, "own ID", true, false) {
			items[i].ID = fmt.Sprint(ownID, *r.serials)
		}
	}
	r.call(enqueueCall{}, token, items)
	if token.Name != "" {
		r.token, r.items = token, items
	}
}

// repeat does what a client does when the reply was lost. It repeats a call while the server remembers its token. It
// also repeats a call that EnqueueOne accepts and does not remember, while the only message of the call is scheduled.
func (r *sequence) repeat() {
	scheduled := false
	if len(r.items) == 1 && strings.HasPrefix(r.items[0].ID, ownID) {
		_, scheduled = r.q.Scheduled[r.items[0].ID]
	}
	isRemembered := r.q.Calls[r.token.Name].Ends > r.last
	mayUseOne := scheduled && !r.keeps && lua.AllFresh(r.items, time.UnixMilli(r.last)) &&
		!slices.Contains(r.q.Calls[r.token.Done].Refused, true)
	r.skipIf(!isRemembered && !mayUseOne)
	r.call(enqueueCall{isRepeat: true, mustUseOne: !isRemembered}, r.token, r.items)
}

// enqueueCall tells what kind of enqueue call is made.
type enqueueCall struct {
	isRepeat   bool // the reply of the same call was lost before
	mustUseOne bool // no other way than EnqueueOne is right
}

// call sends an enqueue call, and records accepted and replaced messages in the ledger. If all IDs are new, it sends
// the call by EnqueueFresh or EnqueueOne in some cases, as a client does.
func (r *sequence) call(kind enqueueCall, token lua.Token, items []lua.Item) {
	before, fresh := r.q, lua.AllFresh(items, time.UnixMilli(r.last))
	for _, item := range items {
		fresh = fresh && strings.HasPrefix(item.ID, ownID)
	}
	fresh = fresh && !slices.Contains(before.Calls[token.Done].Refused, true) && pick(r, "fresh", true, false)
	fresh = fresh || kind.mustUseOne
	one := kind.mustUseOne || fresh && len(items) == 1 && !r.keeps && pick(r, "one", true, false)
	what := fmt.Sprintf("enqueue %+v %+v %s, fresh: %v, one: %v", kind, token, showItems(items), fresh, one)
	receipts := step(r, what, func(ctx context.Context) ([]lua.Receipt, error) {
		if one {
			receipt, taken, err := lua.EnqueueOne(ctx, r.c, r.k, token, kind.isRepeat, items[0])
			if err == nil && !taken {
				err = errors.New("the message was not taken")
			}
			return []lua.Receipt{receipt}, err
		}
		if fresh {
			return lua.EnqueueFresh(ctx, r.c, r.k, token, items)
		}
		return lua.Enqueue(ctx, r.c, r.k, token, items, lua.Durability{})
	}, func(q *Queue, _ []lua.Receipt) []lua.Receipt {
		if one {
			return q.EnqueueOne(token, kind.isRepeat, items[0])
		}
		for _, item := range items {
			// A repeat writes again what the call writes outside the script, so it undoes any damage done meanwhile.
			if m, there := q.Scheduled[item.ID]; there && fresh && item.Meta != "" {
				q.Scheduled[item.ID] = NewMessage(item.ID, m.Due, m.Payload, item.Meta)
			}
		}
		return q.Enqueue(token, items)
	})
	last := map[string]lua.Item{} // by ID, for the IDs that are scheduled
	for i, receipt := range receipts {
		if receipt.Verdict <= lua.Duplicate || receipt.Verdict == lua.Repeated { // refused, or taken by an earlier call
			continue
		}
		if old, replaced := last[items[i].ID]; replaced {
			r.book.withdraw(Message{Payload: string(old.Payload)})
		} else if old, replaced := before.Scheduled[items[i].ID]; replaced {
			r.book.withdraw(old)
		}
		r.book.accept(items[i].Payload)
		if delete(last, items[i].ID); receipt.Verdict != lua.Ready {
			last[items[i].ID] = items[i]
		}
	}
}

func showItems(items []lua.Item) (out []string) {
	for _, it := range items {
		out = append(out, fmt.Sprintf("{%s at %s payload %.8q meta %s dedup %q}",
			it.ID, it.When, it.Payload, it.Meta, it.Dedup))
	}
	return out
}

func (r *sequence) cancel() {
	r.skipIf(len(r.q.Scheduled) == 0)
	known := append(r.q.Order(), idNames...) // a bulk change also cancels retries by their members
	r.cancelIDs(pick(r, "id", known...), pick(r, "id", known...))
}

func (r *sequence) cancelIDs(ids ...string) {
	before := r.q
	done := step(r, fmt.Sprint("cancel ", ids), func(ctx context.Context) ([]bool, error) {
		return lua.Cancel(ctx, r.c, r.k, ids, lua.Durability{})
	}, func(q *Queue, _ []bool) []bool { return q.Cancel(ids) })
	for i, id := range ids {
		if done[i] {
			r.book.withdrawRetry(before.Scheduled[id], lua.ParseMember(id).Group)
		}
	}
}

// withdraw removes a message that another partition has now, as an operator exported it. Meanwhile it may have changed,
// or begun or ended to wait for its key.
func (r *sequence) withdraw() {
	r.skipIf(len(r.q.Scheduled) == 0)
	members := r.q.Order()
	var inLineOrHolding []string // a message that waits for its key has a place in line, and a retry may hold its key
	for _, member := range members {
		m := r.q.Scheduled[member]
		if m.key() != "" && (isParked(m.Due) || strings.Contains(member, lua.Separator)) {
			inLineOrHolding = append(inLineOrHolding, member)
		}
	}
	if len(inLineOrHolding) > 0 && pick(r, "in line or holding", true, true, false) {
		members = inLineOrHolding
	}
	member := pick(r, "member", members...)
	m := r.q.Scheduled[member]
	one := lua.Exported{Member: member, Score: score(m.Due), Payload: []byte(m.Payload), Meta: m.Raw}
	switch pick(r, "change", "none", "none", "none", "turn", "turn", "due", "payload", "no payload", "meta", "gone") {
	case "turn":
		one.Score = score(ownDue(m.Due))
	case "due":
		one.Score = score(m.Due - 1000)
	case "payload":
		one.Payload = bytes.ToUpper(one.Payload)
	case "no payload":
		one.Payload = nil
	case "meta":
		one.Meta = strings.ToUpper(one.Meta)
	case "gone":
		one.Member += "x"
	}
	before := r.q
	removed := step(r, fmt.Sprintf("withdraw %+q", one), func(ctx context.Context) (bool, error) {
		return lua.Withdraw(ctx, r.c, r.k, one)
	}, func(q *Queue, _ bool) bool { return q.Withdraw(one) })
	if removed {
		r.book.withdrawRetry(before.Scheduled[member], lua.ParseMember(member).Group)
	}
}

func (r *sequence) reschedule() {
	type reply struct {
		due   int64
		moved bool
	}
	r.skipIf(len(r.q.Scheduled) == 0)
	id, to := pick(r, "id", idNames...), r.when()
	step(r, fmt.Sprintf("reschedule %s to %s", id, to), func(ctx context.Context) (reply, error) {
		due, moved, err := lua.Reschedule(ctx, r.c, r.k, id, to, lua.Durability{})
		return reply{due.UnixMilli(), moved}, err
	}, func(q *Queue, _ reply) reply {
		due, moved := q.Reschedule(id, to)
		return reply{due, moved}
	})
}

// produce is a producer that does not use the scripts: it sends a bare ZADD, or the transaction of the protocol,
// which replaces what is scheduled.
func (r *sequence) produce() {
	ms := float64(r.start)
	id := pick(r, "member", append(idNames[:3:3], "", "\xff")...)
	due := pick(r, "due", ms-3.6e6, ms+7.2e6, ms-0.5, ms+3.6e6+0.5, 5, 1e15, math.Inf(-1))
	add := []string{"ZADD", r.k.Due, score(due), id}
	if old := r.q.Scheduled[id]; pick(r, "bare", true, false) {
		r.plain(fmt.Sprintf("bare %q", add), [][]string{add},
			func(q *Queue) { q.Scheduled[id] = NewMessage(id, due, old.Payload, old.Raw) })
		return
	}
	payload, meta := string(r.payload()), r.junk()
	if pick(r, "well-formed", true, false) {
		meta = r.meta()
	}
	r.book.withdraw(r.q.Scheduled[id])
	write := []string{"HSET", r.k.Meta, id, meta}
	if meta == "" {
		write = []string{"HDEL", r.k.Meta, id}
	}
	r.plain(fmt.Sprintf("transaction %q %.8q %s", add, payload, meta), [][]string{
		{"MULTI"}, {"HSET", r.k.Payload, id, payload}, write, add, {"EXEC"},
	}, func(q *Queue) { q.Scheduled[id] = NewMessage(id, due, payload, meta) })
	r.book.accept([]byte(payload))
}

func (r *sequence) drain() {
	r.skipIf(len(r.q.Scheduled) == 0)
	r.drainUpTo(pick(r, "limit", 100, 2, 1), pick(r, "max_bytes", plenty, plenty, 60, 1))
}

func (r *sequence) drainUpTo(limit, maxBytes int) lua.Drained {
	before := r.seen.newest
	defer func() { r.inOrder(before) }()
	return step(r, fmt.Sprintf("drain %d, %d bytes", limit, maxBytes), func(ctx context.Context) (lua.Drained, error) {
		d, err := lua.Drain(ctx, r.c, r.k, limit, maxBytes)
		d = withoutTimes(r.q, d)
		if d.Wait > 0 { // the model's clock counts whole milliseconds
			d.Wait = (d.Wait + time.Millisecond - 1).Truncate(time.Millisecond)
		}
		return d, err
	}, func(q *Queue, _ lua.Drained) lua.Drained { return withoutTimes(q, q.Drain(limit, maxBytes)) })
}

func (r *sequence) trim() {
	r.skipIf(len(r.q.Stream)+len(r.seen.windows) == 0)
	r.trimUpTo(pick(r, "limit", 1, 2, 100), pick(r, "max_bytes", plenty, 0))
}

func (r *sequence) trimUpTo(limit, maxBytes int) lua.Trimmed {
	cursor := r.sweep
	text := fmt.Sprintf("trim from %q, %d, %d bytes", cursor, limit, maxBytes)
	t := step(r, text, func(ctx context.Context) (lua.Trimmed, error) {
		return lua.Trim(ctx, r.c, r.k, cursor, limit, maxBytes)
	}, func(q *Queue, got lua.Trimmed) lua.Trimmed {
		want := q.Trim(cursor, limit, maxBytes, got)
		want.Leases = got.Leases // the model has no notes of leases
		if r.clients && got.Windows < want.Windows {
			want.Windows = got.Windows // a client has forgotten its last call meanwhile
		}
		return want
	})
	r.sweep = t.Cursor
	return t
}

// pass lets time pass: due times, expiries and ends of windows move nearer.
func (r *sequence) pass() {
	r.skipIf(len(r.q.Scheduled)+len(r.seen.windows) == 0)
	r.passBy(pick(r, "time", time.Hour, 30*time.Minute, 5*time.Hour))
}

func (r *sequence) passBy(d time.Duration) {
	past := r.q.clone()
	past.Pass(d)
	var commands [][]string
	for _, member := range past.Order() {
		m := past.Scheduled[member]
		commands = append(commands, []string{"ZADD", r.k.Due, "XX", score(m.Due), member})
		if m.Raw != r.q.Scheduled[member].Raw {
			commands = append(commands, []string{"HSET", r.k.Meta, member, m.Raw})
		}
	}
	for _, window := range r.seen.windows {
		back := strconv.FormatInt(-d.Milliseconds(), 10)
		commands = append(commands, []string{"ZINCRBY", r.k.Seen, back, window.Member})
	}
	if notes := slices.Sorted(maps.Keys(past.Turns)); len(notes) > 0 {
		add := []string{"ZADD", r.k.Turns}
		for _, note := range notes {
			add = append(add, "0", note)
		}
		commands = append(commands, []string{"DEL", r.k.Turns}, add)
	}
	if len(commands) > 0 {
		r.plain("clock: "+d.String()+" pass", commands, func(q *Queue) { q.Pass(d) })
	}
}

// damageMeta overwrites the meta of a scheduled member, which may be a retry.
func (r *sequence) damageMeta() {
	members := r.q.Order()
	r.skipIf(len(members) == 0)
	member, meta := members[pick(r, "member", indices(members)...)], r.junk()
	text := fmt.Sprintf("HSET of meta %q %s", member, meta)
	r.plain(text, [][]string{{"HSET", r.k.Meta, member, meta}}, func(q *Queue) {
		m := q.Scheduled[member]
		q.Scheduled[member] = NewMessage(member, m.Due, m.Payload, meta)
	})
}

// settle runs the queue to its end: everything becomes due, is delivered to every group, is acknowledged and is
// freed. Nothing may be left.
func (r *sequence) settle() {
	r.empty()
	r.noneOwed()
}

// empty is settle for one partition. It does not check what groups are still owed, because another partition may have
// those messages.
func (r *sequence) empty() {
	r.setHeld(false)
	r.setFlow(Flow{})
	if len(r.q.Groups) == 0 {
		r.ensureGroup(groupNames[0]) // without a group, nothing is ever freed
	}
	for _, member := range r.q.Order() {
		if due := r.q.Scheduled[member].Due; due >= never && !isParked(due) {
			r.cancelIDs(member)
		}
	}
	const longerThanEveryDelay = 240 * time.Hour
	r.passBy(longerThanEveryDelay)
	r.deliverAll()
	for len(r.q.Dead) > 0 {
		r.purgeLetter(r.q.Dead[0])
	}
	for t := r.trimUpTo(5, plenty); t.Freed > 0 || t.Cursor != "" || t.Windows > 0; t = r.trimUpTo(5, plenty) {
	}
	r.audit()
	r.survey()
	for name, g := range r.q.Groups {
		if len(g.Pending) > 0 {
			r.refuse("%s still holds %v", name, g.Pending)
		}
	}
	if q := r.seen; len(q.Scheduled)+len(q.Stream)+len(q.Dead)+len(q.windows)+len(q.Turns) > 0 {
		r.refuse("left over:\n%v\nwindows %v", q.lines(0), q.windows)
	}
}

// noneOwed checks that every group was given everything.
func (r *sequence) noneOwed() {
	for group, owed := range r.book.owed {
		if len(owed) > 0 || len(r.book.waiting) > 0 {
			r.refuse("%s was never done with %v; never ready: %v", group, owed, r.book.waiting)
		}
	}
}

// Steps of workers and groups.

// group picks a group that fits. If there is none, rapid draws another step.
func (r *sequence) group(fits func(Group) bool) string {
	var fitting []string
	for _, name := range slices.Sorted(maps.Keys(r.q.Groups)) {
		if fits(r.q.Groups[name]) {
			fitting = append(fitting, name)
		}
	}
	r.skipIf(len(fitting) == 0)
	return pick(r, "group", append(fitting, fitting...)...)
}

func exists(Group) bool { return true }

func holds(g Group) bool { return len(g.Pending) > 0 }

// holder picks a group that holds entries; seldom one that may not exist.
func (r *sequence) holder() string {
	group := r.group(holds)
	if seldom(r, "any group") {
		return pick(r, "group", groupNames...)
	}
	return group
}

func (r *sequence) pending(group string) []string {
	return slices.SortedFunc(maps.Keys(r.q.Groups[group].Pending), view.CompareEntries)
}

// held picks entries that a worker believes to hold. Mostly its group does hold them.
func (r *sequence) held(group string) []lua.Held {
	from := r.pending(group)
	if len(from) == 0 || seldom(r, "not held") {
		from = append(from, unknown)
		for _, e := range r.q.Stream {
			from = append(from, e.ID) // not read, done already, or held by another worker
		}
	}
	held := make([]lua.Held, pick(r, "entries", 1, 1, 2, 3))
	for i := range held {
		held[i].Entry = from[pick(r, "entry", indices(from)...)]
		if e := r.q.entry(held[i].Entry); e != nil && pick(r, "with ID", false, true) {
			held[i].ID = e.messageID()
		} else if seldom(r, "another ID") {
			held[i].ID = "another" // possible after a failover
		}
		held[i].Key = r.toldKey(held[i].Entry)
	}
	return held
}

func (r *sequence) read() {
	last := ""
	if n := len(r.q.Stream); n > 0 {
		last = r.q.Stream[n-1].ID
	}
	r.deliver(r.group(func(g Group) bool { return less(g.Last, last) }), pick(r, "consumer", consumers...),
		pick(r, "count", 10, 1, 2))
}

// receive reads for a caller with a lease time of its own.
func (r *sequence) receive() {
	group, consumer := r.group(exists), pick(r, "consumer", consumers...)
	idle, n := pick(r, "idle", 0, 2*idleTime), pick(r, "count", 10, 1, 2)
	what := fmt.Sprintf("%s of %s receives %d, idle for %s", consumer, group, n, idle)
	step(r, what, func(ctx context.Context) (string, error) {
		got, err := lua.Receive(ctx, r.c, r.k, group, consumer, 0, idle, n)
		var ids []string
		for _, e := range got.Entries {
			ids = append(ids, e.EntryID)
		}
		return fmt.Sprint(ids, got.Last), err
	}, func(q *Queue, _ string) string {
		given, last := q.Receive(group, consumer, idle > 0, n)
		return fmt.Sprint(given, last)
	})
}

func (r *sequence) deliver(group, consumer string, n int) {
	words := []string{"XREADGROUP", "GROUP", group, consumer, "COUNT", strconv.Itoa(n), "STREAMS", r.k.Stream, ">"}
	r.plain(fmt.Sprintf("read of %d by %s of %s", n, consumer, group), [][]string{words},
		func(q *Queue) { q.Read(group, consumer, n) })
}

// skip acknowledges entries for other groups, as workers do that know the field "for".
func (r *sequence) skip() {
	skipped := false
	for _, group := range groupNames {
		skipped = r.ackAll(group, func(id string) bool {
			e := r.q.entry(id)
			return e != nil && !isFor(e.Fields[lua.FieldFor], group)
		}) || skipped
	}
	r.skipIf(!skipped)
}

func (r *sequence) ackAll(group string, which func(id string) bool) bool {
	var held []lua.Held
	for _, id := range r.pending(group) {
		if which(id) {
			held = append(held, lua.Held{Entry: id})
		}
	}
	if len(held) > 0 {
		r.ackHeld(group, held)
	}
	return len(held) > 0
}

func (r *sequence) ack() {
	group := r.holder()
	r.ackHeld(group, r.held(group))
}

func (r *sequence) ackHeld(group string, held []lua.Held) {
	before := r.q
	done := step(r, fmt.Sprintf("ack by %s of %v", group, held), func(ctx context.Context) ([]bool, error) {
		return lua.Ack(ctx, r.c, r.k, group, held)
	}, func(q *Queue, _ []bool) []bool { return q.Ack(group, held) })
	for i, h := range held {
		if done[i] {
			r.book.done(group, before.entry(h.Entry), h.Entry)
		}
	}
}

func (r *sequence) ackPlainly() {
	group := r.holder()
	r.xack(group, r.held(group))
}

func (r *sequence) xack(group string, held []lua.Held) {
	before := r.q
	words := []string{"XACK", r.k.Stream, group}
	for _, h := range held {
		words = append(words, h.Entry)
	}
	r.plain(fmt.Sprintf("%q", words), [][]string{words}, func(q *Queue) {
		for _, h := range held {
			delete(q.Groups[group].Pending, h.Entry)
		}
	})
	for _, h := range held {
		if _, pending := before.Groups[group].Pending[h.Entry]; pending {
			r.book.done(group, before.entry(h.Entry), h.Entry)
		}
	}
}

// fail fails entries of any worker, even of a worker that ignores the field "for" and got an entry for another group.
func (r *sequence) fail() {
	group, policy := r.holder(), pick(r, "policy", policies...)
	var failures []lua.Failure
	for _, h := range r.held(group) {
		failures = append(failures, lua.Failure{
			Held: h,
			Action: pick(r, "action",
				lua.ActionRetry, lua.ActionRetry, lua.ActionDead, lua.ActionRelease, lua.ActionSnooze),
			Delay:  pick(r, "delay", -1, -1, 0, time.Hour),
			Error:  pick(r, "error", "no", ""),
			Reason: pick(r, "reason", lua.ReasonMaxAttempts, lua.ReasonDeadLetter),
			Trace:  pick(r, "trace", "", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
		})
	}
	for i := range failures {
		if f := &failures[i]; f.Action == lua.ActionSnooze {
			f.Delay = max(0, f.Delay)
		}
	}
	text := fmt.Sprintf("fail by %s, policy %v: %+v", group, policy, failures)
	step(r, text, func(ctx context.Context) ([]lua.Outcome, error) {
		return lua.Retry(ctx, r.c, r.k, group, policy, failures)
	}, func(q *Queue, _ []lua.Outcome) []lua.Outcome { return q.Retry(group, policy, failures) })
}

// abandon makes an entry look as if its worker had died: idle, with an unchanged delivery counter.
func (r *sequence) abandon() {
	group := r.group(holds)
	pending := slices.DeleteFunc(r.pending(group), func(id string) bool { return r.q.entry(id) == nil })
	r.skipIf(len(pending) == 0)
	id := pending[pick(r, "entry", indices(pending)...)]
	p := r.q.Groups[group].Pending[id]
	idle := strconv.FormatInt(2*idleTime.Milliseconds(), 10)
	r.plain(fmt.Sprintf("abandoning of %s in %s", id, group),
		[][]string{{"XCLAIM", r.k.Stream, group, p.Consumer, "0", id, "IDLE", idle, "JUSTID"}}, func(q *Queue) {
			p.Idle = true
			q.Groups[group].Pending[id] = p
		})
}

func (r *sequence) reclaim() {
	args := lua.ReclaimArgs{
		Group:    r.holder(),
		Attempts: pick(r, "policy", policies...),
		MinIdle:  pick(r, "min_idle", idleTime, idleTime, 0),
		Limit:    pick(r, "limit", 100, 2, 1),
		MaxBytes: pick(r, "max_bytes", plenty, plenty, 150, 1),
	}
	args.Cursor = r.cursors[args.Group]
	reclaimed := step(r, fmt.Sprintf("reclaim %+v", args), func(ctx context.Context) (lua.Reclaimed, error) {
		reclaimed, err := lua.Reclaim(ctx, r.c, r.k, args)
		return reclaimed, r.ignoreAbsentGroup(args.Group, err)
	}, func(q *Queue, got lua.Reclaimed) lua.Reclaimed {
		want := q.Reclaim(args, got.Cursor)
		want.MoreLeases = got.MoreLeases // the model has no notes of leases
		return want
	})
	r.cursors[args.Group] = reclaimed.Cursor
}

func (r *sequence) extend() {
	group, consumer := r.holder(), pick(r, "consumer", consumers...)
	held := r.held(group)
	if p, ok := r.q.Groups[group].Pending[held[0].Entry]; ok && !seldom(r, "another's") {
		consumer = p.Consumer
	}
	text := fmt.Sprintf("extend by %s of %s: %v", consumer, group, held)
	step(r, text, func(ctx context.Context) ([]lua.Extended, error) {
		answers, err := lua.Extend(ctx, r.c, r.k, group, consumer, held)
		if _, there := r.q.Groups[group]; !there {
			answers = make([]lua.Extended, len(held))
		}
		return answers, r.ignoreAbsentGroup(group, err)
	}, func(q *Queue, _ []lua.Extended) []lua.Extended { return q.Extend(group, consumer, held) })
}

// ignoreAbsentGroup returns nil for ErrNoGroup if the group does not exist. It returns every other error.
func (r *sequence) ignoreAbsentGroup(group string, err error) error {
	if _, ok := r.q.Groups[group]; !ok && errors.Is(err, lua.ErrNoGroup) {
		return nil
	}
	return err
}

func (r *sequence) createGroup() { r.ensureGroup(pick(r, "group", groupNames...)) }

func (r *sequence) ensureGroup(group string) {
	step(r, "ensure group "+group, func(ctx context.Context) (bool, error) {
		return lua.EnsureGroup(ctx, r.c, r.k, group)
	}, func(q *Queue, _ bool) bool { return q.EnsureGroup(group) })
}

func (r *sequence) destroyGroup() {
	group := r.group(exists)
	if pick(r, "spare", true, false) {
		return
	}
	r.plain("XGROUP DESTROY of "+group, [][]string{{"XGROUP", "DESTROY", r.k.Stream, group}},
		func(q *Queue) { delete(q.Groups, group) })
	r.book.destroyed(group, r.q)
}

func (r *sequence) dropConsumers() {
	group := r.group(exists)
	names := append([]string{"nobody"}, consumers...)
	step(r, "drop consumers of "+group, func(ctx context.Context) (int, error) {
		return lua.DropConsumers(ctx, r.c, r.k, group, names)
	}, func(q *Queue, _ int) int { return q.DropConsumers(group, names) })
}

// loseBody deletes an entry by XDEL, as another program might. A group that holds the entry gets a dead letter. A group
// that it was not delivered to gets nothing.
func (r *sequence) loseBody() {
	r.skipIf(len(r.q.Stream) == 0)
	e := r.q.Stream[pick(r, "entry", indices(r.q.Stream)...)]
	r.plain("XDEL of entry "+e.ID, [][]string{{"XDEL", r.k.Stream, e.ID}}, func(q *Queue) { q.Lose(e.ID) })
	for name, g := range r.q.Groups {
		if _, pending := g.Pending[e.ID]; !pending && g.needs(e.ID) {
			r.book.done(name, &e, e.ID)
		}
	}
}

// claim makes an XCLAIM without JUSTID, which a worker must not do, because it counts as an attempt. It claims only
// entries with a body, because Redis drops others from the pending list.
func (r *sequence) claim() {
	group := r.group(holds)
	pending := slices.DeleteFunc(r.pending(group), func(id string) bool { return r.q.entry(id) == nil })
	r.skipIf(len(pending) == 0)
	id, consumer := pending[pick(r, "entry", indices(pending)...)], pick(r, "consumer", consumers...)
	r.plain(fmt.Sprintf("XCLAIM of %s by %s of %s", id, consumer, group),
		[][]string{{"XCLAIM", r.k.Stream, group, consumer, "0", id}}, func(q *Queue) {
			q.Groups[group].Pending[id] = Pending{consumer, q.Groups[group].Pending[id].Deliveries + 1, false}
		})
}

// readHistory reads what a worker holds already. Redis counts that as deliveries.
func (r *sequence) readHistory() {
	group, consumer := r.group(holds), pick(r, "consumer", consumers...)
	words := []string{"XREADGROUP", "GROUP", group, consumer, "COUNT", "10", "STREAMS", r.k.Stream, "0"}
	r.plain(fmt.Sprintf("reading of history by %s of %s", consumer, group), [][]string{words},
		func(q *Queue) { q.ReadHistory(group, consumer, 10) })
}

// oddEntries are entries that no bridge writes. The ledger follows none of them: their payloads have no serial.
var oddEntries = []fields{
	{"note": "no ID", "bytes": "\xff"}, {"color": "red", "": "x"}, {"": ""}, {"payload": ":p"},
	{"id": "f", "payload": ":\xff\x00", "h:bin": "\xff\x00\x80a"}, {"id": "", "payload": ":p"},
	{"id": "\xff", "payload": ":p"}, {"id": "a" + lua.Separator + "b"},
	{"id": "f", "attempt": "x"}, {"id": "f", "attempt": "0"}, {"id": "f", "attempt": "3"}, {"id": "f", "attempt": "+2"},
	{"attempt": "999999999999999", "max_attempts": "999999999999999"}, {"attempt": "9999999999999999"},
	{"id": "f", "max_attempts": "0"}, {"id": "f", "attempt": "2", "max_attempts": "2"}, {"id": "f", "max_attempts": ""},
	{"id": "f", "max_attempts": "1e3"},
	{"id": "f", "for": "g1"}, {"id": "f", "for": "nobody"}, {"id": "f", "for": ""}, {"id": "f", "for": "\xff"},
	{"id": "f", "expires_ms": "1"}, {"id": "f", "expires_ms": "x"}, {"id": "f", "expires_ms": "\xff"},
	{"id": "f", "error": "\xff"}, {"id": "f", "error": "old", "reason": "mine"},
	{"id": "f", "retry_for_ms": "0", "first_due_ms": "1"}, {"id": "f", "retry_for_ms": "5", "due_ms": "never"},
	{"id": "f", "snoozes": "999", "crashes": "1"},
	{"id": "f", "snoozes": "1000", "crashes": "x", "max_crashes": "0"},
	{"id": "f", "\xff": "x"}, {"h:a": "\xff", "b64:h:a": "mine", "payload": ":p"},
	{"b64:payload": "eA==", "payload": ":\xff"}, {"due_ms": "soon", "b64:due_ms": "x", "b64:id": "y"},
	{"group": "x", "entry": "y", "dead_ms": "z"}, {"meta": "x", "raw": "y", "payload": ":\xfe"},
	{"message:group": "x", "message:message:raw": "y", "other:group": "z", "for": "g1", "reason": "none"},
	{"h:ctl": "\x00\n\"\\/\u2028\x7f", "h:": "", "id": "世界"},
	{"h:a": strings.Repeat("x", 64<<10)}, {"h:b": strings.Repeat("\xff", 64<<10+1)},
}

// addEntry is a plain XADD with fields that no bridge writes.
func (r *sequence) addEntry() {
	f := pick(r, "fields", oddEntries...)
	words := []string{"XADD", r.k.Stream, "*"}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		words = append(words, name, f[name])
	}
	r.plain(fmt.Sprintf("%q", words), [][]string{words},
		func(q *Queue) { q.Stream = append(q.Stream, Entry{next(&q.NewEntries), f}) })
}

// Steps of operators.

func (r *sequence) redrive() {
	r.skipIf(len(r.q.Dead) == 0)
	letters := make([]lua.Redrive, pick(r, "letters", 1, 1, 2))
	var serials [][]byte
	for i := range letters {
		letter := r.letter()
		letters[i] = lua.Redrive{Letter: letter.ID, When: r.when(), To: pick(r, "to", "", "", groupNames[0])}
		if pick(r, "edit", false, true) {
			edited := []byte(r.book.serialIn(letter) + ":edited")
			letters[i].Payload = &edited
		}
		letters[i].Fields = r.meta()
		if pick(r, "malformed", false, false, false, true) {
			letters[i].Fields = r.junk()
		}
		serials = append(serials, []byte(r.book.serialIn(letter)))
	}
	before := r.q
	text := fmt.Sprintf("redrive %+v", letters)
	outcomes := step(r, text, func(ctx context.Context) ([]lua.Redriven, error) {
		return lua.RedriveDead(ctx, r.c, r.k, letters)
	}, func(q *Queue, _ []lua.Redriven) []lua.Redriven { return q.Redrive(letters) })
	for i, outcome := range outcomes {
		at := slices.IndexFunc(before.Dead, func(e Entry) bool { return e.ID == letters[i].Letter })
		if outcome == lua.RedriveScheduled && letters[i].To != "" {
			r.book.moved(before.Dead[at])
		} else if outcome == lua.RedriveScheduled && before.Dead[at].Fields[lua.FieldGroup] == "" && len(serials[i]) > 0 {
			r.book.accept(serials[i]) // the message was never ready
		}
	}
}

func (r *sequence) expire() {
	r.skipIf(len(r.q.Scheduled) == 0)
	known := append(r.q.Order(), unknown)
	members := []string{pick(r, "member", known...), pick(r, "member", known...)}
	step(r, fmt.Sprintf("expire %q", members), func(ctx context.Context) ([]lua.Expired, error) {
		return lua.Expire(ctx, r.c, r.k, members)
	}, func(q *Queue, _ []lua.Expired) []lua.Expired { return q.Expire(members) })
}

// letter picks a dead letter; seldom one that does not exist.
func (r *sequence) letter() Entry {
	letters := append(slices.Clone(r.q.Dead), Entry{ID: unknown})
	return letters[pick(r, "letter", indices(letters)...)]
}

func indices[T any](list []T) []int {
	out := make([]int, len(list))
	for i := range out {
		out[i] = i
	}
	return out
}

func (r *sequence) purge() {
	r.skipIf(len(r.q.Dead) == 0)
	r.purgeLetter(r.letter())
}

func (r *sequence) purgeLetter(letter Entry) {
	r.plain("XDEL of dead letter "+letter.ID, [][]string{{"XDEL", r.k.Dead, letter.ID}}, func(q *Queue) {
		q.Dead = slices.DeleteFunc(slices.Clone(q.Dead), func(e Entry) bool { return e.ID == letter.ID })
	})
	r.book.purge(letter)
}

func (r *sequence) hold() { r.setHeld(!r.q.Held && pick(r, "hold", false, true)) }

func (r *sequence) setHeld(held bool) {
	command := []string{"HDEL", r.k.Policy, "held"}
	if held {
		command = []string{"HSET", r.k.Policy, "held", "1"}
	}
	r.plain(fmt.Sprint("setting held: ", held), [][]string{command}, func(q *Queue) { q.Held = held })
}

func (r *sequence) limit() { r.setFlow(pick(r, "limit", limits...)) }

func (r *sequence) setFlow(f Flow) {
	r.plain("limiting the flow: "+f.String(), f.commands(r.k), func(q *Queue) { q.Flow = f })
}

// withoutTimes removes times from a drain that depend on how long a limit makes messages wait.
func withoutTimes(q *Queue, d lua.Drained) lua.Drained {
	if q.Flow != (Flow{}) {
		d.Late = 0
	}
	if d.Held != "" {
		d.Wait = time.Millisecond
	}
	return d
}

func (r *sequence) survey() {
	token, windows := r.seen.token, len(r.seen.windows)
	if token == "" {
		token = "0-0"
	}
	step(r, "survey", func(ctx context.Context) (lua.Look, error) {
		looks, err := lua.Survey(ctx, r.c, []lua.Keys{r.k}, true)
		if err != nil {
			return lua.Look{}, err
		}
		// The model knows neither the text form of others nor the hash that holds a value.
		looks[0].Standing, looks[0].Bodies = "", 0
		return looks[0], nil
	}, func(q *Queue, _ lua.Look) lua.Look { return q.Survey(token, windows) })
}

// findEntries looks for a message in the stream, or in the dead letters.
func (r *sequence) findEntries() {
	stream, all := r.k.Stream, func(q *Queue) []Entry { return q.Stream }
	if pick(r, "dead", false, true) {
		stream, all = r.k.Dead, func(q *Queue) []Entry { return q.Dead }
	}
	entries := all(r.q)
	r.skipIf(len(entries) == 0)
	pickEntry := func(what string) *Entry { return &entries[pick(r, what, indices(entries)...)] }
	id := pickEntry("entry").messageID()
	if seldom(r, "unknown") {
		id = unknown
	}
	search := lua.EntrySearch{Limit: pick(r, "limit", 100, 2, 1)}
	if pick(r, "cursor", false, true) {
		search.Cursor = pickEntry("cursor").ID
	}
	type answer struct {
		Next  lua.EntrySearch
		Found []string
	}
	text := fmt.Sprintf("find entries of %q in %s, from %+v", id, stream, search)
	step(r, text, func(ctx context.Context) (answer, error) {
		next, found, err := lua.FindEntries(ctx, r.c, stream, id, search)
		return answer{next, found}, err
	}, func(q *Queue, _ answer) answer {
		next, found := FindEntries(all(q), id, search)
		return answer{next, found}
	})
}

// Changes of messages that wait to be delivered again.

// pickWaiting picks the ID of a message that waits to be delivered again, or rarely of one that does not, and a group.
func (r *sequence) pickWaiting() (id, group string) {
	ids := []string{pick(r, "id", idNames...)}
	for _, member := range r.q.Order() {
		if m := lua.ParseMember(member); m.Kind != lua.MemberFirst {
			ids = append(ids, m.ID)
		}
	}
	r.skipIf(len(ids) == 1)
	slices.Reverse(ids)
	return pick(r, "again", ids...), pick(r, "group", append([]string{""}, slices.Sorted(maps.Keys(r.q.Groups))...)...)
}

func (r *sequence) cancelRetries() {
	id, group := r.pickWaiting()
	before := r.q
	text := fmt.Sprintf("cancel retries %q of %q", id, group)
	cancelled := step(r, text, func(ctx context.Context) ([]string, error) {
		_, found, err := lua.CancelRetries(ctx, r.c, r.k, lua.Walk{Limit: 1000, Group: group}, []string{id})
		return membersOf(found), err
	}, func(q *Queue, _ []string) []string { return q.CancelRetries(id, group) })
	for _, member := range cancelled {
		r.book.withdrawRetry(before.Scheduled[member], lua.ParseMember(member).Group)
	}
}

func (r *sequence) rescheduleRetries() {
	id, group := r.pickWaiting()
	to := r.when()
	text := fmt.Sprintf("reschedule retries %q of %q to %s", id, group, to)
	step(r, text, func(ctx context.Context) ([]string, error) {
		_, found, err := lua.RescheduleRetries(ctx, r.c, r.k, lua.Walk{Limit: 1000, Group: group}, to, []string{id})
		return membersOf(found), err
	}, func(q *Queue, _ []string) []string { return q.RescheduleRetries(id, group, to) })
}

func membersOf(found []lua.Waiting) (members []string) {
	for _, w := range found {
		members = append(members, w.Member)
	}
	slices.Sort(members)
	return members
}

// Recurrences.

var (
	recurrences = []string{"r1", "r 2/ü"}
	specs       = []string{`{"every_ms":1000}`, `{"cron":"@daily"}`}
)

func (r *sequence) recur() {
	name, spec := pick(r, "recurrence", recurrences...), pick(r, "spec", specs...)
	before, paused := pick(r, "before", "", "", specs[0]), pick(r, "paused", false, false, true)
	times := pick(r, "times", "t1", "t1", "t2")
	step(r, fmt.Sprintf("recur %q %s of %s before %s, paused %v", name, spec, times, before, paused),
		func(ctx context.Context) (lua.Recurred, error) {
			return lua.Recur(ctx, r.c, r.k, name, before, spec, times, paused)
		}, func(q *Queue, _ lua.Recurred) lua.Recurred { return q.Recur(name, before, spec, times, paused) })
}

// planned is the answer to a plan call.
type planned struct {
	OK   bool
	Plan string
}

func (r *sequence) plan() {
	r.skipIf(len(r.q.Recurrences) == 0)
	name := pick(r, "recurrence", slices.Sorted(maps.Keys(r.q.Recurrences))...)
	before := r.q.Recurrences[name].plan()
	r.skipIf(before == "")
	if seldom(r, "stale") {
		before = lua.SpecVersion("another") + " t 5-5 0 "
	}
	spans := slices.Clone(r.q.Recurrences[name].Spans)
	if seldom(r, "another span") {
		spans = append(spans[max(0, len(spans)-3):], lua.Span{From: r.at(-2 * time.Hour)})
	}
	var all []lua.Occurrence
	at := r.at(pick(r, "at", time.Hour, -time.Hour, 3*time.Hour))
	for range pick(r, "occurrences", 1, 2, 0) {
		*r.serials++
		at = at.Add(time.Duration(*r.serials) * time.Second)
		for slices.Contains(r.q.Recurrences[name].Recent, decimal(at.UnixMilli())) { // no planner repeats a time
			at = at.Add(time.Millisecond)
		}
		all = append(all, lua.Occurrence{At: at, Due: at.Add(pick(r, "jitter", 0, time.Minute))})
	}
	spans[len(spans)-1].To = at
	payload, meta := pick(r, "body", "", ":body"), pick(r, "headers", "", `{"h:a":"b"}`, `{"overlap":"skip"}`)
	step(r, fmt.Sprintf("plan %q of %v after %q", name, all, before), func(ctx context.Context) (planned, error) {
		ok, plan, err := lua.PlanOccurrences(ctx, r.c, r.k, name, before, spans, []byte(payload), meta, all)
		return planned{ok, plan}, err
	}, func(q *Queue, _ planned) planned {
		ok, plan := q.Plan(name, before, spans, payload, meta, all)
		return planned{ok, plan}
	})
}

// ran is the answer to a run by hand.
type ran struct {
	ID  string
	Due int64
	OK  bool
}

func (r *sequence) runByHand() {
	name, alone := pick(r, "recurrence", recurrences...), pick(r, "alone", false, true)
	step(r, fmt.Sprintf("run %q, alone %v", name, alone), func(ctx context.Context) (ran, error) {
		id, due, ok, err := lua.RunRecurrence(ctx, r.c, r.k, name, []byte(":run"), "", alone)
		return ran{id, due.UnixMilli(), ok}, err
	}, func(q *Queue, _ ran) ran {
		id, due, ok := q.Run(name, ":run", "", alone)
		return ran{id, due.UnixMilli(), ok}
	})
}

// removed is the answer to a removal.
type removed struct {
	Removed bool
	Back    int
}

func (r *sequence) removeRecurrence() {
	r.skipIf(len(r.q.Recurrences) == 0)
	name := pick(r, "recurrence", recurrences...)
	step(r, fmt.Sprintf("remove %q", name), func(ctx context.Context) (removed, error) {
		was, back, err := lua.RemoveRecurrence(ctx, r.c, r.k, name, false)
		return removed{was, back}, err
	}, func(q *Queue, _ removed) removed {
		was, back := q.RemoveRecurrence(name)
		return removed{was, back}
	})
}

// Keys.

var keys = []string{"k1", "k1", "k 2/ü"}

// skipKeys sets what happens to a key while a retry waits.
func (r *sequence) skipKeys(policy string) {
	r.plain("key_failure "+policy, [][]string{{"HSET", r.k.Policy, "key_failure", policy}},
		func(q *Queue) { q.Skip = policy == "skip" })
}

// toldKey returns the key that a worker reports for an entry. It is mostly the right one.
func (r *sequence) toldKey(entry string) string {
	if e := r.q.entry(entry); e != nil && e.key() != "" && !seldom(r, "no key") {
		return e.key()
	}
	if seldom(r, "any key") {
		return pick(r, "key", keys...)
	}
	return ""
}

func (r *sequence) passTurns() {
	r.skipIf(len(r.q.Turns)+len(r.q.Scheduled) == 0)
	r.passTurnsUpTo(pick(r, "limit", 100, 1, 2))
}

func (r *sequence) passTurnsUpTo(limit int) lua.TurnsPassed {
	from := r.turns
	r.turns = step(r, fmt.Sprintf("pass turns from %q, %d, %d", from.Cursor, from.Rank, limit),
		func(ctx context.Context) (lua.TurnsPassed, error) {
			return lua.PassTurns(ctx, r.c, r.k, from, limit)
		}, func(q *Queue, _ lua.TurnsPassed) lua.TurnsPassed { return q.PassTurns(from, limit) })
	return r.turns
}

// loseTurns deletes all or some of the notes about keys, as a user might.
func (r *sequence) loseTurns() {
	r.skipIf(len(r.q.Turns) == 0 || !seldom(r, "lose turns"))
	notes := slices.Sorted(maps.Keys(r.q.Turns))
	if pick(r, "some", true, false) {
		notes = notes[pick(r, "from", indices(notes)...):]
	}
	r.plain(fmt.Sprintf("ZREM of %d turns", len(notes)), [][]string{append([]string{"ZREM", r.k.Turns}, notes...)},
		func(q *Queue) {
			for _, note := range notes {
				delete(q.Turns, note)
			}
		})
	r.lostTurn = true
}

// deliverAll makes everything that is due ready, delivers it, and acknowledges it with plain XACK, one message of a
// key after the other.
func (r *sequence) deliverAll() {
	for round := 0; ; round++ {
		r.turns = lua.TurnsPassed{}
		for t := r.passTurnsUpTo(3); t.Cursor != "" || t.Rank > 0; t = r.passTurnsUpTo(3) {
		}
		for r.drainUpTo(3, plenty).Wait >= 0 {
		}
		r.audit()
		for _, group := range slices.Sorted(maps.Keys(r.q.Groups)) {
			r.deliver(group, consumers[0], 1000)
			for _, id := range r.pending(group) { // plainly, so that trim or the sweep of keys has to free all entries
				r.xack(group, []lua.Held{{Entry: id}})
			}
		}
		switch {
		case len(r.q.Scheduled)+len(r.q.Turns) == 0:
			return
		case round > 200:
			r.refuse("these wait for ever: %v", strings.Join(r.q.lines(0), "\n"))
		}
	}
}
