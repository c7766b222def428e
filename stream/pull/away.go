package pull

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// mostProbes is the greatest number of concurrent probes.
const mostProbes = 64

// leaveAlone stops requests to a line until its recheck, because workers are paused, or because it failed. away is the
// error if its server cannot be reached.
func (l *line) leaveAlone(now time.Time, away error) {
	l.news, l.rests, l.recheck, l.away = false, true, now.Add(heldRecheck), away
}

// reachable returns the lines whose servers could be reached at the last request, or all lines if there are none.
// revisit rechecks the others, while callers want them.
func (p *Puller) reachable(lines []*line) []*line {
	p.mu.Lock()
	defer p.mu.Unlock()
	var there []*line
	for _, l := range lines {
		l.used = time.Now()
		if l.away == nil {
			there = append(there, l)
		}
	}
	if len(there) == 0 {
		return slices.Clone(lines)
	}
	return there
}

func (p *Puller) anyReachable(lines []*line) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(lines, func(l *line) bool { return l.away == nil })
}

// probe sends a read to the servers of all lines concurrently, and returns the lines whose servers answer. It notes the
// others as away.
func (p *Puller) probe(ctx context.Context, lines []*line) (answering []*line) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	asked, errs := make([]bool, len(lines)), make([]error, len(lines))
	room := make(chan struct{}, mostProbes)
	var probing sync.WaitGroup
	for i, l := range lines {
		room <- struct{}{}
		probing.Go(func() {
			defer func() { <-room }()
			if asked[i] = ctx.Err() == nil; asked[i] {
				read := p.cfg.Client.B().Hgetall().Key(l.keys.Policy).Build()
				errs[i] = lua.Classify("HGETALL", p.cfg.Client.Do(ctx, read).Error())
			}
		})
	}
	probing.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range lines {
		switch {
		case !asked[i]:
		case lua.Temporary(errs[i]):
			l.leaveAlone(time.Now(), errs[i])
		default:
			answering = append(answering, l)
		}
	}
	return answering
}

// revisit resumes requests to lines whose servers are back.
func (p *Puller) revisit(ctx context.Context) {
	now := time.Now()
	var away []*line
	p.mu.Lock()
	for _, lines := range p.streams {
		for _, l := range lines {
			if l.away != nil && !now.Before(l.recheck) && (len(l.waiters) > 0 || now.Sub(l.used) < recheckEvery) {
				away = append(away, l)
			}
		}
	}
	p.mu.Unlock()
	back := p.probe(ctx, away)
	if len(back) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range back {
		l.away, l.rests, l.news = nil, false, true
		p.kick(l)
	}
	p.watch()
}
