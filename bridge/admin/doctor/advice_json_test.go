package doctor_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/sizes"
)

// throughJSON returns a value as a program gets it that reads its JSON.
func throughJSON[T any](t *testing.T, value T) (read T) {
	t.Helper()
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// advice returns the lines of advice on a queue. No bridges are known, so there is none about heartbeats.
func advice(q sizes.QueueSizes) string {
	var all []string
	for _, f := range doctor.Advise(doctor.State{NoBeats: true, Queues: []sizes.QueueSizes{q}}) {
		all = append(all, f.Line())
	}
	return strings.Join(all, "\n")
}

// Regression: figures that have other names in JSON were zero in stats and samples that a program had read from JSON.
// So Advise missed late messages of a paused queue, entries that are held for long, and entries that are not reclaimed.
// The JSON of a sample has no timeouts, so its advice leaves out both kinds of entries.
func TestAdviceIsTheSameForFiguresThatWereReadFromJSON(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		p := newPatient(t, s)
		for name, c := range map[string]struct {
			plant       func(k lua.Keys)
			code        string // of the only advice on the stats; "" = no advice
			notOfSample bool   // the advice needs a timeout, which the JSON of a sample does not have
		}{
			"paused": {func(k lua.Keys) {
				p.do("HSET", k.Policy, "held", "1")
				p.do("ZADD", k.Due, p.in(-time.Hour), "late")
			}, "D310", false},
			"limited": {func(k lua.Keys) {
				p.do("HSET", k.Policy, "ready_limit", "1")
				p.do("ZADD", k.Due, p.in(-time.Hour), "late")
			}, "D312", false},
			"hangs": {func(k lua.Keys) {
				id := p.entry(k, 10*time.Minute)
				p.read(k, "c")
				p.do("HSET", k.Calm, lua.HeldField("g"), "- "+id+"="+p.in(-5*time.Minute)+"/"+hashOfC)
			}, "D413", true},
			"takes-long": {func(k lua.Keys) {
				p.do("HSET", k.Policy, "handler_timeout_ms", "600000")
				id := p.entry(k, 10*time.Minute)
				p.read(k, "c")
				p.do("HSET", k.Calm, lua.HeldField("g"), "- "+id+"="+p.in(-5*time.Minute)+"/"+hashOfC)
			}, "", false},
			"not-reclaimed": {func(k lua.Keys) {
				id := p.entry(k, 20*time.Minute)
				p.read(k, "c")
				p.do("XCLAIM", k.Stream, "g", "c", "0", id, "IDLE", "600000", "JUSTID")
			}, "D407", true},
		} {
			c.plant(p.queue(name))
			stats, err := sizes.Stats(t.Context(), p.redis.Client, p.config.Prefix, name)
			if err != nil {
				t.Fatal(err)
			}
			want := advice(stats.QueueSizes())
			found := doctor.Advise(doctor.State{NoBeats: true, Queues: []sizes.QueueSizes{stats.QueueSizes()}})
			if c.code == "" && len(found) > 0 || c.code != "" && (len(found) != 1 || found[0].Code != c.code) {
				t.Errorf("%s: advice is %q, want %q", name, want, c.code)
			}
			redistest.Want(t, name+": advice on stats", advice(throughJSON(t, stats).QueueSizes()), want)

			samples, err := sizes.NewWatcher(p.redis.Client, p.config.Prefix, []string{name}).Look(t.Context())
			if err != nil || len(samples) != 1 {
				t.Fatalf("%d samples, %v", len(samples), err)
			}
			sample, read := samples[0].QueueSizes(), throughJSON(t, samples[0]).QueueSizes()
			if !c.notOfSample {
				redistest.Want(t, name+": advice on a sample", advice(read), advice(sample))
			}
			redistest.Want(t, name+": figures of a sample", pendingOf(read), pendingOf(sample))
		}
	})
}

// pendingOf shows how late the queue is, and the longest times of its group's pending entries, in whole ms as in JSON.
func pendingOf(q sizes.QueueSizes) string {
	g := q.Groups[0]
	figures := fmt.Sprint("behind ", inMillis(q.Behind))
	if g.OldestIdle != nil {
		figures += fmt.Sprint(", idle ", inMillis(*g.OldestIdle))
	}
	if g.HeldLongest != nil {
		figures += fmt.Sprint(", held ", inMillis(g.HeldLongest.Held), " by ", g.HeldLongest.Consumer)
	}
	return figures
}

// inMillis returns whole milliseconds.
func inMillis(d view.Millis) int64 { return time.Duration(d).Milliseconds() }
