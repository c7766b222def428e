package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
	"github.com/duestream/duestream/stream/pull"
)

var (
	queueIDs  = []string{"a", "b", "c", "ab", "abc"}
	queueKeys = []string{"k1", "k1", "k2", "", "k1", "k3"}
)

// actions are the steps of a sequence. The steps of bridges and workers act on one partition.
func (w *queueSequence) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){"": func(*rapid.T) { w.audit() }}
	on := func(do func(*sequence)) func() {
		return func() {
			part := pick(w.parts[0], "partition", w.parts...)
			part.last = w.last()
			do(part)
		}
	}
	for i, step := range []struct {
		name string
		do   func()
	}{
		{"schedule", w.schedule}, {"drain", w.drain}, {"read", on((*sequence).read)}, {"fail", on((*sequence).fail)},
		{"time", w.pass},
		{"schedule", w.schedule}, {"drain", w.drain}, {"read", on((*sequence).read)}, {"ack", on((*sequence).ack)},
		{"ack plainly", on((*sequence).ackPlainly)}, {"pass turns", on((*sequence).passTurns)},
		{"trim", on((*sequence).trim)},
		{"cancel", w.cancel}, {"reschedule", w.reschedule}, {"grow", w.grow}, {"cancel retries", w.cancelRetries},
		{"reschedule retries", w.rescheduleRetries}, {"abandon", on((*sequence).abandon)},
		{"reclaim", on((*sequence).reclaim)},
		{"redrive", w.redrive}, {"bulk", w.bulk}, {"look", w.look}, {"skip", on((*sequence).skip)},
		{"purge", on((*sequence).purge)},
		{"extend", on((*sequence).extend)}, {"receive", on((*sequence).receive)}, {"pause", w.pause},
		{"cancel running", w.cancelRunning}, {"import again", w.importAgain}, {"import elsewhere", w.importElsewhere},
		{"ack", on((*sequence).ack)}, {"drain", w.drain}, {"read", on((*sequence).read)}, {"drain", w.drain},
		{"read", on((*sequence).read)},
		{"ack", on((*sequence).ack)}, {"fail", on((*sequence).fail)}, {"settle", w.settleToken}, {"pull", w.pull},
		{"pull", w.pull}, {"settle", w.settleToken},
		{"former bridge", on(w.byFormerBridge)}, {"former worker", on(w.byFormerWorker)},
		{"former client", w.byFormerClient},
		{"change bridge", w.changeBridge},
	} {
		actions[fmt.Sprintf("%02d %s", i, step.name)] = func(*rapid.T) { step.do() }
	}
	return actions
}

func (w *queueSequence) schedule() {
	p := w.parts[0]
	m := bridge.NewMessage{ID: pick(p, "id", queueIDs...), Payload: p.payload(), At: w.when(),
		Key:         pick(p, "key", queueKeys...),
		Replace:     pick(p, "replace", "", "", lua.Replace, lua.ReplaceLater, lua.ReplaceEarlier),
		MaxAttempts: pick(p, "max_attempts", 0, 0, 1)}
	var more []lua.FieldValue
	if m.Key != "" {
		more = append(more, lua.FieldValue{Field: lua.FieldKey, Value: m.Key})
	}
	item := lua.Item{ID: m.ID, When: lua.At(m.At), Payload: m.Payload, Dedup: lua.Refuse}
	if m.Replace != "" {
		item.Dedup = m.Replace
	} else if m.Dedup = pick(p, "dedup", 0, 0, 90*time.Minute); m.Dedup > 0 {
		item.Dedup = lua.Window(m.Dedup)
	}
	if seldom(p, "expires") {
		m.Expires = m.At.Add(30 * time.Minute)
	}
	item.Meta = lua.EncodeMeta(nil, m.MaxAttempts, m.Expires, more...)
	replaced := map[string]Message{}
	for i, part := range w.parts {
		if old, ok := part.q.Scheduled[m.ID]; ok {
			replaced[fmt.Sprint(i)] = old
		}
	}
	text := fmt.Sprintf("schedule %s", showItems([]lua.Item{item}))
	verdict := stepQueue(w, text, func(ctx context.Context) (lua.Verdict, error) {
		results, err := w.client.ScheduleBatch(ctx, w.queue, []bridge.NewMessage{m})
		if err != nil {
			return 0, err
		}
		return verdictOf(results[0].Receipt, results[0].Err)
	}, func(q *Partitioned, _ lua.Verdict) lua.Verdict {
		if w.old && m.Key != "" {
			return refusedForOldBridge
		}
		return q.Schedule(item, m.Key)
	})
	if verdict <= lua.Duplicate { // refused
		return
	}
	for _, old := range replaced {
		w.book.withdraw(old)
	}
	w.book.accept(m.Payload)
}

func (w *queueSequence) drain() {
	for _, part := range w.parts { // a bridge drains all partitions, but only one of them changes
		if slices.ContainsFunc(part.q.Order(), func(member string) bool {
			return part.q.Scheduled[member].Due <= float64(part.last)
		}) && !seldom(w.parts[0], "another partition") {
			part.last = w.last()
			part.drain()
			return
		}
	}
	w.SkipNow()
}

func (w *queueSequence) pass() {
	d := pick(w.parts[0], "time", time.Hour, 30*time.Minute, 2*time.Hour)
	for _, part := range w.parts {
		part.last = w.last()
		part.passBy(d)
	}
}

func (w *queueSequence) id() string { return pick(w.parts[0], "id", queueIDs...) }

func (w *queueSequence) group() string {
	return pick(w.parts[0], "group", "", groupNames[0], groupNames[1])
}

func (w *queueSequence) cancel() {
	id := w.id()
	var gone []Message
	for _, part := range w.parts {
		if m, ok := part.q.Scheduled[id]; ok {
			gone = append(gone, m)
		}
	}
	stepQueue(w, "cancel "+id, func(ctx context.Context) (bool, error) {
		err := w.client.Cancel(ctx, w.queue, id)
		return err == nil, ignoreNotScheduled(err)
	}, func(q *Partitioned, _ bool) bool { return q.Cancel(id) })
	for _, m := range gone {
		w.book.withdraw(m)
	}
}

// ignoreNotScheduled returns nil for ErrNotScheduled, which is an expected answer.
func ignoreNotScheduled(err error) error {
	if errors.Is(err, bridge.ErrNotScheduled) {
		return nil
	}
	return err
}

func (w *queueSequence) reschedule() {
	id, to := w.id(), w.when()
	stepQueue(w, fmt.Sprintf("reschedule %s to %s", id, to), func(ctx context.Context) (bool, error) {
		_, err := w.client.Reschedule(ctx, w.queue, id, bridge.At(to))
		return err == nil, ignoreNotScheduled(err)
	}, func(q *Partitioned, _ bool) bool { return q.Reschedule(id, lua.At(to)) })
}

// scope selects the retries of a group, or of all groups if it is "".
func scope(group string) bridge.Scope {
	if group == "" {
		return bridge.Retries()
	}
	return bridge.RetriesOf(group)
}

func (w *queueSequence) cancelRetries() {
	id, group := w.id(), w.group()
	var gone []Message
	var groups []string
	for _, part := range w.parts {
		members := part.q.Waiting(id, group)
		if _, first := part.q.Scheduled[id]; first && group == "" {
			members = append(members, id)
		}
		for _, member := range members {
			gone, groups = append(gone, part.q.Scheduled[member]), append(groups, lua.ParseMember(member).Group)
		}
	}
	stepQueue(w, fmt.Sprintf("cancel-retries %s of %q", id, group), func(ctx context.Context) (bool, error) {
		err := w.client.Cancel(ctx, w.queue, id, scope(group))
		return err == nil, ignoreNotScheduled(err)
	}, func(q *Partitioned, _ bool) bool { return q.CancelRetries(id, group) })
	for i, m := range gone {
		w.book.withdrawRetry(m, groups[i])
	}
}

func (w *queueSequence) rescheduleRetries() {
	id, group, to := w.id(), w.group(), w.when()
	stepQueue(w, fmt.Sprintf("reschedule-retries %s of %q to %s", id, group, to), func(ctx context.Context) (bool, error) {
		_, err := w.client.Reschedule(ctx, w.queue, id, bridge.At(to), scope(group))
		return err == nil, ignoreNotScheduled(err)
	}, func(q *Partitioned, _ bool) bool { return q.RescheduleRetries(id, group, lua.At(to)) })
}

func (w *queueSequence) bulk() {
	p := w.parts[0]
	what := pick(p, "bulk", "cancel", "move", "expire")
	f := admin.BulkFilter{Prefix: pick(p, "prefix", "a", "ab", "b"), Retries: pick(p, "retries", false, true)}
	to := w.when()
	var selected [][]string // members, by partition
	{
		q := &Partitioned{}
		for _, part := range w.parts {
			q.Parts = append(q.Parts, part.q)
		}
		selected = q.Meant(f.Prefix, f.Retries)
	}
	type left struct {
		m     Message
		group string
	}
	var gone []left
	for i, members := range selected {
		for _, member := range members {
			gone = append(gone, left{w.parts[i].q.Scheduled[member], lua.ParseMember(member).Group})
		}
	}
	stepQueue(w, fmt.Sprintf("bulk-%s %+v to %s", what, f, to), func(ctx context.Context) (int, error) {
		var r admin.BulkResult
		var err error
		switch what {
		case "cancel":
			r, err = w.admin.Bulk().Cancel(ctx, w.queue, f, admin.BulkOptions{})
		case "move":
			r, err = w.admin.Bulk().Reschedule(ctx, w.queue, f, 0, to, admin.BulkOptions{})
		case "expire":
			r, err = w.admin.Bulk().Expire(ctx, w.queue, f, admin.BulkOptions{})
		}
		if err == nil && r.Gone+r.Refused > 0 {
			err = fmt.Errorf("%+v", r)
		}
		return r.Changed, err
	}, func(q *Partitioned, _ int) (n int) {
		for i, part := range q.Parts {
			if what == "cancel" { // all in one call, so that none goes on because a message of its key was cancelled before
				part.Cancel(selected[i])
				n += len(selected[i])
				continue
			}
			for _, member := range selected[i] {
				due := ownDue(part.Scheduled[member].Due)
				switch {
				case what == "expire" && part.Expire([]string{member})[0] != lua.ExpireNow:
					continue
				case what == "move" && due == float64(to.UnixMilli()):
					continue // it has that due time already
				case what == "move":
					part.Reschedule(member, lua.At(to))
				}
				n++
			}
		}
		return n
	})
	for _, one := range gone {
		if what == "cancel" {
			w.book.withdrawRetry(one.m, one.group)
		}
	}
}

func (w *queueSequence) grow() {
	n := pick(w.parts[0], "partitions", 2, 3, 4)
	w.skipIf(n <= w.counts.Latest())
	w.growTo(n, pick(w.parts[0], "despite keys", false, false, true))
}

func (w *queueSequence) skipIf(futile bool) { w.parts[0].skipIf(futile) }

func (w *queueSequence) growTo(n int, despiteKeys bool) {
	text := fmt.Sprintf("grow to %d, despite keys: %v", n, despiteKeys)
	grown := stepQueue(w, text, func(ctx context.Context) (bool, error) {
		set := w.admin.SetPartitions
		if despiteKeys {
			set = w.admin.SetPartitionsDespiteKeys
		}
		_, err := set(ctx, w.queue, n, nil)
		w.connect()
		if errors.Is(err, admin.ErrKeyed) {
			return false, nil
		}
		return err == nil, err
	}, func(q *Partitioned, _ bool) bool { return q.Grow(n, despiteKeys) })
	w.mixed = w.mixed || grown && despiteKeys
}

func (w *queueSequence) redrive() {
	var from []int
	for i, part := range w.parts {
		if len(part.q.Dead) > 0 {
			from = append(from, i)
		}
	}
	w.skipIf(len(from) == 0)
	i := pick(w.parts[0], "partition", from...)
	part := w.parts[i]
	letter := part.q.Dead[pick(part, "letter", indices(part.q.Dead)...)]
	serial := part.book.serialIn(letter)
	name := deadletter.LetterName(i, letter.ID)
	if stepQueue(w, "redrive "+name, func(ctx context.Context) (int, error) {
		r, err := w.admin.DeadLetters().Redrive(ctx, w.queue, []string{name}, admin.RedriveOptions{})
		return r.Scheduled, err
	}, func(q *Partitioned, _ int) int {
		if q.Redrive(i, letter.ID) == lua.RedriveScheduled {
			return 1
		}
		return 0
	}) == 1 && letter.Fields[lua.FieldGroup] == "" && serial != "" {
		w.book.accept([]byte(serial)) // it never became ready
	}
}

func (w *queueSequence) pause() {
	held := !w.parts[0].q.Held && seldom(w.parts[0], "pause")
	w.skipIf(held == w.parts[0].q.Held)
	stepQueue(w, fmt.Sprint("pause ", held), func(ctx context.Context) (struct{}, error) {
		_, err := w.admin.Pause(ctx, w.queue, held)
		return struct{}{}, err
	}, func(q *Partitioned, got struct{}) struct{} {
		for _, part := range q.Parts {
			part.Held = held
		}
		return got
	})
}

// look asks, as an operator does, where a message is and until when its ID is refused.
func (w *queueSequence) look() {
	id := w.id()
	stepQueue(w, "look "+id, func(ctx context.Context) ([]string, error) {
		found, err := w.admin.Locate(ctx, w.queue, id)
		if errors.Is(err, admin.ErrNotFound) {
			err = nil
		}
		until, failed := w.admin.Remembered(ctx, w.queue, id)
		return append(placesOf(found), fmt.Sprint("refused: ", !until.IsZero())), errors.Join(err, failed)
	}, func(q *Partitioned, _ []string) []string {
		return append(q.Places(id), fmt.Sprint("refused: ", q.window(id) > 0))
	})
}

func placesOf(found []admin.Place) (places []string) {
	for _, p := range found {
		states := []string{string(p.State)}
		switch p.State {
		case admin.StateRetrying:
			states[0] += " for " + p.Group
		case admin.StateReady:
			states = nil
			for _, group := range p.Groups {
				states = append(states, "ready for "+group)
			}
		case admin.StatePending:
			states[0] += " with " + p.Consumer + " of " + p.Group
		case admin.StateDead:
			states[0] += " of " + p.Group
		}
		for _, state := range states {
			places = append(places, fmt.Sprintf("%d %s, attempt %d, key %q, waits %v",
				p.Partition, state, p.Attempt, p.Key, p.Waits))
		}
	}
	slices.Sort(places)
	return places
}

// cancelRunning cancels a message in any state, also one that a worker holds.
func (w *queueSequence) cancelRunning() {
	id, group := w.id(), w.group()
	type verdict struct {
		What    string
		Holders int
	}
	var ended []func() // changes of the ledger, for a cancel that is not refused
	for _, part := range w.parts {
		for _, e := range part.q.Stream {
			if e.Fields[lua.FieldID] == id {
				ended = append(ended, func() { w.doneWith(part, e, group) })
			}
		}
		for member, m := range part.q.Scheduled {
			name := lua.ParseMember(member)
			if name.ID == id && (group == "" || group == name.Group) {
				ended = append(ended, func() { w.book.withdrawRetry(m, name.Group) })
			}
		}
	}
	stepQueue(w, fmt.Sprintf("cancel-running %s of %q", id, group), func(ctx context.Context) (verdict, error) {
		all, err := w.client.CancelRunning(ctx, w.queue, group, id)
		if errors.Is(err, bridge.ErrOldBridge) {
			return verdict{What: "refused"}, nil
		}
		if err != nil {
			return verdict{}, err
		}
		return verdict{string(all[0].Verdict), len(all[0].Holders)}, nil
	}, func(q *Partitioned, _ verdict) verdict {
		if w.old {
			return verdict{What: "refused"}
		}
		what, holders := q.CancelRunning(id, group)
		return verdict{what, holders}
	})
	if w.old {
		return
	}
	for _, end := range ended {
		end()
	}
}

// doneWith records in the ledger that the groups are no longer owed a cancelled message.
func (w *queueSequence) doneWith(part *sequence, e Entry, group string) {
	for name, g := range part.q.Groups {
		p, held := g.Pending[e.ID]
		if part.q.entry(e.ID) == nil || held && p.cancelled() {
			part.book.done(name, &e, e.ID)
		}
	}
}

// export exports the queue, and compares the records with the model's.
func (w *queueSequence) export() (records []admin.Record) {
	stepQueue(w, "export", func(ctx context.Context) ([]string, error) {
		var all []Record
		e := w.admin.Export(w.queue, admin.RecordScheduled, admin.RecordReady, admin.RecordDead)
		for r, err := range e.Records(ctx) {
			if err != nil {
				return nil, err
			}
			records, all = append(records, r), append(all, recordOf(r))
		}
		return linesOf(all), nil
	}, func(q *Partitioned, _ []string) []string { return linesOf(q.Export()) })
	return records
}

// recordOf converts an exported record to the model's form.
func recordOf(r admin.Record) Record {
	f := maps.Clone(r.Extra)
	if f == nil {
		f = fields{}
	}
	for name, value := range r.Headers {
		f[lua.HeaderPrefix+name] = value
	}
	texts := fields{lua.FieldID: r.ID, lua.FieldFor: r.For, lua.FieldError: r.Error, lua.FieldGroup: r.Group,
		lua.FieldReason: r.Reason}
	for name, value := range texts {
		if value != "" {
			f[name] = value
		}
	}
	for name, n := range map[string]int64{
		lua.FieldAttempt:     int64(max(1, r.Attempt)),
		lua.FieldMaxAttempts: int64(r.MaxAttempts),
		lua.FieldExpires:     r.Expires,
		lua.FieldDead:        r.Dead,
	} {
		if n > 0 {
			f[name] = decimal(n)
		}
	}
	f[lua.FieldPayload] = string(r.Payload)
	name := lua.Member{ID: r.ID, Group: r.For, Of: r.Entry}
	switch {
	case r.Kind == admin.RecordDead:
		f[lua.FieldDue] = decimal(r.Due)
		if r.Entry != "" {
			f[lua.FieldEntry] = r.Entry
		}
		return Record{Dead: true, Member: r.Letter, Fields: f}
	case r.Member != nil:
		m := NewMessage(string(r.Member), float64(r.Due), string(r.Payload), string(r.Meta))
		f = m.fields()
		delete(f, lua.FieldDue)
		return Record{Member: string(r.Member), Due: r.Due, Fields: f}
	case r.Kind == admin.RecordReady:
		name.Kind = lua.MemberImported
	case r.Letter != "":
		name.Kind, name.Of = lua.MemberRedriven, r.Letter
	case r.Entry != "":
		name.Kind = lua.MemberRetry
	}
	return Record{Member: name.String(), Due: r.Due, Fields: f}
}

// importRecords imports records, and counts those that were there already.
func (w *queueSequence) importRecords(ctx context.Context, records []admin.Record,
	window time.Duration) (known int, err error) {
	im, err := w.admin.Import(ctx, w.queue, "model", window)
	if err != nil {
		return 0, err
	}
	for _, err := range im.Write(ctx, records) {
		switch {
		case errors.Is(err, admin.ErrKnown):
			known++
		case err != nil:
			return known, err
		}
	}
	return known, nil
}

// importAgain imports an export of the queue into the queue itself: every record must be there already.
func (w *queueSequence) importAgain() {
	w.skipIf(w.old)
	records, window := w.export(), pick(w.parts[0], "window", 0, 24*time.Hour)
	w.skipIf(len(records) == 0)
	stepQueue(w, "import again", func(ctx context.Context) (string, error) {
		known, err := w.importRecords(ctx, records, window)
		if known == len(records) {
			return "all are known", err
		}
		return fmt.Sprintf("%d of %d are known", known, len(records)), err
	}, func(_ *Partitioned, _ string) string { return "all are known" })
}

// importElsewhere moves everything that the queue holds into a new queue of the same name, with any number of
// partitions.
func (w *queueSequence) importElsewhere() {
	w.skipIf(w.old)
	records, window := w.export(), pick(w.parts[0], "window", 0, 24*time.Hour)
	n := pick(w.parts[0], "partitions", 3, 1, 2, 4)
	old := w.parts
	groups := slices.Sorted(maps.Keys(old[0].q.Groups))
	skip := old[0].q.Skip
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if _, err := w.admin.DeleteQueue(ctx, w.queue, true); err != nil {
		old[0].refuse("delete queue: %v", err)
	}
	last := w.last()
	mixed := w.mixed
	w.parts, w.counts, w.mixed = nil, lua.Counts{1}, false
	for range old {
		w.addPart()
		part := w.parts[len(w.parts)-1]
		part.start, part.last = old[0].start, last
		if left := diff(newQueue().lines(0), part.seen.lines(0)); left != "" {
			part.refuse("the queue was deleted, and left\n%s", left)
		}
	}
	w.parts = w.parts[:1]
	w.setPolicy(skip)
	for _, group := range groups {
		w.parts[0].ensureGroup(group)
	}
	w.growTo(n, false)
	for _, part := range w.parts {
		part.lostTurn = mixed // messages with one key that were in flight together may stay so
	}
	stepQueue(w, fmt.Sprintf("import elsewhere, window %s", window), func(ctx context.Context) (int, error) {
		return w.importRecords(ctx, records, window)
	}, func(q *Partitioned, _ int) int {
		var all []Record
		for _, r := range records {
			all = append(all, recordOf(r))
		}
		dedup := lua.Refuse
		if window > 0 {
			dedup = lua.Window(window)
		}
		q.Import(all, dedup)
		return 0
	})
}

// Steps of callers over HTTP.

// queuePolicy is the policy of the queue, and queueSettings are the same settings as stored fields.
var (
	queuePolicy   = lua.Attempts{Max: 3, Delays: []time.Duration{time.Millisecond, time.Hour}}
	queueSettings = []string{"max_attempts", "3", "retry_delays_ms", "1,3600000",
		"visibility_ms", decimal(idleTime.Milliseconds())}
)

// setPolicy writes the settings of the queue before it grows.
func (w *queueSequence) setPolicy(skip bool) {
	part, failure := w.parts[0], "block"
	if skip {
		failure = "skip"
	}
	words := append([]string{"HSET", part.k.Policy}, queueSettings...)
	part.plain("settings", [][]string{words}, func(*Queue) {})
	part.skipKeys(failure)
}

// pull receives messages as the HTTP API does: from all partitions, in any order, until there are enough.
func (w *queueSequence) pull() {
	group := pick(w.parts[0], "group", groupNames[:len(w.parts[0].q.Groups)]...)
	count := pick(w.parts[0], "count", 1, 2, 10)
	within := pick(w.parts[0], "within", 0, time.Minute)
	var tokens []pull.Token
	text := fmt.Sprintf("pull %d for %s, within %s", count, group, within)
	stepQueue(w, text, func(ctx context.Context) ([]string, error) {
		found, err := w.puller.Pull(ctx, pull.Request{
			Queues: []string{w.queue},
			Group:  group,
			Count:  count,
			Within: within,
		})
		var names []string
		for _, d := range found {
			tokens = append(tokens, d.Token)
			names = append(names, fmt.Sprintf("%d %s %s", d.Partition, d.EntryID, d.ID))
		}
		slices.Sort(names)
		return names, err
	}, func(q *Partitioned, _ []string) []string { return q.Pull(group, count, w.told) })
	w.tokens = append(w.tokens, tokens...)
}

// token returns a token that a pull has returned at some time, and sometimes forges a part of it.
func (w *queueSequence) token() pull.Ticket {
	w.skipIf(len(w.tokens) == 0)
	last := max(0, len(w.tokens)-8)
	t, err := w.tokens[last+pick(w.parts[0], "token", indices(w.tokens[last:])...)].Read()
	if err != nil {
		panic(err)
	}
	switch pick(w.parts[0], "forged", "", "", "", "", "partition", "group", "entry", "id") {
	case "partition":
		t.Partition = pick(w.parts[0], "partition", 0, 1, 7)
	case "group":
		t.Group = pick(w.parts[0], "group", append(groupNames, "nobody")...)
	case "entry":
		t.Entry = unknown
	case "id":
		t.ID = "another"
	}
	return t
}

// settleToken settles a delivery by its token, which may be late, used before, or forged.
func (w *queueSequence) settleToken() {
	t := w.token()
	how := pick(w.parts[0], "how", "ack", "ack", "fail", "dead", "release", "extend")
	failed := map[string]error{"fail": errors.New("no"), "dead": stream.DeadLetter(errors.New("no")),
		"release": stream.Release(nil)}
	held := []lua.Held{{Entry: t.Entry, ID: t.ID, Key: t.Key}}
	var before *Queue
	if t.Partition < len(w.parts) {
		before = w.parts[t.Partition].q
	}
	answer := stepQueue(w, fmt.Sprintf("settle-%s %+v", how, t), func(ctx context.Context) (string, error) {
		tokens := []pull.Token{t.Token()}
		switch how {
		case "ack":
			done, err := w.puller.Ack(ctx, tokens)
			return fmt.Sprint(done), err
		case "extend":
			held, err := w.puller.Extend(ctx, tokens, []time.Duration{0})
			return fmt.Sprint(held), err
		}
		settled, err := w.puller.Fail(ctx, tokens, []error{failed[how]})
		return fmt.Sprint(settled), err
	}, func(q *Partitioned, _ string) string {
		var part *Queue
		if t.Partition < len(q.Parts) && q.Parts[t.Partition].Groups[t.Group].Pending != nil {
			part = q.Parts[t.Partition]
		}
		switch {
		case how == "ack" && part == nil:
			return "[false]"
		case how == "ack":
			return fmt.Sprint(part.Ack(t.Group, held))
		case how == "extend" && part == nil:
			return fmt.Sprint([]lua.Extended{lua.NotHeld})
		case how == "extend":
			return fmt.Sprint(part.Extend(t.Group, pull.DefaultConsumer, held))
		case part == nil:
			return fmt.Sprint([]stream.Settlement{stream.Lost})
		}
		failure := stream.FailureOf(failed[how])
		failure.Held = held[0]
		outcome := part.Retry(t.Group, queuePolicy, []lua.Failure{failure})[0]
		return fmt.Sprint([]stream.Settlement{stream.SettlementOf(outcome)})
	})
	if how == "ack" && answer == "[true]" {
		w.parts[t.Partition].book.done(t.Group, before.entry(t.Entry), t.Entry)
	}
}

// Steps of the previous release.

// oldBridge is the heartbeat of a bridge of the previous release, which does not state a protocol level.
const oldBridge = "01J0000000000000000000000A host 1 v0.1.0"

// refusedForOldBridge is the verdict on a message that needs more than a running bridge supports. No verdict of package
// lua has this number.
const refusedForOldBridge = lua.Verdict(-7)

// beat renews the heartbeat of the bridge of the previous release, if such a bridge runs.
func (w *queueSequence) beat(ctx context.Context) {
	if w.old {
		now := w.parts[0].time(w.redis.Client.Do(ctx, w.redis.Client.B().Time().Build()))
		w.zadd(ctx, decimal(now))
	}
}

func (w *queueSequence) zadd(ctx context.Context, score string) {
	add := []string{"ZADD", lua.NewGlobals(w.prefix).Bridges, score, oldBridge}
	if err := w.parts[0].commands(ctx, [][]string{add}); err != nil {
		w.parts[0].refuse("%v", err)
	}
}

// changeBridge starts or stops a bridge of the previous release. Clients that are created afterwards know of it.
func (w *queueSequence) changeBridge() {
	w.skipIf(!w.old && !seldom(w.parts[0], "old bridge"))
	w.setBridge(!w.old)
}

func (w *queueSequence) setBridge(old bool) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	w.old = old
	if !old {
		bridges := lua.NewGlobals(w.prefix).Bridges
		if err := w.parts[0].commands(ctx, [][]string{{"ZREM", bridges, oldBridge}}); err != nil {
			w.parts[0].refuse("%v", err)
		}
	}
	w.beat(ctx)
	w.connect()
}

// runFormer runs a script of the previous release with the arguments that that release passes.
func (w *queueSequence) runFormer(ctx context.Context, c rueidis.Client, name string, keys []string,
	texts ...string) ([]string, error) {
	eval := c.B().Eval().Script(w.scripts[name]).Numkeys(int64(len(keys))).Key(keys...).Arg(texts...).Build()
	reply, err := c.Do(ctx, eval).ToArray()
	if err != nil {
		return nil, fmt.Errorf("%s of the release before: %w", name, err)
	}
	var answers []string
	for _, one := range reply {
		if n, err := one.AsInt64(); err == nil {
			answers = append(answers, decimal(n))
		} else {
			text, _ := one.ToString()
			answers = append(answers, cmp.Or(strings.TrimSuffix(text, "-0"), "0")) // cursors: 0 ends a sweep
		}
	}
	return answers, nil
}

// formerKeys returns the keys that the previous release passes to its scripts.
func formerKeys(k lua.Keys, script string) []string {
	return map[string][]string{
		"drain":      {k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Turns, k.Policy, k.Rate, k.History},
		"reclaim":    {k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Calm, k.Turns, k.Policy, k.History},
		"trim":       {k.Stream, k.Seen, k.Turns},
		"pass_turns": {k.Stream, k.Due, k.Meta, k.Wake, k.Turns},
		"ack":        {k.Stream, k.Due, k.Wake, k.Turns, k.Policy, k.History},
		"retry":      {k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Turns, k.Policy, k.History},
		"enqueue":    {k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, k.Policy, k.History},
		"reschedule": {k.Due, k.Wake, k.Policy, k.History},
		"cancel":     {k.Due, k.Payload, k.Meta, k.Seen, k.Policy, k.History},
	}[script]
}

// formerly runs one transition by a script of the previous release on one partition. compared is the number of values
// of the reply that the model knows.
func (w *queueSequence) formerly(r *sequence, what, name string, args []string, compared int,
	spec func(q *Queue, got []string) []int) []string {
	return step(r, what+" (the release before)", func(ctx context.Context) ([]string, error) {
		got, err := w.runFormer(ctx, r.c, name, formerKeys(r.k, name), args...)
		if err == nil && len(got) > compared {
			got = got[:compared]
		}
		return got, err
	}, func(q *Queue, got []string) []string {
		q.Former = true
		var want []string
		for _, n := range spec(q, got) {
			want = append(want, strconv.Itoa(n))
		}
		q.Former = false
		return want
	})
}

// byFormerBridge does to a partition what a bridge of the previous release does.
func (w *queueSequence) byFormerBridge(r *sequence) {
	switch what := pick(r, "what", "drain", "drain", "reclaim", "trim", "pass turns"); what {
	case "drain":
		r.skipIf(len(r.q.Scheduled) == 0)
		before := r.seen.newest
		w.formerly(r, what, "drain", []string{"100", "1048576", "bridge"}, 2, func(q *Queue, _ []string) []int {
			d := q.Drain(100, plenty)
			return []int{d.Moved, d.Dead}
		})
		r.inOrder(before)
	case "reclaim":
		group := r.group(holds)
		for _, p := range r.q.Groups[group].Pending {
			r.skipIf(p.cancelled()) // the old script reads the mark as deliveries: see protocol.md, section 8
		}
		most, delays := formerPolicy(queuePolicy)
		w.formerly(r, what+" of "+group, "reclaim", []string{group, most, delays,
			lua.ReclaimConsumer, decimal(idleTime.Milliseconds()), "0-0", "100", "1048576",
			"0", "bridge"}, 4, func(q *Queue, _ []string) []int {
			got := q.Reclaim(lua.ReclaimArgs{Group: group, Attempts: queuePolicy, MinIdle: idleTime, Limit: 100,
				MaxBytes: plenty}, "")
			return []int{0, got.Retried, got.Dead, got.Skipped}
		})
	case "trim":
		r.skipIf(len(r.q.Stream) == 0)
		w.formerly(r, what, "trim", []string{"0-0", "1000", "1048576"}, 1,
			func(q *Queue, got []string) []int {
				return []int{q.Trim("", 1000, plenty, lua.Trimmed{Freed: int(atoi(got[0]))}).Freed}
			})
	case "pass turns":
		r.skipIf(len(r.q.Turns) == 0)
		w.formerly(r, what, "pass_turns", []string{"", "0", "100"}, 4,
			func(q *Queue, _ []string) []int {
				t := q.PassTurns(lua.TurnsPassed{}, 100)
				return []int{0, t.Rank, t.Freed, t.Moved}
			})
	}
}

// formerPolicy returns a policy in the form that the scripts of the previous release take.
func formerPolicy(a lua.Attempts) (most, delays string) {
	var all []string
	for _, d := range a.Delays {
		all = append(all, decimal(d.Milliseconds()))
	}
	return strconv.Itoa(a.Max), strings.Join(all, ",")
}

// byFormerWorker does what a worker of the previous release does with the entries that it holds.
func (w *queueSequence) byFormerWorker(r *sequence) {
	group := r.group(holds)
	pending := r.pending(group)
	entry := pending[pick(r, "entry", indices(pending)...)]
	id := ""
	if e := r.q.entry(entry); e != nil {
		id = e.messageID()
	}
	action := pick(r, "action", "ack", "retry", "release", "dead")
	r.skipIf(action != "ack" && r.q.entry(entry) == nil) // exports write its letter, without a body, in another form
	if action == "ack" {
		before := r.q
		held := lua.Held{Entry: entry, ID: id, Key: r.toldKey(entry)}
		args := []string{group, entry, lua.Separator + held.Key + lua.Separator + id, "worker"}
		w.formerly(r, "ack of "+entry+" of "+group, "ack", args, 1, func(q *Queue, _ []string) []int {
			q.Ack(group, []lua.Held{held})
			return []int{1}
		})
		r.book.done(group, before.entry(entry), entry)
		return
	}
	most, delays := formerPolicy(queuePolicy)
	failure := lua.Failure{Held: lua.Held{Entry: entry, ID: id}, Action: lua.Action(action), Delay: -1, Error: "no",
		Reason: lua.ReasonMaxAttempts}
	w.formerly(r, action+" of "+entry+" of "+group, "retry",
		[]string{group, most, delays, entry, id, action, "", failure.Reason, failure.Error, "worker"}, 1,
		func(q *Queue, _ []string) []int {
			return []int{int(q.Retry(group, queuePolicy, []lua.Failure{failure})[0])}
		})
}

// byFormerClient does with an ID what a client of the previous release does. That client looks in the partition of
// the ID or of the key, and in others only if nothing is there. So the test does not use IDs that are in other
// partitions.
func (w *queueSequence) byFormerClient() {
	id, p := w.id(), w.parts[0]
	var in []*sequence
	for _, part := range w.parts {
		_, scheduled := part.q.Scheduled[id]
		if scheduled || part.q.Windows[id] > 0 {
			in = append(in, part)
		}
	}
	what := pick(p, "what", "enqueue", "enqueue", "cancel", "reschedule")
	if what != "enqueue" {
		w.skipIf(len(in) != 1)
		in[0].last = w.last()
		w.changeFormerly(in[0], what, id)
		return
	}
	key := pick(p, "key", queueKeys...)
	part := w.parts[(&Partitioned{Counts: w.counts}).of(id, key)]
	w.skipIf(slices.ContainsFunc(in, func(one *sequence) bool { return one != part }))
	part.last = w.last()
	item := lua.Item{ID: id, When: lua.At(w.when()), Payload: p.payload(),
		Dedup: pick(p, "dedup", lua.Refuse, lua.Replace)}
	if key != "" {
		item.Meta = lua.EncodeMeta(nil, 0, time.Time{}, lua.FieldValue{Field: lua.FieldKey, Value: key})
	}
	old := part.q.Scheduled[id]
	args := []string{"", "", "0", id, string(item.When), string(item.Payload), item.Meta, string(item.Dedup), "client"}
	got := w.formerly(part, fmt.Sprintf("enqueue %v", showItems([]lua.Item{item})), "enqueue", args, 1,
		func(q *Queue, _ []string) []int {
			return []int{int(q.Enqueue(lua.Token{}, []lua.Item{item})[0].Verdict)}
		})
	if got[0] != "0" {
		w.book.withdraw(old)
		w.book.accept(item.Payload)
	}
}

// changeFormerly cancels or reschedules a message, as a client of the previous release does.
func (w *queueSequence) changeFormerly(r *sequence, what, id string) {
	to := lua.At(w.when())
	old, scheduled := r.q.Scheduled[id]
	if what == "reschedule" {
		w.formerly(r, "reschedule "+id, "reschedule", []string{id, string(to), "client"},
			1, func(q *Queue, _ []string) []int {
				if _, moved := q.Reschedule(id, to); moved {
					return []int{1}
				}
				return []int{0}
			})
		return
	}
	w.formerly(r, "cancel "+id, "cancel", []string{id, "client"}, 1,
		func(q *Queue, _ []string) []int {
			if q.Cancel([]string{id})[0] {
				return []int{1}
			}
			return []int{0}
		})
	if scheduled {
		w.book.withdraw(old)
	}
}

// settle runs all partitions to their end. Then every group must have been given everything, and only keys that outlive
// messages may be left.
func (w *queueSequence) settle() {
	w.setBridge(false)
	_ = w.client.Close() // otherwise it forgets its last call at any time
	for _, part := range w.parts {
		part.empty()
	}
	w.audit()
	w.parts[0].noneOwed()
	globals := lua.NewGlobals(w.prefix)
	expected := []string{globals.Queues, globals.Wake}
	for _, part := range w.parts {
		expected = append(expected, part.k.Policy, part.k.Changes, part.k.Wake, part.k.Stream, part.k.Dead)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	c := w.redis.Client
	left, err := c.Do(ctx, c.B().Keys().Pattern(w.prefix+":*").Build()).AsStrSlice()
	left = slices.DeleteFunc(left, func(key string) bool { return slices.Contains(expected, key) })
	if err != nil || len(left) > 0 {
		w.parts[0].refuse("all is done, and there are %v: %v", left, err)
	}
}

// when returns a point in time that is hours away, so that it is not reached during a sequence.
func (w *queueSequence) when() time.Time {
	return w.parts[0].at(pick(w.parts[0], "when", -time.Hour, time.Hour, 2*time.Hour, 3*time.Hour, -2*time.Hour))
}
