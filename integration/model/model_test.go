package model

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// How many sequences a test runs without a number on the command line: on the shared server, on each other server, and
// of a queue with partitions.
const (
	usualChecks       = "120"
	otherServerChecks = "40"
	partitionChecks   = "80"
)

// checksGiven is set if the command line has a number of sequences.
var checksGiven bool

func TestMain(m *testing.M) {
	// Defaults of a plain `go test`. The command line overrides them.
	settings := map[string]string{"checks": usualChecks, "steps": "40", "nofailfile": "true", "shrinktime": "60s"}
	if seed := os.Getenv("DUESTREAM_TEST_SEED"); seed != "" {
		settings["seed"] = seed
	}
	checksGiven = slices.ContainsFunc(os.Args, func(arg string) bool { return strings.Contains(arg, "rapid.checks") })
	for name, value := range settings {
		if err := flag.Set("rapid."+name, value); err != nil {
			panic(err)
		}
	}
	redistest.Main(m)
}

// setChecks sets the number of sequences of a test, unless the command line has one.
func setChecks(t *testing.T, number string) {
	if checks := flag.Lookup("rapid.checks").Value; !checksGiven {
		before := checks.String()
		_ = checks.Set(number)
		t.Cleanup(func() { _ = checks.Set(before) })
	}
}

// TestServerDoesWhatTheModelSays runs random sequences of all operations on each server and on the model, and compares
// all observable data after each step. A failure is shrunk to the shortest sequence that still fails.
func TestServerDoesWhatTheModelSays(t *testing.T) {
	shared := redistest.Shared(t)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s != shared {
			setChecks(t, otherServerChecks)
		}
		c := s.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
		prefix, sequences, counts := s.Prefix(t), 0, tally{}
		rapid.Check(t, func(rt *rapid.T) {
			sequences++
			r := newSequence(rt, c, lua.NewKeys(prefix, fmt.Sprint("q", sequences)), counts)
			defer r.clear()
			if differs := r.play(); differs != "" {
				rt.Log(differs)
				rt.Fatal("the server does not do what the model says: see above")
			}
		})
		t.Logf("%d sequences on %s: %v", sequences, s.Name(), counts)
	})
}

// play runs one sequence: some groups, random steps, and the end of all messages.
func (r *sequence) play() (differs mismatch) {
	defer func() {
		p := recover()
		var ours bool
		if differs, ours = p.(mismatch); p != nil && !ours {
			panic(p)
		}
	}()
	for _, group := range groupNames[:pick(r, "groups", 1, 2, 3, 0)] {
		r.ensureGroup(group)
	}
	r.skipKeys(pick(r, "key_failure", "block", "skip"))
	r.Repeat(r.actions())
	r.settle()
	return ""
}

func newSequence(t *rapid.T, c rueidis.Client, k lua.Keys, counts tally) *sequence {
	r := &sequence{T: t, c: c, k: k, tally: counts, q: newQueue(), book: newLedger(),
		memory: memory{cursors: map[string]string{}, serials: new(int)},
		keyOf:  map[string]string{}}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	r.keepHistory(ctx)
	r.last, r.seen = r.look(ctx)
	r.start = r.last
	return r
}

func (r *sequence) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := r.commands(ctx, [][]string{append([]string{"UNLINK"}, r.k.All()...)}); err != nil {
		r.Errorf("%v", err)
	}
}

// queueSequence is one random sequence on a queue with partitions. Each part is a sequence of its own, and all parts
// share the memory of messages. Bridges and workers act on each part as on a queue without partitions.
type queueSequence struct {
	*rapid.T
	redis         *bridge.Redis
	prefix, queue string
	client        *bridge.Client
	admin         *admin.Admin
	counts        lua.Counts
	parts         []*sequence
	serials       *int
	book          *ledger // shared by the parts, except for the serials
	tally         tally
	puller        *pull.Puller
	tokens        []pull.Token      // of the deliveries that the puller returned
	told          []*Queue          // the stored state after the current step
	scripts       map[string]string // of the previous release
	old           bool              // a bridge of the previous release is running
	mixed         bool              // the queue grew despite keys, so messages with one key may be in several partitions
}

// TestQueueWithPartitionsDoesWhatTheModelSays runs random sequences of the actions of clients, operators, bridges and
// workers on a queue that has partitions and grows. It runs them on a server and on the model, and compares
// everything that can be observed after each step.
func TestQueueWithPartitionsDoesWhatTheModelSays(t *testing.T) {
	setChecks(t, partitionChecks)
	s := redistest.Shared(t)
	c := s.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	scripts := before.Scripts(t, before.Release)
	redis := &bridge.Redis{Client: c, Blocking: s.Client(t)}
	prefix, sequences, counts, first := s.Prefix(t), 0, tally{}, mismatch("")
	rapid.Check(t, func(rt *rapid.T) {
		sequences++
		w := newQueueSequence(rt, redis, fmt.Sprint(prefix, "-", sequences), counts)
		w.scripts = scripts
		defer w.clear()
		if differs := w.play(); differs != "" {
			if first == "" { // log the first difference here, because rapid does not show one that it cannot reproduce
				first = differs
				t.Logf("sequence %d: %s", sequences, differs)
			}
			rt.Log(differs)
			rt.Fatal("the server does not do what the model says: see above")
		}
	})
	t.Logf("%d sequences on %s: %v", sequences, s.Name(), counts)
}

func newQueueSequence(t *rapid.T, redis *bridge.Redis, prefix string, counts tally) *queueSequence {
	w := &queueSequence{T: t, redis: redis, prefix: prefix, queue: "q", tally: counts, serials: new(int),
		book:  newLedger(),
		admin: redistest.Must(admin.New(redis, prefix)), counts: lua.Counts{1}}
	w.book.auditQueue = w.lost
	w.addPart()
	w.connect()
	return w
}

// connect makes a client that has read the registry and the heartbeats before its next call.
func (w *queueSequence) connect() {
	if w.client != nil {
		_ = w.client.Close()
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: w.redis, Prefix: w.prefix})
	if err != nil {
		panic(err)
	}
	w.client = client
	w.puller = redistest.Must(pull.New(pull.Config{
		Client:   w.redis.Client,
		Blocking: w.redis.Blocking,
		Prefix:   w.prefix,
	}))
}

func (w *queueSequence) addPart() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	book := *w.book
	book.serials = map[string]string{}
	k := lua.NewKeys(w.prefix, lua.PartitionName(w.queue, len(w.parts)))
	part := &sequence{T: w.T, c: w.redis.Client, k: k, tally: w.tally, q: newQueue(), book: &book, clients: true,
		memory: memory{cursors: map[string]string{}, serials: w.serials}, keyOf: map[string]string{}}
	part.last, part.seen = part.look(ctx)
	part.start = part.last
	if len(w.parts) > 0 {
		part.start, part.last = w.parts[0].start, w.last()
	}
	w.parts = append(w.parts, part)
}

func (w *queueSequence) clear() {
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

func (w *queueSequence) last() (last int64) {
	for _, part := range w.parts {
		last = max(last, part.last)
	}
	return last
}

// play runs one sequence: it creates groups, runs random steps, and settles everything.
func (w *queueSequence) play() (differs mismatch) {
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
	for range pick(w.parts[0], "first", 0, 4, 8) { // without messages at the begin, many sequences have little to act on
		w.schedule()
	}
	w.Repeat(w.actions())
	w.settle()
	return ""
}
