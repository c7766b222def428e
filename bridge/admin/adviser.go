package admin

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/bridge/push"
)

// Adviser gives advice like Advise for a program that looks at queues again and again. It remembers the speed of groups
// for a minute or two, and asks Redis which groups in trouble are targets of callbacks. It is safe for concurrent use.
type Adviser struct {
	admin *Admin
	store *push.Store

	asking chan struct{} // has one element while somebody reads targets

	mu      sync.Mutex // never held while Redis is asked
	speeds  map[doctor.Group]*groupSpeed
	noted   map[string]time.Time // last sample of each queue whose rates were added
	targets map[doctor.Group]bool
	asked   map[string]time.Time // when the targets of a queue were last read
}

// Times of an Adviser.
const (
	speedSpan    = time.Minute      // a speed is the mean over at least one span and at most two
	targetsFresh = 10 * time.Second // what was read of targets is used for this long
	askedQueues  = 500              // queues whose targets are read at a time
)

// groupSpeed counts the messages of a group in the present span and in the span before it.
type groupSpeed struct{ now, before speedCount }

// speedCount counts messages in a time.
type speedCount struct {
	ready, done float64
	span        time.Duration
}

// add counts messages at these rates during a time.
func (g *groupSpeed) add(ready, done float64, d time.Duration) {
	if g.now.span >= speedSpan {
		g.before, g.now = g.now, speedCount{}
	}
	g.now.ready += ready * d.Seconds()
	g.now.done += done * d.Seconds()
	g.now.span += d
}

// rates returns the mean rates; known is false until a span has passed.
func (g *groupSpeed) rates() (rates doctor.Rates, known bool) {
	span := g.now.span + g.before.span
	if span < speedSpan {
		return rates, false
	}
	return doctor.Rates{Ready: (g.now.ready + g.before.ready) / span.Seconds(),
		Done: (g.now.done + g.before.done) / span.Seconds()}, true
}

// Adviser returns an Adviser. Redis is not touched.
func (a *Admin) Adviser() *Adviser {
	return &Adviser{
		admin: a, store: a.pushStore(), asking: make(chan struct{}, 1), speeds: map[doctor.Group]*groupSpeed{},
		noted: map[string]time.Time{}, targets: map[doctor.Group]bool{}, asked: map[string]time.Time{},
	}
}

// Advise is Admin.Advise with the speeds and the targets of groups. It reads the targets of a queue only if entries
// wait for one of its groups, at most every ten seconds. After a failed read, or when ctx ends, it uses the targets
// that it read before.
func (v *Adviser) Advise(ctx context.Context, seen Seen) []doctor.Finding {
	state := v.admin.state(seen)
	state.Rates = v.ratesOf(seen.Samples)
	state.Targets = v.knownTargets()
	findings := doctor.Advise(state)
	if v.readTargets(ctx, findings) {
		state.Targets = v.knownTargets()
		findings = doctor.Advise(state)
	}
	return findings
}

// ratesOf adds samples, and returns the rates of all groups whose rates are known.
func (v *Adviser) ratesOf(samples []QueueSample) map[doctor.Group]doctor.Rates {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.note(samples, time.Now())
	all := map[doctor.Group]doctor.Rates{}
	for group, speed := range v.speeds {
		if rates, known := speed.rates(); known {
			all[group] = rates
		}
	}
	return all
}

func (v *Adviser) knownTargets() map[doctor.Group]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.targets)
}

// note adds the rates of samples to the speeds of their groups.
func (v *Adviser) note(samples []QueueSample, now time.Time) {
	for _, q := range samples {
		span := now.Sub(v.noted[q.Queue])
		v.noted[q.Queue] = now
		for _, g := range q.Groups {
			group := doctor.Group{Queue: q.Queue, Group: g.Name}
			isKnown := q.Err == nil && g.Done != nil && q.PerSecond != nil && q.PerSecond.Out != nil
			if !isKnown || span > speedSpan { // the rates cover only a part of this time
				delete(v.speeds, group)
				continue
			}
			if v.speeds[group] == nil {
				v.speeds[group] = &groupSpeed{}
			}
			v.speeds[group].add(*q.PerSecond.Out, *g.Done, span)
		}
	}
	for queue, at := range v.noted {
		if now.Sub(at) > speedSpan {
			delete(v.noted, queue)
		}
	}
	for group := range v.speeds {
		if _, is := v.noted[group.Queue]; !is {
			delete(v.speeds, group)
		}
	}
}

// waits reports whether a finding is about a group whose entries wait.
func waits(f doctor.Finding) bool {
	names := []string{"no-consumer", "not-read", "far-behind", "target-behind", "slow-workers"}
	return f.Group != "" && slices.Contains(names, f.Name)
}

// readTargets makes sure that the targets of the queues with waiting groups were read within targetsFresh. It reports
// whether it, or another caller for which it has waited, has read any.
func (v *Adviser) readTargets(ctx context.Context, findings []doctor.Finding) bool {
	if len(v.unasked(findings)) == 0 {
		return false
	}
	select {
	case v.asking <- struct{}{}:
		defer func() { <-v.asking }()
	case <-ctx.Done():
		return false
	}
	queues := v.unasked(findings)
	if len(queues) == 0 {
		return true
	}
	groups, failed := v.store.Groups(ctx, queues)
	v.noteTargets(findings, queues, groups, failed)
	return true
}

// unasked returns the queues with waiting groups whose targets were not read within targetsFresh, at most askedQueues.
func (v *Adviser) unasked(findings []doctor.Finding) (queues []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range findings {
		if waits(f) && time.Since(v.asked[f.Queue]) > targetsFresh && !slices.Contains(queues, f.Queue) {
			queues = append(queues, f.Queue)
		}
	}
	return queues[:min(askedQueues, len(queues))]
}

// noteTargets keeps what was read of the targets of queues.
func (v *Adviser) noteTargets(
	findings []doctor.Finding, queues []string, groups map[string][]string, failed map[string]error,
) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.targets) > 10*askedQueues {
		clear(v.targets)
		clear(v.asked)
	}
	for _, queue := range queues {
		v.asked[queue] = time.Now()
		if failed[queue] != nil { // what was known stays
			continue
		}
		for group := range v.targets {
			if group.Queue == queue {
				delete(v.targets, group)
			}
		}
		for _, f := range findings {
			if f.Queue == queue && waits(f) {
				v.targets[doctor.Group{Queue: queue, Group: f.Group}] = slices.Contains(groups[queue], f.Group)
			}
		}
	}
}
