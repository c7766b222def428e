package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

var (
	wholeIDs  = []string{"a", "b", "c", "ab", "abc"}
	wholeKeys = []string{"k1", "k1", "k2", "", "k1", "k3"}
)

// actions are the steps of a sequence. The steps of bridges and workers act on one partition.
func (w *whole) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){"": func(*rapid.T) { w.audit() }}
	on := func(do func(*run)) func() {
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
		{"schedule", w.schedule}, {"drain", w.drain}, {"read", on((*run).read)}, {"fail", on((*run).fail)}, {"time", w.pass},
		{"schedule", w.schedule}, {"drain", w.drain}, {"read", on((*run).read)}, {"ack", on((*run).ack)},
		{"ack plainly", on((*run).ackPlainly)}, {"pass turns", on((*run).passTurns)}, {"trim", on((*run).trim)},
		{"cancel", w.cancel}, {"reschedule", w.reschedule}, {"grow", w.grow}, {"cancel retries", w.cancelRetries},
		{"reschedule retries", w.rescheduleRetries}, {"abandon", on((*run).abandon)}, {"reclaim", on((*run).reclaim)},
		{"redrive", w.redrive}, {"bulk", w.bulk}, {"look", w.look}, {"skip", on((*run).skip)}, {"purge", on((*run).purge)},
		{"extend", on((*run).extend)}, {"receive", on((*run).receive)}, {"pause", w.pause},
		{"cancel running", w.cancelRunning}, {"import again", w.importAgain}, {"import elsewhere", w.importElsewhere},
		{"ack", on((*run).ack)}, {"drain", w.drain}, {"read", on((*run).read)}, {"drain", w.drain}, {"read", on((*run).read)},
		{"ack", on((*run).ack)}, {"fail", on((*run).fail)}, {"settle", w.settleToken}, {"pull", w.pull}, {"pull", w.pull}, {"settle", w.settleToken},
		{"former bridge", on(w.byFormerBridge)}, {"former worker", on(w.byFormerWorker)}, {"former client", w.byFormerClient},
		{"change bridge", w.changeBridge},
	} {
		actions[fmt.Sprintf("%02d %s", i, step.name)] = func(*rapid.T) { step.do() }
	}
	return actions
}

func (w *whole) schedule() {
	p := w.parts[0]
	m := bridge.NewMessage{ID: pick(p, "id", wholeIDs...), Payload: p.payload(), At: w.when(), Key: pick(p, "key", wholeKeys...),
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
	verdict := do(w, fmt.Sprintf("schedule %s", showItems([]lua.Item{item})), func(ctx context.Context) (lua.Verdict, error) {
		results, err := w.client.ScheduleBatch(ctx, w.queue, []bridge.NewMessage{m})
		if err != nil {
			return 0, err
		}
		return verdictOf(results[0].Receipt, results[0].Err)
	}, func(q *Whole, _ lua.Verdict) lua.Verdict {
		if w.old && m.Key != "" {
			return refusedForOldBridge
		}
		return q.Schedule(item, m.Key)
	})
	if verdict <= lua.Duplicate {
		return
	}
	for _, old := range replaced {
		w.book.withdraw(old)
	}
	w.book.accept(m.Payload)
}

func (w *whole) drain() {
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

func (w *whole) pass() {
	d := pick(w.parts[0], "time", time.Hour, 30*time.Minute, 2*time.Hour)
	for _, part := range w.parts {
		part.last = w.last()
		part.passBy(d)
	}
}

func (w *whole) id() string { return pick(w.parts[0], "id", wholeIDs...) }

func (w *whole) group() string {
	return pick(w.parts[0], "group", "", groupNames[0], groupNames[1])
}

func (w *whole) cancel() {
	id := w.id()
	var gone []Message
	for _, part := range w.parts {
		if m, ok := part.q.Scheduled[id]; ok {
			gone = append(gone, m)
		}
	}
	do(w, "cancel "+id, func(ctx context.Context) (bool, error) {
		err := w.client.Cancel(ctx, w.queue, id)
		return err == nil, unlessGone(err)
	}, func(q *Whole, _ bool) bool { return q.Cancel(id) })
	for _, m := range gone {
		w.book.withdraw(m)
	}
}

// unlessGone returns nil for ErrNotScheduled, which is an expected answer.
func unlessGone(err error) error {
	if errors.Is(err, bridge.ErrNotScheduled) {
		return nil
	}
	return err
}

func (w *whole) reschedule() {
	id, to := w.id(), w.when()
	do(w, fmt.Sprintf("reschedule %s to %s", id, to), func(ctx context.Context) (bool, error) {
		_, err := w.client.Reschedule(ctx, w.queue, id, bridge.At(to))
		return err == nil, unlessGone(err)
	}, func(q *Whole, _ bool) bool { return q.Reschedule(id, lua.At(to)) })
}

// scope selects the retries of a group, or of all groups if it is "".
func scope(group string) bridge.Scope {
	if group == "" {
		return bridge.Retries()
	}
	return bridge.RetriesOf(group)
}

func (w *whole) cancelRetries() {
	id, group := w.id(), w.group()
	before := w.parts
	var gone []Message
	var groups []string
	for _, part := range before {
		members := part.q.Waiting(id, group)
		if _, first := part.q.Scheduled[id]; first && group == "" {
			members = append(members, id)
		}
		for _, member := range members {
			gone, groups = append(gone, part.q.Scheduled[member]), append(groups, lua.ParseMember(member).Group)
		}
	}
	do(w, fmt.Sprintf("cancel-retries %s of %q", id, group), func(ctx context.Context) (bool, error) {
		err := w.client.Cancel(ctx, w.queue, id, scope(group))
		return err == nil, unlessGone(err)
	}, func(q *Whole, _ bool) bool { return q.CancelRetries(id, group) })
	for i, m := range gone {
		w.withdrawRetry(m, groups[i])
	}
}

// withdrawRetry records in the ledger that a retry or a redriven letter was cancelled.
func (w *whole) withdrawRetry(m Message, group string) {
	if group != "" {
		delete(w.book.owed[group], serialOf(m.Payload))
	}
	w.book.withdraw(m)
}

func (w *whole) rescheduleRetries() {
	id, group, to := w.id(), w.group(), w.when()
	do(w, fmt.Sprintf("reschedule-retries %s of %q to %s", id, group, to), func(ctx context.Context) (bool, error) {
		_, err := w.client.Reschedule(ctx, w.queue, id, bridge.At(to), scope(group))
		return err == nil, unlessGone(err)
	}, func(q *Whole, _ bool) bool { return q.RescheduleRetries(id, group, lua.At(to)) })
}

func (w *whole) bulk() {
	p := w.parts[0]
	what, f, to := pick(p, "bulk", "cancel", "move", "expire"), admin.BulkFilter{Prefix: pick(p, "prefix", "a", "ab", "b"),
		Retries: pick(p, "retries", false, true)}, w.when()
	var meant [][]string
	{
		q := &Whole{}
		for _, part := range w.parts {
			q.Parts = append(q.Parts, part.q)
		}
		meant = q.Meant(f.Prefix, f.Retries)
	}
	type left struct {
		m     Message
		group string
	}
	var gone []left
	for i, members := range meant {
		for _, member := range members {
			gone = append(gone, left{w.parts[i].q.Scheduled[member], lua.ParseMember(member).Group})
		}
	}
	do(w, fmt.Sprintf("bulk-%s %+v to %s", what, f, to), func(ctx context.Context) (int, error) {
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
	}, func(q *Whole, _ int) (n int) {
		for i, part := range q.Parts {
			if what == "cancel" { // all at once, so that none goes on because another one left
				part.Cancel(meant[i])
				n += len(meant[i])
				continue
			}
			for _, member := range meant[i] {
				due := unparked(part.Scheduled[member].Due)
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
			w.withdrawRetry(one.m, one.group)
		}
	}
}

func (w *whole) grow() {
	n := pick(w.parts[0], "partitions", 2, 3, 4)
	w.unless(n <= w.counts.Latest())
	w.growTo(n, pick(w.parts[0], "despite keys", false, false, true))
}

func (w *whole) unless(futile bool) { w.parts[0].unless(futile) }

func (w *whole) growTo(n int, despiteKeys bool) {
	grown := do(w, fmt.Sprintf("grow to %d, despite keys: %v", n, despiteKeys), func(ctx context.Context) (bool, error) {
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
	}, func(q *Whole, _ bool) bool { return q.Grow(n, despiteKeys) })
	w.mixed = w.mixed || grown && despiteKeys
}

func (w *whole) redrive() {
	var from []int
	for i, part := range w.parts {
		if len(part.q.Dead) > 0 {
			from = append(from, i)
		}
	}
	w.unless(len(from) == 0)
	i := pick(w.parts[0], "partition", from...)
	part := w.parts[i]
	letter := part.q.Dead[pick(part, "letter", indices(part.q.Dead)...)]
	serial := part.book.serialIn(letter)
	name := deadletter.LetterName(i, letter.ID)
	if do(w, "redrive "+name, func(ctx context.Context) (int, error) {
		r, err := w.admin.DeadLetters().Redrive(ctx, w.queue, []string{name}, admin.RedriveOptions{})
		return r.Scheduled, err
	}, func(q *Whole, _ int) int {
		if q.Redrive(i, letter.ID) == lua.RedriveScheduled {
			return 1
		}
		return 0
	}) == 1 && letter.Fields[lua.FieldGroup] == "" && serial != "" {
		w.book.accept([]byte(serial)) // it never became ready
	}
}

func (w *whole) pause() {
	held := !w.parts[0].q.Held && seldom(w.parts[0], "pause")
	w.unless(held == w.parts[0].q.Held)
	do(w, fmt.Sprint("pause ", held), func(ctx context.Context) (struct{}, error) {
		_, err := w.admin.Pause(ctx, w.queue, held)
		return struct{}{}, err
	}, func(q *Whole, got struct{}) struct{} {
		for _, part := range q.Parts {
			part.Held = held
		}
		return got
	})
}

// look asks, as an operator does, where a message is and until when its ID is refused.
func (w *whole) look() {
	id := w.id()
	do(w, "look "+id, func(ctx context.Context) ([]string, error) {
		found, err := w.admin.Locate(ctx, w.queue, id)
		if errors.Is(err, admin.ErrNotFound) {
			err = nil
		}
		until, failed := w.admin.Remembered(ctx, w.queue, id)
		return append(placesOf(found), fmt.Sprint("refused: ", !until.IsZero())), errors.Join(err, failed)
	}, func(q *Whole, _ []string) []string {
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
			places = append(places, fmt.Sprintf("%d %s, attempt %d, key %q, waits %v", p.Partition, state, p.Attempt, p.Key,
				p.Waits))
		}
	}
	slices.Sort(places)
	return places
}

// cancelRunning cancels a message in any state, also one that a worker holds.
func (w *whole) cancelRunning() {
	id, group := w.id(), w.group()
	type verdict struct {
		What    string
		Holders int
	}
	before := w.parts
	var ended []func()
	for _, part := range before {
		for _, e := range part.q.Stream {
			if e.Fields[lua.FieldID] == id {
				ended = append(ended, func() { w.doneWith(part, e, group) })
			}
		}
		for member, m := range part.q.Scheduled {
			name := lua.ParseMember(member)
			if name.ID == id && (group == "" || group == name.Group) {
				ended = append(ended, func() { w.withdrawRetry(m, name.Group) })
			}
		}
	}
	do(w, fmt.Sprintf("cancel-running %s of %q", id, group), func(ctx context.Context) (verdict, error) {
		all, err := w.client.CancelRunning(ctx, w.queue, group, id)
		if errors.Is(err, bridge.ErrOldBridge) {
			return verdict{What: "refused"}, nil
		}
		if err != nil {
			return verdict{}, err
		}
		return verdict{string(all[0].Verdict), len(all[0].Holders)}, nil
	}, func(q *Whole, _ verdict) verdict {
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
func (w *whole) doneWith(part *run, e Entry, group string) {
	for name, g := range part.q.Groups {
		p, held := g.Pending[e.ID]
		if part.q.entry(e.ID) == nil || held && p.cancelled() {
			part.book.done(name, &e, e.ID)
		}
	}
}

// export exports the queue, and compares the records with the model's.
func (w *whole) export() (records []admin.Record) {
	do(w, "export", func(ctx context.Context) ([]string, error) {
		var all []Record
		e := w.admin.Export(w.queue, admin.RecordScheduled, admin.RecordReady, admin.RecordDead)
		for r, err := range e.Records(ctx) {
			if err != nil {
				return nil, err
			}
			records, all = append(records, r), append(all, recordOf(r))
		}
		return linesOf(all), nil
	}, func(q *Whole, _ []string) []string { return linesOf(q.Export()) })
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
	for name, n := range map[string]int64{lua.FieldAttempt: int64(max(1, r.Attempt)), lua.FieldMaxAttempts: int64(r.MaxAttempts),
		lua.FieldExpires: r.Expires, lua.FieldDead: r.Dead} {
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
func (w *whole) importRecords(ctx context.Context, records []admin.Record, window time.Duration) (known int, err error) {
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
func (w *whole) importAgain() {
	w.unless(w.old)
	records, window := w.export(), pick(w.parts[0], "window", 0, 24*time.Hour)
	w.unless(len(records) == 0)
	do(w, "import again", func(ctx context.Context) (string, error) {
		known, err := w.importRecords(ctx, records, window)
		if known == len(records) {
			return "all are known", err
		}
		return fmt.Sprintf("%d of %d are known", known, len(records)), err
	}, func(_ *Whole, _ string) string { return "all are known" })
}

// importElsewhere moves everything that the queue holds into a new queue of the same name, with any number of
// partitions.
func (w *whole) importElsewhere() {
	w.unless(w.old)
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
	do(w, fmt.Sprintf("import elsewhere, window %s", window), func(ctx context.Context) (int, error) {
		return w.importRecords(ctx, records, window)
	}, func(q *Whole, _ int) int {
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
