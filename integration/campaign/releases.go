package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// ofBefore ends the names of processes of the previous release. They are parts of that release's campaign, and write
// the same ledgers.
const ofBefore = ".before"

func (w *writer) before() bool { return strings.HasSuffix(w.name, ofBefore) }

// refusedOldBridge is the refusal of a message that a live bridge of the previous release does not support.
const refusedOldBridge = "old-bridge"

// Faults of a campaign of two releases.
const (
	faultUpgrade       = "bridge upgraded"
	faultRollback      = "bridges rolled back"
	faultQueueRollback = "queue rollback"
	faultChange        = "producer or gateway changes release"
	faultChangeWorker  = "worker changes release"
)

// setRelease decides whether the first process of a slot is of the previous release: that of each bridge, of the
// holder, and of some of the others. Producers, gateways and workers with index 0 in their role and group, and the
// operator, change with the bridges. The others never change.
func (c *controller) setRelease(s *slot) {
	switch s.part.Role {
	case roleBridge, roleHolder, roleOperator:
		s.before = true
	case roleGateway:
		s.before = s.part.Index == 0
	case roleProducer, roleWorker:
		s.before = s.part.Index != 1
	case rolePlain:
		s.before = s.part.Index == 0
	}
}

// withBefore gives users the rights that the documents give while both releases run: the line of the previous
// release, and the words and selectors that this one adds.
func (g *guests) withBefore(document string) {
	for name, old := range acl.Users(withPrefix(document)) {
		user, is := g.users[name]
		if !is {
			continue
		}
		has := map[string]bool{}
		for _, word := range words(old.Line) {
			has[word] = true
		}
		line := old.Line
		for _, word := range words(user.Line) {
			if !has[word] && (word[0] == '+' || word[0] == '(') {
				line += " " + word
			}
		}
		user.Line = line
		g.users[name] = user
	}
}

// words splits the line of a user at spaces, except within selectors.
func words(line string) (all []string) {
	for _, word := range strings.Fields(line) {
		if n := len(all); n > 0 && strings.HasPrefix(all[n-1], "(") && !strings.HasSuffix(all[n-1], ")") {
			all[n-1] += " " + word
			continue
		}
		all = append(all, word)
	}
	return all
}

// mover upgrades the campaign and rolls it back, as docs/operations/upgrade.md documents, while the load goes on.
type mover struct {
	c      *controller
	random *rand.Rand
	dwell  [2]time.Duration // shortest and longest pause between two steps
	until  time.Time        // end of the recurrences
	recurs int              // number of recurrences that it created
}

// run upgrades and rolls back until ctx ends, at least once, and ends with an upgrade.
func (m *mover) run(ctx context.Context) error {
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		if err := errors.Join(m.old(), m.up(), m.back(round%2 == 0)); err != nil {
			return err
		}
		if errors.Is(context.Cause(ctx), errFailed) {
			return nil
		}
	}
	return errors.Join(m.old(), m.up())
}

func (c *controller) newMover() *mover {
	for _, kind := range []string{faultUpgrade, faultRollback, faultQueueRollback, faultChange, faultChangeWorker} {
		c.kinds[kind] = true
	}
	return &mover{c: c, random: rand.New(rand.NewPCG(c.cfg.Seed, 1002)), until: c.recurring[0].End,
		dwell: [2]time.Duration{4 * c.cfg.Pause[0], 4 * c.cfg.Pause[1]}}
}

func (m *mover) wait() {
	<-time.After(m.dwell[0] + time.Duration(m.random.Float64()*float64(m.dwell[1]-m.dwell[0])))
}

// old waits for a while with only bridges of the previous release. Then it checks that writes which these bridges do
// not support are refused.
func (m *mover) old() error {
	m.wait()
	m.c.weather.Lock()
	defer m.c.weather.Unlock()
	if err := m.c.await(30*time.Second, func() (string, error) {
		n, err := m.c.number("ZCOUNT", lua.NewGlobals(prefix).Bridges, number(time.Now().Add(-time.Second).UnixMilli()), "+inf")
		if n == 0 {
			return "no bridge lives", err
		}
		return "", err
	}); err != nil {
		return err
	}
	for what, write := range m.writes() {
		if err := write(); !errors.Is(err, bridge.ErrOldBridge) {
			return fmt.Errorf("%s beside bridges of the release before: %v", what, err)
		}
	}
	return nil
}

// writes returns the writes that must be refused while a bridge of the previous release is alive. Messages with a key
// are refused, too; producers test those.
func (m *mover) writes() map[string]func() error {
	return map[string]func() error{"a recurrence": m.recur, "a rate and a ready limit": m.limit}
}

// up upgrades one bridge after another, then workers, then producers. Once the old bridges are gone, the new kinds of
// writes must be accepted.
func (m *mover) up() error {
	for _, s := range m.c.family.of(roleBridge) {
		if err := m.change(s, false, faultUpgrade); err != nil {
			return err
		}
		m.wait()
	}
	for what, write := range m.writes() {
		if err := m.insist(write); err != nil {
			return fmt.Errorf("%s beside bridges of this release: %w", what, err)
		}
	}
	err := m.clients(false)
	m.wait()
	return err
}

// insist repeats a write for at most 30 s, as long as it fails because of a bridge of the previous release, which may
// have just ended, or because the server is unavailable.
func (m *mover) insist(write func() error) error {
	for deadline := time.Now().Add(30 * time.Second); ; <-time.After(100 * time.Millisecond) {
		m.c.weather.Lock()
		err := write()
		m.c.weather.Unlock()
		passes := errors.Is(err, bridge.ErrOldBridge) || errors.Is(err, bridge.ErrUnavailable)
		if !passes || time.Now().After(deadline) {
			return err
		}
	}
}

// clients changes the release of the workers, the producer, the operator and the gateway that change.
func (m *mover) clients(before bool) error {
	workers, producers := m.c.family.of(roleWorker), m.c.family.of(roleProducer, roleOperator, roleGateway)
	slots := append(workers, producers...)
	if before {
		slots = append(producers, workers...)
	}
	for _, s := range slots {
		kind := faultChange
		if s.part.Role == roleWorker {
			kind = faultChangeWorker
		}
		if s.part.Index > 0 {
			continue
		}
		if err := m.change(s, before, kind); err != nil {
			return err
		}
	}
	return nil
}

// change stops a process, and starts it again with the other release.
func (m *mover) change(s *slot, before bool, kind string) error {
	a := m.attacker()
	defer a.release()
	a.take(s)
	a.from = time.Now()
	s.isOf(before)
	hits, _, err := a.replace(s, syscall.SIGTERM, producerTries+15*time.Second)
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	m.c.timeline.add(Fault{Kind: kind, From: a.from, Until: time.Now(), Hits: hits})
	return nil
}

func (m *mover) attacker() *attacker { return &attacker{c: m.c, random: m.random} }

func (s *slot) isOf(before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// back rolls back to the previous release: producers and workers first, then all bridges. In between, it rolls back
// the queues if queues is set. A previous release that knows keys does not need the rollback of queues, so both ways
// must work.
func (m *mover) back(queues bool) error {
	if err := m.clients(true); err != nil {
		return err
	}
	m.wait()
	bridges := m.c.family.of(roleBridge)
	for _, s := range bridges {
		s.busy.Lock()
		defer s.busy.Unlock()
	}
	from, hits := time.Now(), names(bridges)
	if err := endAll(bridges, 25*time.Second); err != nil {
		return fmt.Errorf("%s: %w", faultRollback, err)
	}
	if queues {
		if err := m.rollBackQueues(hits); err != nil {
			return err
		}
	}
	for _, s := range bridges {
		s.isOf(true)
		if err := m.c.family.start(s); err != nil {
			return err
		}
	}
	m.c.timeline.add(Fault{Kind: faultRollback, From: from, Until: time.Now(), Hits: hits})
	return nil
}

// rollBackQueues runs `duestream queue rollback`, and repeats it until it succeeds: the server may be down, and a
// killed bridge counts as alive for five seconds.
func (m *mover) rollBackQueues(hits []string) error {
	from := time.Now()
	err := m.c.await(60*time.Second, func() (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		r, err := bridge.Dial(ctx, m.c.server.URL())
		if err != nil {
			return err.Error(), nil
		}
		defer r.Close()
		for _, queue := range []string{queueMain, queueSide} {
			if _, err := redistest.Must(admin.New(r, prefix)).RollBackQueue(ctx, queue, false); err != nil {
				return err.Error(), nil
			}
		}
		return "", nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", faultQueueRollback, err)
	}
	m.c.timeline.add(Fault{Kind: faultQueueRollback, From: from, Until: time.Now(), Hits: hits})
	return nil
}

// limit sets a rate and a ready limit that the main queue does not reach for long.
func (m *mover) limit() error {
	ctx, cancel := context.WithTimeout(context.Background(), producerTries)
	defer cancel()
	r, err := bridge.Dial(ctx, m.c.server.URL())
	if err != nil {
		return fmt.Errorf("%w: %w", bridge.ErrUnavailable, err)
	}
	defer r.Close()
	rate, limit := bridge.Rate("5000/s"), 20_000
	change := admin.PolicyUpdate{Rate: &rate, ReadyLimit: &limit}
	return redistest.Must(admin.New(r, prefix)).WritePolicy(ctx, queueMain, "", change)
}

// recur creates another recurrence, which ends with the load, or two seconds after its start if the load has ended.
func (m *mover) recur() error {
	ctx, cancel := context.WithTimeout(context.Background(), producerTries+5*time.Second)
	defer cancel()
	r, err := bridge.Dial(ctx, m.c.server.URL())
	if err != nil {
		return fmt.Errorf("%w: %w", bridge.ErrUnavailable, err)
	}
	defer r.Close()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix, RetryTimeout: producerTries})
	if err != nil {
		return err
	}
	defer client.Close()
	start := time.Now().Add(5 * time.Second).Truncate(time.Second)
	one := bridge.Recurrence{Queue: queueMain, Name: plan{queueMain, kindOK, 0}.id("later", uint64(m.recurs+1)),
		Every: time.Second, Phase: 750 * time.Millisecond, Start: start, End: m.until, Missed: bridge.MissedAll}
	if m.until.Before(start) {
		one.End = start.Add(2 * time.Second)
	}
	if _, err := client.Recur(ctx, one); err != nil {
		return err
	}
	m.recurs++
	m.c.recurring = append(m.c.recurring, one)
	return nil
}

// releases counts the work of processes of the previous release, and the refusals that they caused.
type releases struct {
	accepted   int // messages of its producers
	deliveries int // deliveries to its workers
	refused    int // messages that were refused because one of its bridges was alive
}

func (r *releases) count(records []record) {
	took := false
	for _, one := range records {
		switch {
		case one.verb == verbTaken && one.by.before() && !took:
			took = true
			r.accepted++
		case one.verb == verbStart && one.by.before():
			r.deliveries++
		case one.verb == verbRefuse && one.word == refusedOldBridge:
			r.refused++
		}
	}
}

// unused names features that were not used. It ignores refusals because of an old bridge: in a short run, no message
// with a key may meet one. The mover tests two other writes each time.
func (r *releases) unused() (text string) {
	for what, n := range map[string]int{"accepted from a producer of the release before": r.accepted,
		"delivered to a worker of the release before": r.deliveries} {
		if n == 0 {
			text += ", none " + what
		}
	}
	return text
}

// forgotten reports whether a rollback of the queue deleted a message's hold on its key while it was in flight.
func (a *auditor) forgotten(in span) bool {
	return slices.ContainsFunc(a.explainer.faults, func(f Fault) bool {
		return f.Kind == faultQueueRollback && f.Until.After(lua.EntryTime(in.first)) && f.From.Before(lua.EntryTime(in.last))
	})
}

// oldProgram returns the campaign of the previous release, whose parts take part in this one.
func (c *controller) oldProgram() string {
	return before.Tests(c.t, before.Release, "integration/campaign")
}
