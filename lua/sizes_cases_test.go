package lua

import (
	"fmt"
	"strconv"
	"time"
)

// ordeals returns, for each script, a function that draws a state of adversarial sizes and calls the script on it.
func ordeals() map[string]func(*ordeal) {
	return map[string]func(*ordeal){
		"drain": (*ordeal).drain, "enqueue": (*ordeal).enqueue, "enqueue_fresh": (*ordeal).enqueueFresh,
		"enqueue_one": (*ordeal).enqueueOne,
		"cancel":      (*ordeal).cancel, "reschedule": (*ordeal).reschedule,
		"cancel_retries": (*ordeal).walkCancelling, "reschedule_retries": (*ordeal).walkRescheduling,
		"export":         (*ordeal).export,
		"cancel_entries": (*ordeal).cancelEntries,
		"expire":         (*ordeal).expire,
		"orphans":        (*ordeal).orphans, "find_orphans": (*ordeal).findOrphans, "find_lost": (*ordeal).findLost,
		"find_entries": (*ordeal).findEntries,
		"search_due":   (*ordeal).searchDue, "search_entries": (*ordeal).searchEntries,
		"ack": (*ordeal).ack, "retry": (*ordeal).retry,
		"reclaim": (*ordeal).reclaim, "extend": (*ordeal).extend, "save_progress": (*ordeal).saveProgress,
		"ack_result": (*ordeal).ackResult,
		"trim":       (*ordeal).trim, "pass_turns": (*ordeal).passTurns, "receive": (*ordeal).receive,
		"redrive": (*ordeal).redrive, "restore": (*ordeal).restore, "survey": (*ordeal).survey,
		"glance":    (*ordeal).glance,
		"heartbeat": (*ordeal).heartbeat, "register": (*ordeal).register, "configure": (*ordeal).configure,
		"set_policy": (*ordeal).setPolicy, "signal": (*ordeal).signal, "take": (*ordeal).take, "claim": (*ordeal).claim,
		"versions": (*ordeal).versions,
		"withdraw": (*ordeal).withdraw,
		"recur":    (*ordeal).recur, "plan": (*ordeal).plan, "run_recurrence": (*ordeal).runRecurrence,
		"remove_recurrence": (*ordeal).removeRecurrence, "find_unfinished": (*ordeal).findUnfinished,
		"ensure_group": (*ordeal).ensureGroup, "drop_consumer": (*ordeal).dropConsumer, "drop_groups": (*ordeal).dropGroups,
		"delete_empty": (*ordeal).deleteEmpty, "set_target": (*ordeal).setTarget,
	}
}

// must ends the case if the call failed: a script that stops halfway proves nothing.
func (o *ordeal) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

// schedule fills a schedule whose members, payloads and metas are of any size, due from 1970 on.
func (o *ordeal) schedule(n int) (members []string) {
	k := o.b.k
	var commands [][]string
	names, bodies, metas := o.sizes("member", n), o.sizes("payload", n), o.sizes("meta", n)
	bare, key := o.flip("bare"), ""
	if o.keyed {
		key = `,"key":"k"`
	}
	if o.flip("short names") { // drain reads short members in larger pages
		names = make([]int, n)
	}
	for i := range n {
		member := fmt.Sprintf("m%04d", i) + pad(names[i])
		members = append(members, member)
		size := 0
		commands = append(commands, []string{"ZADD", k.Due, strconv.Itoa(i / 7), member})
		if !bare {
			size = bodies[i] + metas[i] + 20
			commands = append(commands, []string{"HSET", k.Payload, member, pad(bodies[i])})
			if metas[i] > 0 {
				commands = append(commands, []string{"HSET", k.Meta, member, `{"h:a":"` + pad(metas[i]) + `"` + key + `}`})
			}
		}
		o.seen(5+names[i], size)
	}
	o.b.build(commands...)
	return members
}

// there returns the members as they are stored, with the bytes for which pad stands.
func (o *ordeal) there() []string { return o.b.texts("ZRANGE", o.b.k.Due, "0", "-1") }

func (o *ordeal) drain() {
	o.keyed = o.flip("keyed")
	o.schedule(o.number("members", 1, 150))
	for range 3 {
		_, err := Drain(o.b.ctx, o.scale, o.b.k, o.number("limit", 1, 500), o.budget)
		o.must(err)
	}
}

func (o *ordeal) enqueue() {
	b := o.b
	o.schedule(o.number("members", 0, 20))
	if o.flip("later") {
		for _, m := range o.there() {
			b.do("ZADD", b.k.Due, "XX", ms(b.now()+1e6), m)
		}
	}
	var commands [][]string
	for i, n := range o.sizes("window", o.number("windows", 0, 80)) {
		commands = append(commands, []string{"ZADD", b.k.Seen, strconv.Itoa(i), fmt.Sprint("w", i) + pad(n)})
	}
	b.build(commands...)
	items := make([]Item, o.number("items", 1, 60))
	for i := range items {
		items[i] = Item{ID: fmt.Sprint("i", i%50), When: After(time.Duration(i%2) * time.Hour),
			Payload: make([]byte, min(20_000, o.size("item"))), Dedup: Refuse}
	}
	_, err := Enqueue(b.ctx, o.scale, b.k, Token{Name: "first", Window: time.Minute}, items, Durability{})
	o.must(err)
	_, err = Enqueue(b.ctx, o.scale, b.k, Token{Name: "second", Done: "first", Window: time.Minute}, items, Durability{})
	o.must(err)
}

func (o *ordeal) enqueueFresh() {
	b := o.b
	o.schedule(o.number("members", 0, 20))
	items := make([]Item, o.number("items", 1, 60))
	for i := range items {
		items[i] = Item{ID: fmt.Sprint("i", i), When: After(time.Hour), Payload: make([]byte, 1+o.size("item")),
			Meta: `{"h:a":"b"}`}
	}
	_, err := EnqueueFresh(b.ctx, o.scale, b.k, Token{Name: "first", Window: time.Minute}, items)
	o.must(err)
	_, err = EnqueueFresh(b.ctx, o.scale, b.k, Token{Name: "second", Done: "first", Window: time.Minute}, items)
	o.must(err)
}

func (o *ordeal) enqueueOne() {
	b := o.b
	o.schedule(o.number("members", 0, 20))
	for i, token := range []Token{{Name: "first", Window: time.Hour}, {Name: "second", Done: "first", Window: time.Hour}} {
		item := Item{ID: fmt.Sprint("i", i), When: After(time.Minute), Payload: make([]byte, 1+o.size("item")),
			Meta: `{"h:a":"b"}`}
		_, _, err := EnqueueOne(b.ctx, o.scale, b.k, token, i == 1, item)
		o.must(err)
	}
}

func (o *ordeal) cancel() {
	o.schedule(o.number("members", 1, 60))
	members := o.there()
	if o.flip("versions") {
		versions, err := Versions(o.b.ctx, o.b.c, o.b.k, members)
		o.must(err)
		_, err = CancelVersions(o.b.ctx, o.scale, o.b.k, members, versions, Durability{})
		o.must(err)
		return
	}
	_, err := Cancel(o.b.ctx, o.scale, o.b.k, members, Durability{})
	o.must(err)
}

func (o *ordeal) versions() {
	o.schedule(o.number("members", 1, 60))
	_, err := Versions(o.b.ctx, o.scale, o.b.k, o.there())
	o.must(err)
}

func (o *ordeal) withdraw() {
	o.schedule(o.number("members", 1, 60))
	page, err := Export(o.b.ctx, o.b.c, o.b.k, Exported{}, 1, 1)
	o.must(err)
	_, err = Withdraw(o.b.ctx, o.scale, o.b.k, page[0])
	o.must(err)
}

func (o *ordeal) reschedule() {
	o.schedule(o.number("members", 1, 60))
	_, _, err := Reschedule(o.b.ctx, o.scale, o.b.k, o.there()[0], After(time.Hour), Durability{})
	o.must(err)
}

func (o *ordeal) expire() {
	o.schedule(o.number("members", 1, 60))
	_, err := Expire(o.b.ctx, o.scale, o.b.k, o.there())
	o.must(err)
}

// walk looks for the retries of a message among members of any size. One step of a scan returns a bucket of the
// server's table.
func (o *ordeal) walk(step func(w Walk, id string) (string, error)) {
	o.schedule(o.number("members", 1, 300))
	var commands [][]string
	bodies := 0
	for i, size := range o.sizes("retry", o.number("retries", 1, 60)) {
		member := Member{Kind: MemberRetry, ID: "again", Group: "g", Of: fmt.Sprint(i, "-1")}.String()
		commands = append(commands, []string{"ZADD", o.b.k.Due, "5", member}, []string{"HSET", o.b.k.Payload, member,
			pad(size)},
			[]string{"HSET", o.b.k.Meta, member, `{"id":"again","for":"g","attempt":"2"}`})
		o.seen(len(member), size+100)
		bodies += size + 100
	}
	o.b.build(commands...)
	o.bucket = 5 * o.largest
	if o.b.text("OBJECT", "ENCODING", o.b.k.Due) == "listpack" { // of 128 members at most: one step returns them all
		o.bucket = bodies
	}
	w := Walk{Limit: o.number("limit", 1, 1000)}
	for calls := 0; w.Cursor != WalkDone && calls < 400; calls++ {
		next, err := step(w, "again")
		o.must(err)
		w.Cursor = next
	}
}

func (o *ordeal) walkCancelling() {
	o.walk(func(w Walk, id string) (string, error) {
		next, _, err := CancelRetries(o.b.ctx, o.scale, o.b.k, w, []string{id})
		return next, err
	})
}

func (o *ordeal) walkRescheduling() {
	o.walk(func(w Walk, id string) (string, error) {
		next, _, err := RescheduleRetries(o.b.ctx, o.scale, o.b.k, w, After(time.Hour), []string{id})
		return next, err
	})
}

func (o *ordeal) export() {
	o.schedule(o.number("members", 1, 150))
	last := Exported{}
	for range 4 {
		page, err := Export(o.b.ctx, o.scale, o.b.k, last, 500, o.budget)
		o.must(err)
		if len(page) == 0 {
			return
		}
		last = page[len(page)-1]
	}
}

// entries adds entries of any size to a stream, and returns their IDs.
func (o *ordeal) entries(key string, n int, extra ...string) (ids []string) {
	var commands [][]string
	for i, size := range o.sizes("entry", n) {
		id := fmt.Sprintf("17000000%05d-%d", i/9, i%9)
		ids = append(ids, id)
		commands = append(commands, append([]string{"XADD", key, id, "id", "m" + strconv.Itoa(i), "payload",
			pad(size), "attempt",
			"1", "due_ms", "5"}, extra...))
		o.seen(0, size+200)
	}
	o.b.build(commands...)
	return ids
}

// held makes a stream with many groups that hold many entries: the group g all of them, the others any part. Some of
// the entries were deleted.
func (o *ordeal) held(least int) (ids []string) {
	k := o.b.k
	ids = o.entries(k.Stream, o.number("entries", least, 300))
	last := ids[len(ids)-1]
	commands := [][]string{{"XGROUP", "CREATE", k.Stream, "g", last}, claim(k.Stream, "g", ids)}
	o.groups = o.number("groups", 1, 60)
	for i := 1; i < o.groups; i++ {
		name := fmt.Sprint("other", i)
		commands = append(commands, []string{"XGROUP", "CREATE", k.Stream, name, last})
		if some := ids[o.number("from", 0, len(ids)-1):]; o.number("holds", 0, 3) > 0 {
			commands = append(commands, claim(k.Stream, name, some))
		}
	}
	o.b.build(commands...)
	if o.flip("deleted") {
		gone := []string{"XDEL", k.Stream}
		for i, id := range ids[1 : len(ids)-1] {
			if i%10 != 0 {
				gone = append(gone, id)
			}
		}
		if len(gone) > 2 {
			o.b.build(gone)
		}
		var left []string
		for i, id := range ids {
			if i == 0 || i == len(ids)-1 || (i-1)%10 == 0 {
				left = append(left, id)
			}
		}
		return left
	}
	return ids
}

// claim returns a command that makes a group hold entries, as if they had been delivered an hour ago.
func claim(stream, group string, ids []string) []string {
	words := append([]string{"XCLAIM", stream, group, "c1", "0"}, ids...)
	return append(words, "IDLE", "3600000", "FORCE", "JUSTID")
}

// some picks at most most entries of a list, at equal distances.
func (o *ordeal) some(ids []string, most int) (picked []string) {
	step := o.number("step", 1, max(1, len(ids)/2))
	for i := 0; i < len(ids) && len(picked) < most; i += step {
		picked = append(picked, ids[i])
	}
	return picked
}

func (o *ordeal) ack() {
	ids := o.held(2)
	// Some of the other groups have acknowledged the first half of the entries, so that entries can be freed.
	for i := 1; i < o.groups; i++ {
		if o.flip("done") {
			o.b.do(append([]string{"XACK", o.b.k.Stream, fmt.Sprint("other", i)}, ids[:len(ids)/2]...)...)
		}
	}
	named := o.flip("named")
	var batch []Held
	for _, id := range o.some(ids, o.number("batch", 1, 200)) {
		one := Held{Entry: id}
		if named {
			one.ID = "m"
		}
		batch = append(batch, one)
	}
	_, err := Ack(o.b.ctx, o.scale, o.b.k, "g", batch)
	o.must(err)
}

func (o *ordeal) retry() {
	ids := o.held(2)
	action := []Action{ActionRetry, ActionDead, ActionRelease}[o.number("action", 0, 2)]
	var batch []Failure
	for _, id := range o.some(ids, o.number("batch", 1, 100)) {
		batch = append(batch, Failure{Held: Held{Entry: id}, Action: action, Delay: -1, Reason: ReasonMaxAttempts,
			Error: "e"})
	}
	_, err := Retry(o.b.ctx, o.scale, o.b.k, "g", policy, batch)
	o.must(err)
}

func (o *ordeal) reclaim() {
	o.held(2)
	cursor := ""
	for range 3 {
		r, err := Reclaim(o.b.ctx, o.scale, o.b.k, ReclaimArgs{Group: "g", Attempts: policy, MinIdle: time.Second,
			Cursor: cursor,
			Limit:  100, MaxBytes: o.budget})
		o.must(err)
		if cursor = r.Cursor; cursor == "" {
			return
		}
	}
}

func (o *ordeal) extend() {
	var batch []Held
	for _, id := range o.held(2) {
		batch = append(batch, Held{Entry: id, ID: "m"})
	}
	_, err := Extend(o.b.ctx, o.scale, o.b.k, "g", "c1", batch)
	o.must(err)
}

func (o *ordeal) ackResult() {
	for i, id := range o.held(2) {
		value := []byte(pad(min(o.sizes("value", 1)[0], MaxResultBytes)))
		_, err := AckResult(o.b.ctx, o.scale, o.b.k, "g", Held{Entry: id, ID: fmt.Sprint("m", i)}, 1, time.Minute, value)
		o.must(err)
	}
}

func (o *ordeal) saveProgress() {
	for _, id := range o.held(2) {
		cursor := []byte(pad(min(o.sizes("cursor", 1)[0], MaxProgressBytes)))
		_, err := SaveProgress(o.b.ctx, o.scale, o.b.k, "g", "c1", Held{Entry: id, ID: "m"}, cursor)
		o.must(err)
	}
}

func (o *ordeal) cancelEntries() {
	count := len(o.held(2))
	if o.flip("unread") {
		o.b.do("XGROUP", "CREATE", o.b.k.Stream, "late", "0")
		o.groups++
	}
	var some []string
	for i := range count {
		some = append(some, fmt.Sprint("m", i))
		if o.flip("one") {
			break
		}
	}
	w := EntryWalk{Limit: o.number("limit", 1, 1000)}
	for calls := 0; calls < 400; calls++ {
		next, _, err := CancelEntries(o.b.ctx, o.scale, o.b.k, w, some, Durability{})
		o.must(err)
		if w = next; w.Cursor == "" {
			return
		}
	}
}

func (o *ordeal) receive() {
	o.held(2)
	o.b.do("XGROUP", "CREATE", o.b.k.Stream, "late", "0")
	for range 3 {
		_, err := Receive(o.b.ctx, o.scale, o.b.k, "late", "c1", time.Second, 2*time.Second, o.number("limit", 1, 200))
		o.must(err)
	}
}

func (o *ordeal) trim() {
	b := o.b
	ids := o.held(2)
	var commands [][]string
	for i, n := range o.sizes("window", o.number("windows", 0, 80)) {
		commands = append(commands, []string{"ZADD", b.k.Seen, strconv.Itoa(i), fmt.Sprint("w", i) + pad(n)})
	}
	b.build(commands...)
	if o.flip("sweepable") { // all groups acknowledge a part of the entries behind the first one
		for i := range o.groups {
			name := "g"
			if i > 0 {
				name = fmt.Sprint("other", i)
			}
			b.do(append([]string{"XACK", b.k.Stream, name}, ids[1:1+o.number("acknowledged", 1, len(ids)-1)]...)...)
		}
	}
	cursor := ""
	for range 4 {
		done, err := Trim(b.ctx, o.scale, b.k, cursor, 1000, o.budget)
		o.must(err)
		cursor = done.Cursor
	}
}

func (o *ordeal) passTurns() {
	b := o.b
	o.keyed = true
	members, ids := o.schedule(o.number("members", 1, 100)), o.held(2)
	var commands [][]string
	for i, m := range members {
		commands = append(commands, []string{"ZADD", b.k.Due, "XX", fmt.Sprintf("%.0f", parked+float64(i)), m})
		if i%3 > 0 {
			commands = append(commands, []string{"ZADD", b.k.Turns, "0",
				fmt.Sprintf("k%d%swait%s%016d%s%s", i%20, Separator, Separator, i, Separator, m)})
		}
	}
	for i, id := range ids {
		commands = append(commands, []string{"ZADD", b.k.Turns, "0",
			fmt.Sprintf("k%d%sbusy%s%s", i%40, Separator, Separator, id)})
	}
	b.build(commands...)
	o.largest *= 2 // a call may read one entry in flight and one waiting message beyond the budget
	done := TurnsPassed{}
	for range 4 {
		var err error
		done, err = PassTurns(b.ctx, o.scale, b.k, done, o.number("limit", 1, 200))
		o.must(err)
	}
}

func (o *ordeal) redrive() {
	ids := o.entries(o.b.k.Dead, o.number("letters", 1, 100), "group", "g", "reason", "max_attempts", "dead_ms", "5")
	o.b.build([]string{"XGROUP", "CREATE", o.b.k.Stream, "g", "0", "MKSTREAM"})
	var batch []Redrive
	for _, id := range o.some(ids, 100) {
		batch = append(batch, Redrive{Letter: id, When: After(0)})
	}
	_, err := RedriveDead(o.b.ctx, o.scale, o.b.k, batch)
	o.must(err)
}

func (o *ordeal) restore() {
	ids := o.entries(o.b.k.Dead, o.number("letters", 1, 100))
	var batch []Restore
	for _, id := range o.some(ids, 100) {
		batch = append(batch, Restore{Name: "there/" + id, Entry: id, Fields: fields("id", "m", "payload", "p")})
	}
	_, err := RestoreDead(o.b.ctx, o.scale, o.b.k, time.Hour, batch)
	o.must(err)
}

func (o *ordeal) survey() {
	var all []Keys
	queues := o.number("queues", 1, 30)
	heads, tokens := o.sizes("head", queues), o.sizes("token", queues)
	groups := o.number("groups", 0, 200)
	for i := range queues {
		q := o.b.queue(fmt.Sprint("q", i))
		commands := [][]string{
			{"ZADD", q.k.Due, "5", "m" + pad(heads[i])}, {"XADD", q.k.Wake, "5-1", "queues", pad(tokens[i])},
			{"XADD", q.k.Stream, "5-1", "id", "m"},
		}
		for g := range groups {
			commands = append(commands, []string{"XGROUP", "CREATE", q.k.Stream, fmt.Sprint("g", g), "0"})
		}
		q.build(append(commands, []string{"XDEL", q.k.Stream, "5-1"})...)
		o.seen(0, heads[i]+tokens[i]+20)
		all = append(all, q.k)
	}
	o.groups = groups
	_, err := Survey(o.b.ctx, o.scale, all, true)
	o.must(err)
}

func (o *ordeal) glance() {
	var all []GlanceAt
	partitions, groups := o.number("partitions", 1, 30), o.number("groups", 0, 200)
	members, bodies := o.sizes("member", 40*partitions), o.sizes("body", 4*partitions)
	consumers := o.number("consumers", 0, 40)
	for i := range partitions {
		q := o.b.queue(fmt.Sprint("q", i))
		commands := [][]string{{"HSET", q.k.Meta, "m", "{}"}}
		for m := range 40 {
			size := members[40*i+m]
			commands = append(commands, []string{"ZADD", q.k.Due, strconv.Itoa(m), fmt.Sprint("m", m, Separator, pad(size))})
			o.seen(size+10, 0)
		}
		for e := range 4 {
			size := bodies[4*i+e]
			commands = append(commands, []string{"XADD", q.k.Stream, fmt.Sprintf("5-%d", e+1), "id", "m", "payload", pad(size)},
				[]string{"XADD", q.k.Dead, fmt.Sprintf("5-%d", e+1), "id", "m", "payload", pad(size)})
			o.seen(0, size+20)
		}
		for g := range groups {
			name := fmt.Sprint("g", g)
			commands = append(commands, []string{"XGROUP", "CREATE", q.k.Stream, name, "0"})
			for c := range consumers {
				commands = append(commands, []string{"XGROUP", "CREATECONSUMER", q.k.Stream, name, fmt.Sprint("c", c)})
			}
		}
		q.build(commands...)
		all = append(all, GlanceAt{Keys: q.k, Newest: 4096})
	}
	o.groups = groups
	for len(all) > 0 {
		list, err := Glance(o.b.ctx, o.scale, all, 64, 100*365*24*time.Hour)
		o.must(err)
		for _, g := range list {
			o.must(g.Err)
		}
		all = all[len(list):]
	}
}
