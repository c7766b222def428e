package model

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/duestream/duestream/lua"
)

const callTimeout = 20 * time.Second

// run is one random sequence: a queue on the server, and its model.
type run struct {
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
	told     string            // last entry of the history that was read
	keyOf    map[string]string // of entries, including deleted ones
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

// step executes one transition on both sides. got is the answer of the server; spec returns the expected answer,
// given the server's own decisions. A script reads the clock once, between two readings of ours. The step passes if
// it passes for one of these milliseconds.
func step[T any](r *run, what string, call func(context.Context) (T, error), spec func(q *Queue, got T) T) T {
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
func (r *run) plain(what string, commands [][]string, spec func(q *Queue)) {
	r.Helper()
	step(r, plainly+what, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.commands(ctx, commands)
	}, func(q *Queue, got struct{}) struct{} { spec(q); return got })
}

// mismatch is the panic value that ends a sequence. play recovers it, so that all mismatches are the same failure for
// rapid, which may then shrink one into another.
type mismatch string

func (r *run) refuse(format string, args ...any) { panic(mismatch(fmt.Sprintf(format, args...))) }

const plainly = "somebody's "

// isScript reports whether a step is a script. Only scripts must add wake tokens.
func isScript(what string) bool { return !strings.HasPrefix(what, plainly) }

func (r *run) commands(ctx context.Context, commands [][]string) error {
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
func (r *run) tick(ctx context.Context) int64 {
	for {
		if now := r.time(r.c.Do(ctx, r.c.B().Time().Build())); now > r.last {
			return now
		}
	}
}

func (r *run) time(reply rueidis.RedisResult) int64 {
	parts, err := reply.AsIntSlice()
	if err != nil {
		r.refuse("time: %v", err)
	}
	return parts[0]*1000 + parts[1]/1000
}

var groupNames = []string{"g1", "g2", "g 3/ü%"}

// look reads the whole content in one round trip.
func (r *run) look(ctx context.Context) (now int64, s stored) {
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
	whole, any := map[string]bool{}, map[string]bool{}
	defer func() {
		for token, call := range s.Calls {
			if whole[token] && any[token] != (len(call.Refused) > 0) {
				s.damage += fmt.Sprintf("call %s refused %d, and says %v\n", token, len(call.Refused), any[token])
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
			any[token] = true
		case refusal:
			call.Refused = append(call.Refused, true)
		default:
			whole[token] = true
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
			meta = fmt.Sprintf("broken %q", m.Raw)
		}
		add("scheduled %q at %s: %q %s", member, strconv.FormatFloat(m.Due, 'f', -1, 64), m.Payload, meta)
	}
	for _, e := range q.Stream {
		add("entry %s: %s", e.ID, show(e.Fields))
	}
	for _, name := range slices.Sorted(maps.Keys(q.Groups)) {
		g := q.Groups[name]
		add("group %s has everything up to %s", name, g.Last)
		for _, id := range slices.SortedFunc(maps.Keys(g.Pending), compareIDs) {
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
