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

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// checksGiven is set if the command line has a number of sequences.
var checksGiven bool

func TestMain(m *testing.M) {
	// Defaults of a plain `go test`. The command line overrides them.
	settings := map[string]string{"checks": "200", "steps": "40", "nofailfile": "true", "shrinktime": "60s"}
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

// TestServerDoesWhatTheModelSays runs random sequences of all operations on a server and on the model, and compares
// all observable data after each step. A failure is shrunk to the shortest sequence that still fails.
func TestServerDoesWhatTheModelSays(t *testing.T) {
	s := redistest.Shared(t)
	c := s.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	prefix, sequences, counts := s.Prefix(t), 0, tally{}
	rapid.Check(t, func(rt *rapid.T) {
		sequences++
		r := newRun(rt, c, lua.NewKeys(prefix, fmt.Sprint("q", sequences)), counts)
		defer r.clear()
		if differs := r.play(); differs != "" {
			rt.Log(differs)
			rt.Fatal("the server does not do what the model says: see above")
		}
	})
	t.Logf("%d sequences on %s: %v", sequences, s.Name(), counts)
}

// play runs one sequence: some groups, random steps, and the end of all messages.
func (r *run) play() (differs mismatch) {
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

func newRun(t *rapid.T, c rueidis.Client, k lua.Keys, counts tally) *run {
	r := &run{T: t, c: c, k: k, tally: counts, q: newQueue(), book: newLedger(),
		memory: memory{cursors: map[string]string{}, serials: new(int)},
		keyOf:  map[string]string{}}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	r.keepHistory(ctx)
	r.last, r.seen = r.look(ctx)
	r.start = r.last
	return r
}

func (r *run) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := r.commands(ctx, [][]string{append([]string{"UNLINK"}, r.k.All()...)}); err != nil {
		r.Errorf("%v", err)
	}
}
