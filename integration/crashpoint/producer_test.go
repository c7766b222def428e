package crashpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// A producer is interrupted at each of its requests: registering, each commit of a batch, cancelling, rescheduling,
// clearing its token. Every message that it reported as taken is delivered. While the process lives, it is delivered
// exactly once, and the caller sees at most an uncertain error. If the process dies, another one that repeats all
// calls with the same IDs completes its work.
func TestProducerInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.bridge(r.redis)
	modes := []mode{unsent, halfway, unheard, dies}
	operation{name: "produce", modes: modes, serial: true, run: r.produce}.sweep(t)
	// With a server that does not know the scripts yet, each call takes two requests.
	operation{name: "produce anew", modes: modes, serial: true, run: func(t *testing.T, f *fuse) {
		f.cold = map[string]bool{}
		r.produce(t, f)
	}}.sweep(t)
}

// produced is a producer with its steps. A process that replaces a dead one begins anew.
type produced struct {
	*load
	p    *producer.Producer
	ctx  context.Context
	f    *fuse
	last bool // this process is not interrupted
}

func (r *rig) produce(t *testing.T, f *fuse) {
	l := r.load(t)
	l.groups("a")
	l.setLongVisibility("")
	retry := 20 * time.Second // RetryTimeout
	if f.mode == dies {
		retry = 20 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	redis := f.redis(t, r.server)
	p, err := producer.New(producer.Config{Client: redis.Client, Prefix: r.prefix, MaxCommit: 2, RetryTimeout: retry})
	l.must(err)
	first := &produced{load: l, p: p, ctx: ctx, f: f}
	first.all()
	l.must(p.Close())
	if f.mode == dies && f.blown() {
		p, err := producer.New(producer.Config{Client: r.redis.Client, Prefix: r.prefix, MaxCommit: 2})
		l.must(err)
		second := &produced{load: l, p: p, ctx: ctx, f: f, last: true}
		second.all()
		l.must(p.Close())
		l.sweepOrphans()
	}
	l.ledger.NotExpected("cancelled")
	l.worker(r.redis, "a", "", nil)
	got := l.rest("a")
	l.checkAttempts(nil, 0)
	if f.mode != dies && got.Duplicated > 0 {
		t.Errorf("%d messages were delivered twice", got.Duplicated)
	}
	l.checkSeen(f)
}

// all schedules messages with and without IDs, alone and in batches of several commits, cancels one, and moves one.
func (p *produced) all() {
	windowed := func(id string, delay time.Duration) bridge.NewMessage {
		m := message(id, delay)
		m.Dedup = 50 * time.Millisecond
		if p.f.mode == dies {
			m.Dedup = time.Minute // until another process has taken over
		}
		return m
	}
	anonymous := func(delay time.Duration) bridge.NewMessage {
		m := message("", delay)
		m.Payload = []byte(anyIDPayload) // the ID is not known yet
		return m
	}
	p.schedule(anonymous(0))
	p.schedule(anonymous(20 * time.Millisecond))
	p.schedule(anonymous(30*time.Millisecond), anonymous(40*time.Millisecond), anonymous(50*time.Millisecond))
	p.schedule(windowed("one", 0), windowed("two", 20*time.Millisecond), anonymous(0), windowed("three", 30*time.Millisecond),
		anonymous(40*time.Millisecond))
	p.schedule(windowed("cancelled", time.Hour), windowed("moved", time.Hour))

	done, err := p.p.Cancel(p.ctx, p.queue, "cancelled")
	if !done && !(p.f.mode == unheard && errors.Is(err, producer.ErrUncertain)) {
		p.failUnlessDead("cancel", err)
	}
	due, err := p.p.Reschedule(p.ctx, p.queue, "moved", 50*time.Millisecond, time.Time{})
	switch {
	case err == nil:
		p.ledger.Sent("moved", due.UnixMilli())
	case p.f.mode == unheard && errors.Is(err, producer.ErrUncertain):
		// It was moved, and became ready before the call was repeated.
		p.ledger.Sent("moved", 0)
	case p.last && errors.Is(err, producer.ErrNotScheduled): // it was moved before, and is not scheduled any more
		p.ledger.Sent("moved", 0)
	default:
		p.failUnlessDead("reschedule", err)
	}
}

func (p *produced) schedule(messages ...bridge.NewMessage) {
	results, err := p.p.ScheduleBatch(p.ctx, p.queue, messages)
	if err != nil {
		p.failUnlessDead("schedule", err)
		return
	}
	for i, r := range results {
		m := messages[i]
		switch {
		case m.ID == "moved": // its due time is recorded later
			p.ledger.MaybeSent(r.ID, 0)
		case m.ID == "cancelled":
		case r.Err == nil, p.last && errors.Is(r.Err, producer.ErrDuplicate):
			p.ledger.Sent(r.ID, 0)
			continue
		default:
			p.ledger.MaybeSent(r.ID, 0)
		}
		if r.Err != nil && !(p.last && errors.Is(r.Err, producer.ErrDuplicate)) {
			p.failUnlessDead(fmt.Sprintf("schedule %q", m.ID), r.Err)
		}
	}
}

// sweepOrphans does at once what a bridge does over some minutes: it deletes payloads that a dead producer wrote
// without scheduling their messages.
func (l *load) sweepOrphans() {
	for _, hash := range []string{l.k.Payload, l.k.Meta} {
		all, err := lua.SweepOrphans(l.ctx(), l.redis.Client, l.k.Due, hash, "", 1000, nil)
		l.must(err)
		var ripe []lua.Watched
		for _, one := range all.Found {
			ripe = append(ripe, lua.Watched{Orphan: one, Ripe: true})
		}
		_, err = lua.SweepOrphans(l.ctx(), l.redis.Client, l.k.Due, hash, "", 1, ripe)
		l.must(err)
	}
}

// failUnlessDead fails the test for the error of a call, except in a dead process, where every call fails.
func (p *produced) failUnlessDead(what string, err error) {
	if p.last || p.f.mode != dies || !p.f.blown() {
		p.Errorf("%s: %v", what, err)
	}
}

// checkSeen checks the tokens of calls and the dedup windows. After a clean run, no token is left. After any run, each
// of them ends within two minutes.
func (l *load) checkSeen(f *fuse) {
	l.Helper()
	seen, err := l.do("ZRANGE", l.k.Seen, "0", "-1", "WITHSCORES").AsZScores()
	l.must(err)
	for _, one := range seen {
		ends := time.UnixMilli(int64(one.Score))
		if strings.Contains(one.Member, lua.Separator) && !f.blown() {
			l.Errorf("a token is left: %q", one.Member)
		}
		if left := time.Until(ends); left > 2*time.Minute {
			l.Errorf("%q is remembered for %s", one.Member, left)
		}
	}
}
