package model

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// whole is one random sequence on a queue with partitions. Each part is a sequence of its own, and all parts share
// the memory of messages. Bridges and workers act on each part as on a queue without partitions.
type whole struct {
	*rapid.T
	redis         *bridge.Redis
	prefix, queue string
	client        *bridge.Client
	admin         *admin.Admin
	counts        lua.Counts
	parts         []*run
	serials       *int
	book          *ledger // shared by the parts, except for the serials
	tally         tally
	puller        *pull.Puller
	tokens        []pull.Token      // of the deliveries that the puller returned
	told          []*Queue          // the stored state after the current step
	scripts       map[string]string // of the previous release
	old           bool              // a bridge of the previous release is running
	mixed         bool              // it grew despite keys, so messages with one key may be in several partitions
}

// TestQueueWithPartitionsDoesWhatTheModelSays runs random sequences of the actions of clients, operators, bridges and
// workers on a queue that has partitions and grows. It runs them on a server and on the model, and compares
// everything that can be observed after each step.
func TestQueueWithPartitionsDoesWhatTheModelSays(t *testing.T) {
	if checks := flag.Lookup("rapid.checks").Value; !checksGiven {
		usual := checks.String()
		_ = checks.Set("80")
		defer func() { _ = checks.Set(usual) }()
	}
	s := redistest.Shared(t)
	c := s.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	scripts := before.Scripts(t, before.Release)
	redis := &bridge.Redis{Client: c, Blocking: s.Client(t)}
	prefix, sequences, counts, first := s.Prefix(t), 0, tally{}, mismatch("")
	rapid.Check(t, func(rt *rapid.T) {
		sequences++
		w := newWhole(rt, redis, fmt.Sprint(prefix, "-", sequences), counts)
		w.scripts = scripts
		defer w.clear()
		if differs := w.play(); differs != "" {
			if first == "" { // rapid does not show it when it cannot reproduce it
				first = differs
				t.Logf("sequence %d: %s", sequences, differs)
			}
			rt.Log(differs)
			rt.Fatal("the server does not do what the model says: see above")
		}
	})
	t.Logf("%d sequences on %s: %v", sequences, s.Name(), counts)
}

func newWhole(t *rapid.T, redis *bridge.Redis, prefix string, counts tally) *whole {
	w := &whole{T: t, redis: redis, prefix: prefix, queue: "q", tally: counts, serials: new(int), book: newLedger(),
		admin: redistest.Must(admin.New(redis, prefix)), counts: lua.Counts{1}}
	w.book.whole = w.lost
	w.addPart()
	w.connect()
	return w
}

// connect makes a client that has read the registry and the heartbeats before its next call.
func (w *whole) connect() {
	if w.client != nil {
		_ = w.client.Close()
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: w.redis, Prefix: w.prefix})
	if err != nil {
		panic(err)
	}
	w.client = client
	w.puller = redistest.Must(pull.New(pull.Config{Client: w.redis.Client, Blocking: w.redis.Blocking, Prefix: w.prefix}))
}

func (w *whole) addPart() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	book := *w.book
	book.serials = map[string]string{}
	part := &run{T: w.T, c: w.redis.Client, k: lua.NewKeys(w.prefix, lua.PartitionName(w.queue, len(w.parts))), tally: w.tally,
		q: newQueue(), book: &book, clients: true,
		memory: memory{cursors: map[string]string{}, serials: w.serials}, keyOf: map[string]string{}}
	part.last, part.seen = part.look(ctx)
	part.start = part.last
	if len(w.parts) > 0 {
		part.start, part.last = w.parts[0].start, w.last()
	}
	w.parts = append(w.parts, part)
}

func (w *whole) clear() {
	_ = w.client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	globals := lua.NewGlobals(w.prefix)
	all := []string{"UNLINK", globals.Queues, globals.Wake, globals.Bridges, globals.Defaults}
	for _, part := range w.parts {
		all = append(all, part.k.All()...)
	}
	if err := w.parts[0].commands(ctx, [][]string{all}); err != nil {
		w.Errorf("%v", err)
	}
}

func (w *whole) last() (last int64) {
	for _, part := range w.parts {
		last = max(last, part.last)
	}
	return last
}

// play runs one sequence: it creates groups, runs random steps, and settles everything.
func (w *whole) play() (differs mismatch) {
	defer func() {
		p := recover()
		var ours bool
		if differs, ours = p.(mismatch); p != nil && !ours {
			panic(p)
		}
	}()
	w.setPolicy(pick(w.parts[0], "skip", false, false, true))
	for _, group := range groupNames[:pick(w.parts[0], "groups", 1, 2)] {
		w.parts[0].ensureGroup(group)
	}
	w.growTo(pick(w.parts[0], "partitions", 2, 1, 4), false)
	for range pick(w.parts[0], "first", 0, 4, 8) { // otherwise many sequences have little to act on
		w.schedule()
	}
	w.Repeat(w.actions())
	w.settle()
	return ""
}

// do runs one transition of a whole queue on the server and on the model, as step does for one partition. A call may
// run several scripts, so times that depend on the clock are taken from the server, if they are within the duration
// of the call.
func do[T any](w *whole, what string, call func(context.Context) (T, error), spec func(q *Whole, got T) T) T {
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
	q := &Whole{Counts: w.counts}
	w.told = nil
	var after int64
	seen := make([]stored, len(w.parts))
	for i, part := range w.parts {
		after, seen[i] = part.look(ctx)
		w.told = append(w.told, seen[i].Queue)
		next := part.q.clone()
		next.Now, next.EndedWindows = before, part.seen.ended(before)
		next.NewEntries, next.NewLetters = newer(seen[i].Stream, part.seen.newest), newer(seen[i].Dead, part.seen.newestDead)
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
		if later := atoi(seen.Dead[at].Fields[lua.FieldDead]) - atoi(letter.Fields[lua.FieldDead]); later > 0 && later <= took {
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

// lost audits the whole queue.
func (w *whole) lost() string {
	var books []*ledger
	var queues []*Queue
	for _, part := range w.parts {
		books, queues = append(books, part.book), append(queues, part.seen.Queue)
	}
	return auditAll(books, queues)
}

// audit checks the rules that the stored state alone must follow.
func (w *whole) audit() {
	flying, scheduled := map[string]int{}, map[string]int{}
	for i, part := range w.parts {
		part.audit()
		for note := range part.seen.Turns {
			if key, by, busy := strings.Cut(note, lua.Separator+"busy"+lua.Separator); busy && by != "" {
				if in, known := flying[key]; known && in != i && !w.mixed {
					part.refuse("the key %q is in flight in partitions %d and %d", key, in, i)
				}
				flying[key] = i
			}
		}
		for member := range part.seen.Scheduled {
			if strings.Contains(member, lua.Separator) {
				continue
			}
			if in, twice := scheduled[member]; twice {
				part.refuse("%q is scheduled in partitions %d and %d", member, in, i)
			}
			scheduled[member] = i
		}
	}
}

func (w *whole) settle() {
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
		expected = append(expected, part.k.Policy, part.k.Wake, part.k.Stream, part.k.Dead)
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

// when and soon return points in time that are hours apart, so that none of them is reached during a sequence.
func (w *whole) when() time.Time {
	return w.parts[0].at(pick(w.parts[0], "when", -time.Hour, time.Hour, 2*time.Hour, 3*time.Hour, -2*time.Hour))
}
