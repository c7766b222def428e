package lmstfy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/integration/redistest"
)

// A job of every state in lmstfy becomes a message in the state that fits, with the same body, attributes, tries and
// times: ready, scheduled for a delay, scheduled for the end of the ttr that a consumer has, or a dead letter.
func TestWhatAJobComesAs(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	now := time.Now()
	queue := queueID{"shop", "mail"}
	binary := "\x00\xff{\n" + strings.Repeat("x", 100)
	jobs := map[string]job{
		"ready":   {queue, jobID(now.Add(-2*time.Second), 0, ""), binary, nil, 0},
		"version": {queue, jobID(now.Add(-time.Second), 0, "1"), binary, map[string]string{"a-b": "Ü"}, time.Hour},
		"empty":   {queue, jobID(now, 0, "1"), "", map[string]string{}, 0},
		"delayed": {queue, jobID(now, time.Minute, ""), "d", nil, time.Hour},
		"flying":  {queue, jobID(now.Add(-time.Minute), 0, ""), "f", nil, time.Hour},
		"last":    {queue, jobID(now.Add(-time.Minute), 0, ""), "l", nil, time.Hour},
		"ending":  {queue, jobID(now.Add(-time.Minute), 0, ""), "e", nil, time.Minute},
		"second":  {queue, jobID(now, time.Second, ""), "s", nil, 0},
		"dead":    {queue, jobID(now.Add(-time.Hour), 0, ""), binary, nil, 0},
	}
	for _, j := range jobs {
		o.pool(j)
	}
	for _, name := range []string{"ready", "version", "empty"} {
		o.ready(jobs[name], 65535)
	}
	o.timed(jobs["delayed"], 3, now.Add(time.Minute))
	o.timed(jobs["flying"], 2, now.Add(2*time.Minute))
	o.timed(jobs["last"], 0, now.Add(3*time.Minute))
	o.timed(jobs["ending"], 0, now.Add(3*time.Minute)) // its ttl ends before its ttr
	o.timed(jobs["second"], 0, now.Add(time.Second))   // looks like a delayed job
	o.dead(jobs["dead"])
	o.ready(job{queue: queue, id: jobID(now, 0, "")}, 1) // acknowledged: only the list element is left
	redistest.Want(t, "moved", o.move(), tally{Ready: 3, Delayed: 1, InFlight: 4, Dead: 1})

	found := o.holds("shop:mail")
	redistest.Want(t, "jobs", len(found), len(jobs))
	// is checks the record of a job: its kind, due time, tries, and how long after now it expires (0 = never).
	is := func(name string, kind admin.RecordKind, due time.Time, tries int, expires time.Duration) admin.Record {
		t.Helper()
		r, ok := found[jobs[name].id]
		if !ok || r.Kind != kind || string(r.Payload) != jobs[name].body || r.MaxAttempts != tries {
			t.Errorf("%s: %+v", name, r)
		}
		if away := time.UnixMilli(r.Due).Sub(due).Abs(); away > time.Second {
			t.Errorf("%s: due %s away", name, away)
		}
		away := time.UnixMilli(r.Expires).Sub(now.Add(expires)).Abs()
		if expires > 0 && away > 2*time.Second || expires == 0 && r.Expires != 0 {
			t.Errorf("%s: expires %d", name, r.Expires)
		}
		return r
	}
	is("ready", admin.RecordReady, now.Add(-2*time.Second), 65535, 0)
	r := is("version", admin.RecordReady, now.Add(-time.Second), 65535, time.Hour)
	redistest.Want(t, "attributes", fmt.Sprint(r.Headers), "map[attr-a-b:Ü]")
	is("empty", admin.RecordReady, now, 65535, 0)
	is("delayed", admin.RecordScheduled, now.Add(time.Minute), 3, time.Hour)
	is("flying", admin.RecordScheduled, now.Add(2*time.Minute), 2, time.Hour)
	r = is("last", admin.RecordDead, now.Add(-time.Minute), 1, 0)
	redistest.Want(t, "group and reason of a job without a try left", r.Group+" "+r.Reason, "lmstfy max_attempts")
	is("second", admin.RecordDead, now.Add(time.Second), 1, 0)
	is("ending", admin.RecordScheduled, now.Add(3*time.Minute), 1, time.Minute)
	r = is("dead", admin.RecordDead, now.Add(-time.Hour), 1, 0)
	redistest.Want(t, "group and reason of a dead job", r.Group+" "+r.Reason, "lmstfy max_attempts")
}

// A job that was moved is not moved again by a later run, although meanwhile it was delivered and acknowledged in
// duestream (here all its keys there are deleted), and has another state in lmstfy.
func TestMovingAgainMovesNothingTwice(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	now, queue := time.Now(), queueID{"ns", "q"}
	var jobs []job
	for i := range 300 { // several batches
		j := job{queue, jobID(now.Add(-time.Second), 0, ""), fmt.Sprint(i), nil, 0}
		jobs = append(jobs, j)
		o.pool(j)
		switch i % 3 {
		case 0:
			o.ready(j, 3)
		case 1:
			o.timed(j, i%2, now.Add(time.Hour))
		default:
			o.dead(j)
		}
	}
	redistest.Want(t, "a dry run", o.move(dry), tally{Ready: 100, InFlight: 100, Dead: 100})
	redistest.Want(t, "another namespace", o.move(only("other", "")), tally{})
	redistest.Want(t, "another queue", o.move(only("", "other")), tally{})
	redistest.Want(t, "the first time", o.move(only("ns", "q")),
		tally{Ready: 100, InFlight: 100, Dead: 100})
	for _, key := range []string{"stream", "due", "payload", "meta", "dead"} {
		o.do("DEL", "duestream:{ns:q}:"+key)
	}
	o.do("DEL", "timer_set", "q/ns/q", "d/ns/q")
	for i, j := range jobs { // move each job to another structure
		switch i % 3 {
		case 0:
			o.dead(j)
		case 1:
			o.ready(j, 1)
		default:
			o.timed(j, 1, now)
		}
	}
	redistest.Want(t, "the second time", o.move(), tally{Known: 300})
	redistest.Want(t, "with remove", o.move(removing), tally{Known: 300, Removed: 300})
	redistest.Want(t, "what is left of lmstfy",
		o.int("EXISTS", "timer_set", "q/ns/q", "d/ns/q", jobs[0].queue.key("j")+"/"+jobs[0].id), 0)
	redistest.Want(t, "the third time", o.move(removing), tally{})
}

// Move finds every job of an lmstfy server that is in use. Such a server moves jobs between its structures while Move
// reads them, and a job that is being moved is in none of them.
func TestNothingIsMissedWhileTheServerWorks(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	const count = 3000
	now := time.Now()
	want := map[string]string{}
	for i := range count {
		j := job{queueID{"ns", fmt.Sprint("q", i%3)}, jobID(now, 0, ""), fmt.Sprint("body ", i), nil, 0}
		want[j.id] = j.body
		o.pool(j)
		o.ready(j, 9)
	}
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for worker := range 3 {
		working.Go(func() {
			queue := queueID{"ns", fmt.Sprint("q", worker)}
			for ctx.Err() == nil {
				raw, err := o.c.Do(ctx, o.c.B().Rpop().Key(queue.key("q")).Build()).ToString()
				if err == nil {
					j := job{queue: queue, id: raw[4:]}
					o.timed(j, 8, now) // ttr 0, so it comes back at once
				}
				if member, err := o.c.Do(ctx, o.c.B().Zrandmember().Key("timer_set").Build()).ToString(); err == nil {
					if of, e, ok := timerEntry([]string{member, "1"}); ok {
						o.do("EVAL", "if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 then redis.call('LPUSH', KEYS[2], ARGV[2]) end",
							"2", "timer_set", of.key("q"), member, listElement(e.id, 9))
					}
				}
			}
		})
	}
	sum := o.move(removing)
	stop()
	working.Wait()
	redistest.Want(t, "moved", sum.moved(), count)
	redistest.Want(t, "removed", sum.Removed, count)
	got := map[string]string{}
	for _, queue := range []string{"ns:q0", "ns:q1", "ns:q2"} {
		for id, r := range o.holds(queue) {
			got[id] = string(r.Payload)
		}
	}
	redistest.Want(t, "the same jobs", maps.Equal(got, want), true)
}

// If lmstfy's server dies while it moves a job, only the job's body is left. The migration finds the body, and the
// job is delivered.
func TestAJobThatLmstfyLostIsFound(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	j := job{queueID{"ns", "q"}, jobID(time.Now(), 0, ""), "x", nil, 0}
	o.pool(j)
	redistest.Want(t, "moved", o.move(), tally{Stray: 1})
	r := o.holds("ns:q")[j.id]
	redistest.Want(t, "kind, payload and tries", fmt.Sprint(r.Kind, " ", string(r.Payload), " ", r.MaxAttempts),
		"ready x 1")
}

// Jobs that duestream cannot take are reported and stay in lmstfy. The other jobs are moved.
func TestWhatIsRefusedStaysWhereItIs(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	now := time.Now()
	good := job{queueID{"ns", "q"}, jobID(now, 0, ""), "x", nil, 0}
	for _, j := range []job{
		good,
		{queueID{"ns", "_q"}, jobID(now, 0, ""), "x", nil, 0},
		{queueID{"ns", strings.Repeat("q", 200)}, jobID(now, 0, ""), "x", nil, 0},
		{queueID{"ns", "q"}, jobID(now, 0, "1"), "no JSON", nil, 0},
	} {
		o.pool(j)
		o.ready(j, 1)
	}
	var refused int
	sum := o.move(removing, func(c *migrate.Config) {
		c.Refused = func(_, _ string, err error) {
			refused++
			if err == nil || errors.Is(err, admin.ErrKnown) {
				t.Error(err)
			}
		}
	})
	redistest.Want(t, "moved", sum, tally{Ready: 1, Refused: 3, Removed: 1})
	redistest.Want(t, "reported", refused, 3)
	redistest.Want(t, "list elements that stay", o.int("LLEN", "q/ns/q")+o.int("LLEN", "q/ns/_q"), 2)
	if _, there := o.holds("ns:q")[good.id]; !there {
		t.Error("the good one is not there")
	}
}

// The first job of a queue finds the group and the settings that a gateway needs, so no consumer has to come first.
func TestTheQueueIsReadyForAGateway(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	j := job{queueID{"ns", "q"}, jobID(time.Now(), 0, ""), "x", nil, 0}
	o.pool(j)
	o.ready(j, 3)
	redistest.Want(t, "moved", o.move(), tally{Ready: 1})
	p, _, err := o.op.ReadPolicy(t.Context(), "ns:q", lmstfy.Group)
	redistest.Want(t, "settings", fmt.Sprint(p.MaxAttempts, " ", p.VisibilityTimeout, " ", err), "1 168h0m0s <nil>")
	stats, err := o.op.Stats(t.Context(), "ns:q")
	redistest.Want(t, "groups", fmt.Sprint(len(stats.Groups), " ", err), "1 <nil>")
}

// A Redis Cluster is refused, because a scan reads one of its servers alone.
func TestAClusterIsRefused(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), redistest.Cluster(t, 3, 0).Server().Client(t), Options{})
	redistest.Want(t, "error", strings.Contains(fmt.Sprint(err), "must be a single Redis"), true)
}
