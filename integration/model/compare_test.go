package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

const callTimeout = 20 * time.Second

// sequence is one random sequence: a queue on the server, and its model.
type sequence struct {
	*rapid.T
	c        rueidis.Client
	k        lua.Keys
	start    int64  // Unix ms by the server's clock, before the first step
	last     int64  // the same, after the last step
	q        *Queue // expected content
	seen     stored // actual content
	book     *ledger
	tally    tally
	keeps    bool              // the queue keeps a history
	told     string            // ID of the last entry of the history that was read
	keyOf    map[string]string // keys of entries, including deleted ones
	lostTurn bool              // several messages with one key may be in flight, because of deleted turns or an import
	clients  bool              // several clients make calls, and forget them a second later
	memory
}

// stored is the content of the server as a Queue, with further data that a Queue lacks.
type stored struct {
	*Queue
	token      string // in the wake stream
	windows    []rueidis.ZScore
	newest     string // newest entry ever seen
	newestDead string
	damage     string // content that is never valid
}

// step executes one transition on the server (call) and on the model (spec). got is the answer of the server. spec
// changes the model, and returns the expected answer, given the server's own decisions. A script reads the clock once,
// between two readings of the test. The step passes if it passes for one of the milliseconds between them.
func step[T any](r *sequence, what string, call func(context.Context) (T, error), spec func(q *Queue, got T) T) T {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	before := r.tick(ctx)
	got, err := call(ctx)
	if err != nil {
		r.refuse("%s: %v", what, err)
	}
	after, seen := r.look(ctx)
	untold := r.untold(ctx, what, seen)
	r.Logf("%s: %+v", what, got)

	var nearest string
	for now := before; now <= after; now++ {
		next := r.q.clone()
		next.Now, next.EndedWindows = now, r.seen.ended(now)
		next.NewEntries, next.NewLetters = newer(seen.Stream, r.seen.newest), newer(seen.Dead, r.seen.newestDead)
		differs := seen.damage + untold
		if want := spec(next, got); !reflect.DeepEqual(got, want) {
			differs += fmt.Sprintf("the answer is %+v\n     want it %+v\n", got, want)
		}
		if r.clients {
			next.Calls = maps.Clone(seen.Calls)
		}
		differs += diff(next.lines(now), seen.lines(now))
		if woken, tells := seen.token != r.seen.token, next.tells(what, r.q); woken != tells {
			differs += fmt.Sprintf("a wake token was added: %v, there was to be one: %v\n", woken, tells)
		}
		if differs == "" {
			next.adopt(seen)
			r.tally.add(what, got)
			if r.tally["waiting for a key, summed over the steps"] += next.inLine(); next.Woken {
				r.tally["a key given on"]++
			}
			r.q, r.seen, r.last = next, seen, after
			return got
		}
		if nearest == "" || len(differs) < len(nearest) {
			nearest = differs
		}
	}
	panic(mismatch(fmt.Sprintf("after %s:\n%s", what, nearest)))
}

// plain executes commands of a client that does not use the scripts.
func (r *sequence) plain(what string, commands [][]string, spec func(q *Queue)) {
	r.Helper()
	step(r, plainly+what, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.commands(ctx, commands)
	}, func(q *Queue, got struct{}) struct{} { spec(q); return got })
}

// mismatch is the panic value that ends a sequence. play recovers it, so that all mismatches are the same failure for
// rapid, which may then shrink one into another.
type mismatch string

func (r *sequence) refuse(format string, args ...any) { panic(mismatch(fmt.Sprintf(format, args...))) }

// plainly begins the text of a step that another program makes, without the scripts.
const plainly = "somebody's "

// leavesHistory reports whether the history must tell of a step. It tells nothing of commands of other programs, and
// nothing of a withdrawal, because that message goes on in another partition.
func leavesHistory(what string) bool {
	return !strings.HasPrefix(what, plainly) && !strings.HasPrefix(what, "withdraw ")
}

func (r *sequence) commands(ctx context.Context, commands [][]string) error {
	batch := make(rueidis.Commands, len(commands))
	for i, c := range commands {
		batch[i] = r.c.B().Arbitrary(c...).Build()
	}
	for _, reply := range r.c.DoMulti(ctx, batch...) {
		if err := reply.Error(); err != nil && !rueidis.IsRedisNil(err) {
			return err
		}
	}
	return nil
}

// tick waits for the next millisecond of the server, so that no two steps share one and a sequence can be replayed.
func (r *sequence) tick(ctx context.Context) int64 {
	for {
		if now := r.time(r.c.Do(ctx, r.c.B().Time().Build())); now > r.last {
			return now
		}
	}
}

func (r *sequence) time(reply rueidis.RedisResult) int64 {
	parts, err := reply.AsIntSlice()
	if err != nil {
		r.refuse("time: %v", err)
	}
	return parts[0]*1000 + parts[1]/1000
}

var groupNames = []string{"g1", "g2", "g 3/ü%"}

// look reads the whole content in one round trip. The replies are used by the index of their command in the list.
func (r *sequence) look(ctx context.Context) (now int64, s stored) {
	b := func(words ...string) rueidis.Completed { return r.c.B().Arbitrary(words...).Build() }
	commands := rueidis.Commands{
		b("TIME"), b("ZRANGE", r.k.Due, "0", "-1", "WITHSCORES"), b("HGETALL", r.k.Payload), b("HGETALL", r.k.Meta),
		b("XRANGE", r.k.Stream, "-", "+"),
		b("XRANGE", r.k.Dead, "-", "+"), b("ZRANGE", r.k.Seen, "0", "-1", "WITHSCORES"), b("XRANGE", r.k.Wake, "-", "+"),
		b("HGET", r.k.Policy, "held"),
		b("XINFO", "GROUPS", r.k.Stream),
	}
	for _, g := range groupNames {
		commands = append(commands, b("XPENDING", r.k.Stream, g, "-", "+", "1000"))
	}
	reply := r.c.DoMulti(ctx, append(append(commands, askRecurrences(r.c, r.k)...), b("ZRANGE", r.k.Turns, "0", "-1"))...)
	s.Queue = newQueue()
	for _, note := range must(reply[len(commands)+2].AsStrSlice()) {
		s.Turns[note] = true
	}
	s.readRecurrences(must(reply[len(commands)].AsStrMap()), must(reply[len(commands)+1].AsStrMap()))
	s.readSchedule(must(reply[1].AsZScores()), must(reply[2].AsStrMap()), must(reply[3].AsStrMap()))
	s.Stream, s.newest = entries(must(reply[4].AsXRange()), r.seen.newest)
	s.Dead, s.newestDead = entries(must(reply[5].AsXRange()), r.seen.newestDead)
	s.readWindows(must(reply[6].AsZScores()))
	wake := must(reply[7].AsXRange())
	if len(wake) > 0 {
		s.token = wake[0].ID
	}
	if len(wake) > 1 {
		s.damage += "more than one wake token\n"
	}
	held, _ := reply[8].ToString()
	s.Held = held == "1"
	if groups, err := reply[9].ToArray(); err == nil { // an error means that there is no stream
		for _, g := range groups {
			s.readGroup(must(g.AsMap()))
		}
	}
	for i, name := range groupNames {
		if g, ok := s.Groups[name]; ok {
			readPending(g, must(reply[10+i].ToArray()))
		}
	}
	return r.time(reply[0]), s
}

func (s *stored) readSchedule(due []rueidis.ZScore, payload, meta map[string]string) {
	for _, z := range due {
		s.Scheduled[z.Member] = NewMessage(z.Member, z.Score, payload[z.Member], meta[z.Member])
		if m := s.Scheduled[z.Member]; m.Broken == "" && strings.Contains(z.Member, lua.Separator) {
			if group := lua.ParseMember(z.Member).Group; m.Meta[lua.FieldFor] != group {
				s.damage += fmt.Sprintf("the retry %q is for %q\n", z.Member, m.Meta[lua.FieldFor])
			}
		}
	}
	for name, hash := range map[string]map[string]string{"payload": payload, "meta": meta} {
		for member := range hash {
			if _, ok := s.Scheduled[member]; !ok {
				s.damage += fmt.Sprintf("%s of %q has no member\n", name, member)
			}
		}
	}
}

// readWindows separates message IDs, tokens of calls, and the refused items of calls. A member with index 0 says
// whether a call refused anything, the other members which items. Expired windows are deleted in this order.
func (s *stored) readWindows(list []rueidis.ZScore) {
	s.windows = list
	complete, saysRefused := map[string]bool{}, map[string]bool{} // by token; complete: no member has expired yet
	defer func() {
		for token, call := range s.Calls {
			if complete[token] && saysRefused[token] != (len(call.Refused) > 0) {
				s.damage += fmt.Sprintf("call %s refused %d, and says %v\n", token, len(call.Refused), saysRefused[token])
			}
		}
	}()
	for _, z := range list {
		token, ok := strings.CutPrefix(z.Member, lua.Separator)
		if !ok {
			s.Windows[z.Member] = int64(z.Score)
			continue
		}
		token, number, refusal := strings.Cut(token, lua.Separator)
		call := s.Calls[token]
		switch call.Ends = int64(z.Score); {
		case number == "0":
			saysRefused[token] = true
		case refusal:
			call.Refused = append(call.Refused, true)
		default:
			complete[token] = true
		}
		s.Calls[token] = call
	}
}

func (s *stored) readGroup(info map[string]rueidis.RedisMessage) {
	name, last := info["name"], info["last-delivered-id"]
	s.Groups[must(name.ToString())] = Group{must(last.ToString()), map[string]Pending{}}
}

func readPending(g Group, list []rueidis.RedisMessage) {
	for _, one := range list {
		parts := must(one.ToArray())
		idle, deliveries := must(parts[2].AsInt64()), must(parts[3].AsInt64())
		g.Pending[must(parts[0].ToString())] = Pending{must(parts[1].ToString()), int(deliveries),
			idle >= idleTime.Milliseconds()}
	}
}

func entries(list []rueidis.XRangeEntry, newest string) ([]Entry, string) {
	var out []Entry
	for _, e := range list {
		out = append(out, Entry{e.ID, e.FieldValues})
		if less(newest, e.ID) {
			newest = e.ID
		}
	}
	return out, newest
}

// newer returns the IDs of the entries after a given ID.
func newer(list []Entry, than string) (ids []string) {
	for _, e := range list {
		if less(than, e.ID) {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// ended returns how many stored windows are over.
func (s *stored) ended(now int64) int {
	n := 0
	for _, z := range s.windows {
		if int64(z.Score) <= now {
			n++
		}
	}
	return n
}

// clone returns a copy for the next step: a transition may change it without changing q.
func (q *Queue) clone() *Queue {
	c := *q
	c.Scheduled, c.Windows, c.Calls = maps.Clone(q.Scheduled), maps.Clone(q.Windows), maps.Clone(q.Calls)
	c.Recurrences, c.Turns, c.Woken = maps.Clone(q.Recurrences), maps.Clone(q.Turns), false
	c.Stream, c.Dead = slices.Clone(q.Stream), slices.Clone(q.Dead)
	c.Groups = map[string]Group{}
	for name, g := range q.Groups {
		c.Groups[name] = Group{g.Last, maps.Clone(g.Pending)}
	}
	return &c
}

// adopt takes over the text of metas: scripts may write the same object in different ways, and a drain counts its
// bytes.
func (q *Queue) adopt(s stored) {
	for member, m := range q.Scheduled {
		m.Raw = s.Scheduled[member].Raw
		q.Scheduled[member] = m
	}
}

// lines returns a queue as text. It omits windows that are over, because it does not matter whether they are stored.
func (q *Queue) lines(now int64) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, member := range q.Order() {
		m := q.Scheduled[member]
		meta := show(m.Meta)
		if m.Broken != "" {
			meta = fmt.Sprintf("broken %q", sortedText(m.Raw))
		}
		add("scheduled %q at %s: %q %s", member, strconv.FormatFloat(m.Due, 'f', -1, 64), m.Payload, meta)
	}
	for _, e := range q.Stream {
		add("entry %s: %s", e.ID, show(e.Fields))
	}
	for _, name := range slices.Sorted(maps.Keys(q.Groups)) {
		g := q.Groups[name]
		add("group %s has everything up to %s", name, g.Last)
		for _, id := range slices.SortedFunc(maps.Keys(g.Pending), view.CompareEntries) {
			add("pending in %s: %s %+v", name, id, g.Pending[id])
		}
	}
	for _, e := range q.Dead {
		letter := maps.Clone(e.Fields)
		if reason := letter[lua.FieldReason]; (reason == lua.ReasonMalformed || reason == lua.ReasonBodyLost) &&
			letter[lua.FieldError] != "" {
			letter[lua.FieldError] = anyText
		}
		add("dead %s: %s", e.ID, show(letter))
	}
	for _, id := range slices.Sorted(maps.Keys(q.Windows)) {
		if q.Windows[id] > now {
			add("window of %q until %d", id, q.Windows[id])
		}
	}
	for _, token := range slices.Sorted(maps.Keys(q.Calls)) {
		if call := q.Calls[token]; call.Ends > now {
			refused := slices.DeleteFunc(slices.Clone(call.Refused), func(r bool) bool { return !r })
			add("call %s until %d, refused %d", token, call.Ends, len(refused))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(q.Recurrences)) {
		add("recurrence %q: %s; %s", name, q.Recurrences[name].Spec, q.Recurrences[name].plan())
	}
	for _, note := range slices.Sorted(maps.Keys(q.Turns)) {
		add("turn %q", note)
	}
	add("held %v", q.Held)
	return out
}

// sortedText returns a JSON object with its fields in order, and any other text as it is.
func sortedText(raw string) string {
	var object map[string]string
	if !utf8.ValidString(raw) || json.Unmarshal([]byte(raw), &object) != nil {
		return raw
	}
	return show(object)
}

// diff returns the lines that only one side has, in order.
func diff(want, got []string) string {
	var out strings.Builder
	for _, side := range []struct {
		what          string
		lines, others []string
	}{{"wanted", want, got}, {"stored", got, want}} {
		for _, line := range side.lines {
			if !slices.Contains(side.others, line) {
				fmt.Fprintf(&out, "%s: %s\n", side.what, line)
			}
		}
	}
	if out.Len() == 0 && !slices.Equal(want, got) {
		fmt.Fprintf(&out, "the order differs:\nwanted: %s\nstored: %s\n", strings.Join(want, "\n        "),
			strings.Join(got, "\n        "))
	}
	return out.String()
}

// must returns a reply that has the documented form. Any other form is an error of this test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func score(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// readRecurrences parses what is stored about recurrences. It reports text that it cannot parse as damage.
func (s *stored) readRecurrences(recurring, plans map[string]string) {
	for name, spec := range recurring {
		s.Recurrences[name] = Recurrence{Spec: spec}
	}
	for name, text := range plans {
		if name == "" { // this field counts changes
			continue
		}
		p, ok := lua.ParsePlan(text)
		if !ok {
			s.damage += fmt.Sprintf("what is remembered of %q is %q\n", name, text)
		}
		r := s.Recurrences[name]
		r.Version, r.Times, r.Spans, r.Used, r.Recent = p.Version, p.Times, p.Spans, p.Used, p.Recent
		s.Recurrences[name] = r
	}
}

func askRecurrences(c rueidis.Client, k lua.Keys) []rueidis.Completed {
	return []rueidis.Completed{c.B().Hgetall().Key(k.Recurring).Build(), c.B().Hgetall().Key(k.Planned).Build()}
}

// keepHistory turns on the history of the queue, in half of the sequences.
func (r *sequence) keepHistory(ctx context.Context) {
	if r.keeps = pick(r, "history", true, false); r.keeps {
		r.k = r.k.As("model")
		if err := r.commands(ctx, [][]string{{"HSET", r.k.Policy, "history", "1000000"}}); err != nil {
			r.refuse("%v", err)
		}
	}
}

// untold describes differences between the effects of a step and the history that the step wrote. The history must tell
// of every entry, dead letter and member that the step added or removed, and of nothing else. Plain commands leave no
// history.
func (r *sequence) untold(ctx context.Context, what string, now stored) (differs string) {
	told := r.newlyTold(ctx)
	say := func(format string, args ...any) {
		differs += fmt.Sprintf("the history does not tell it: "+format+"; it tells %+v\n", append(args, told)...)
	}
	if !r.keeps || !leavesHistory(what) {
		if len(told) > 0 {
			say("nothing was to be told")
		}
		return differs
	}
	var entries, letters []string
	for _, t := range told {
		switch {
		case t.Event == lua.EventReady:
			entries = append(entries, t.Entry)
		case t.Event == lua.EventDead:
			letters = append(letters, t.Letter)
		}
	}
	if want := newer(now.Stream, r.seen.newest); !slices.Equal(entries, want) {
		say("entries %v were added", want)
	}
	if want := newer(now.Dead, r.seen.newestDead); !slices.Equal(letters, want) {
		say("letters %v were added", want)
	}
	tells := func(is func(t lua.Told) bool) bool { return slices.ContainsFunc(told, is) }
	for member := range now.Scheduled {
		if _, before := r.seen.Scheduled[member]; !before && !tells(func(t lua.Told) bool {
			switch t.Event {
			case lua.EventScheduled, lua.EventRetried, lua.EventReleased, lua.EventSnoozed, lua.EventRedriven:
				return t.ID == idOf(member)
			}
			return false
		}) {
			say("%q came", member)
		}
	}
	for member := range r.seen.Scheduled {
		if _, still := now.Scheduled[member]; !still && !tells(func(t lua.Told) bool {
			return (t.ID == idOf(member) || member == "") && slices.Contains([]string{lua.EventReady, lua.EventDead,
				lua.EventCancelled}, t.Event)
		}) {
			say("%q went", member)
		}
	}
	return differs + r.untoldExits(now, told)
}

// untoldExits describes entries that left the pending list of a group without a record. It ignores entries for
// another group.
func (r *sequence) untoldExits(now stored, told []lua.Told) (differs string) {
	for group, before := range r.seen.Groups {
		for entry := range before.Pending {
			if _, still := now.Groups[group].Pending[entry]; still {
				continue
			}
			e := r.q.entry(entry)
			if e != nil && e.Fields[lua.FieldFor] != "" && e.Fields[lua.FieldFor] != group {
				continue
			}
			if !slices.ContainsFunc(told, func(t lua.Told) bool {
				switch t.Event {
				case lua.EventAcknowledged, lua.EventRetried, lua.EventReleased, lua.EventSnoozed, lua.EventDead:
					return t.Entry == entry && t.Group == group
				}
				return false
			}) {
				differs += fmt.Sprintf("the history does not tell how %s left %s; it tells %+v\n", entry, group, told)
			}
		}
	}
	return differs
}

// newlyTold reads the history since the last call.
func (r *sequence) newlyTold(ctx context.Context) (told []lua.Told) {
	from := "-"
	if r.told != "" {
		from = "(" + r.told
	}
	list := must(r.c.Do(ctx, r.c.B().Xrange().Key(r.k.History).Start(from).End("+").Build()).AsXRangeSlices())
	for _, e := range list {
		r.told = e.ID
		told = append(told, lua.ParseTold(e.ID, e.FieldValues)...)
	}
	return told
}

// idOf returns the message ID of a schedule member in the form of JSON.
func idOf(member string) string {
	id, _, _ := strings.Cut(member, lua.Separator)
	return string([]rune(id))
}

// stepQueue runs one transition of a whole queue on the server and on the model, as step does for one partition. A call
// may run several scripts, so times that depend on the clock are taken from the server, if they are within the duration
// of the call.
func stepQueue[T any](w *queueSequence, what string, call func(context.Context) (T, error),
	spec func(q *Partitioned, got T) T) T {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	w.parts[0].last = w.last()
	before := w.parts[0].tick(ctx)
	w.beat(ctx)
	got, err := call(ctx)
	if err != nil {
		w.parts[0].refuse("%s: %v", what, err)
	}
	if list, long := any(got).([]string); long {
		w.Logf("%s:\n\t%s", what, strings.Join(list, "\n\t"))
	} else {
		w.Logf("%s: %+v", what, got)
	}
	q := &Partitioned{Counts: w.counts}
	w.told = nil
	var after int64
	seen := make([]stored, len(w.parts))
	for i, part := range w.parts {
		after, seen[i] = part.look(ctx)
		w.told = append(w.told, seen[i].Queue)
		next := part.q.clone()
		next.Now, next.EndedWindows = before, part.seen.ended(before)
		next.NewEntries = newer(seen[i].Stream, part.seen.newest)
		next.NewLetters = newer(seen[i].Dead, part.seen.newestDead)
		q.Parts = append(q.Parts, next)
	}
	differs := ""
	if want := spec(q, got); !reflect.DeepEqual(got, want) {
		differs += fmt.Sprintf("the answer is %+v\n     want it %+v\n", got, want)
	}
	w.counts = q.Counts
	for i := range q.Parts {
		if i == len(w.parts) { // the queue has grown
			w.addPart()
			seen = append(seen, w.parts[i].seen)
		}
		part, next := w.parts[i], q.Parts[i]
		next.adopt(seen[i])
		next.adoptTimes(seen[i].Queue, after-before)
		next.Calls = seen[i].Calls // the client chooses their names
		differs += seen[i].damage + diff(next.lines(before), seen[i].lines(before))
		if woken, tells := seen[i].token != part.seen.token, next.tells(what, part.q); tells && !woken {
			differs += fmt.Sprintf("no wake token was added to partition %d\n", i)
		}
		part.q, part.seen, part.last = next, seen[i], after
	}
	if differs != "" {
		w.parts[0].refuse("after %s:\n%s", what, differs)
	}
	w.tally[what[:strings.IndexByte(what+" ", ' ')]+" of a whole queue: "+fmt.Sprint(summary(got))]++
	w.tally["steps of a whole queue"]++
	return got
}

// summary returns the part of an answer that is counted.
func summary(got any) any {
	switch got := got.(type) {
	case []string:
		return fmt.Sprint(min(3, len(got)), " or more found")
	case int:
		return min(3, got)
	case lua.Verdict:
		return verdicts[got]
	}
	return got
}

// adoptTimes adopts times that the server's clock decided, if they differ by at most the duration of the call.
func (q *Queue) adoptTimes(seen *Queue, took int64) {
	for member, m := range q.Scheduled {
		if s, ok := seen.Scheduled[member]; ok {
			if later := s.Due - m.Due; later > 0 && later <= float64(took) {
				m.Due = s.Due
			}
			expires := atoi(m.Meta[lua.FieldExpires])
			if later := atoi(s.Meta[lua.FieldExpires]) - expires; expires > 0 && later > 0 && later <= took {
				m.Meta = maps.Clone(m.Meta)
				m.Meta[lua.FieldExpires] = s.Meta[lua.FieldExpires]
			}
			q.Scheduled[member] = m
		}
	}
	for i, letter := range q.Dead {
		at := slices.IndexFunc(seen.Dead, func(e Entry) bool { return e.ID == letter.ID })
		if at < 0 {
			continue
		}
		later := atoi(seen.Dead[at].Fields[lua.FieldDead]) - atoi(letter.Fields[lua.FieldDead])
		if later > 0 && later <= took {
			q.Dead[i].Fields = maps.Clone(letter.Fields)
			q.Dead[i].Fields[lua.FieldDead] = seen.Dead[at].Fields[lua.FieldDead]
		}
	}
	for id, end := range q.Windows {
		if later := seen.Windows[id] - end; later > 0 && later <= took {
			q.Windows[id] = seen.Windows[id]
		}
	}
}

// verdictOf returns the verdict that a client's result stands for. It returns only unexpected errors.
func verdictOf(receipt bridge.Receipt, err error) (lua.Verdict, error) {
	switch {
	case errors.Is(err, bridge.ErrOldBridge):
		return refusedForOldBridge, nil
	case errors.Is(err, bridge.ErrDuplicate):
		return lua.Duplicate, nil
	case err != nil:
		return 0, err
	case receipt.Replaced:
		return lua.Replaced, nil
	case receipt.Ready:
		return lua.Ready, nil
	}
	return lua.Scheduled, nil
}
