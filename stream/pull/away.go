package pull

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// maxProbes is the greatest number of concurrent probes.
const maxProbes = 64

// suspend stops requests to a line until its recheck, because workers are paused or because a request failed.
// unreachable is the error if the server of the line cannot be reached, else nil.
func (l *line) suspend(now time.Time, unreachable error) {
	l.news, l.suspended, l.recheck, l.unreachable = false, true, now.Add(heldRecheck), unreachable
}

// reachable returns the lines whose servers could be reached at the last request, or all lines if there are none.
// While callers want the other lines, revisit probes their servers.
func (p *Puller) reachable(lines []*line) []*line {
	p.mu.Lock()
	defer p.mu.Unlock()
	var reachable []*line
	for _, l := range lines {
		l.used = time.Now()
		if l.unreachable == nil {
			reachable = append(reachable, l)
		}
	}
	if len(reachable) == 0 {
		return slices.Clone(lines)
	}
	return reachable
}

func (p *Puller) anyReachable(lines []*line) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(lines, func(l *line) bool { return l.unreachable == nil })
}

// probe sends a read to the servers of all lines concurrently, and returns the lines whose servers answer. It suspends
// the lines whose servers do not answer.
func (p *Puller) probe(ctx context.Context, lines []*line) (answering []*line) {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	asked, errs := make([]bool, len(lines)), make([]error, len(lines))
	room := make(chan struct{}, maxProbes)
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
		case !asked[i]: // the time of the probe was over
		case lua.Temporary(errs[i]):
			l.suspend(time.Now(), errs[i])
		default:
			answering = append(answering, l)
		}
	}
	return answering
}

// revisit probes the servers of unreachable lines that callers want, and resumes requests to lines whose servers
// answer.
func (p *Puller) revisit(ctx context.Context) {
	now := time.Now()
	var unreachable []*line
	p.mu.Lock()
	for _, lines := range p.streams {
		for _, l := range lines {
			isWanted := len(l.waiters) > 0 || now.Sub(l.used) < recheckEvery
			if l.unreachable != nil && !now.Before(l.recheck) && isWanted {
				unreachable = append(unreachable, l)
			}
		}
	}
	p.mu.Unlock()
	answering := p.probe(ctx, unreachable)
	if len(answering) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range answering {
		l.unreachable, l.suspended, l.news = nil, false, true
		p.wakeFirst(l)
	}
	p.watch()
}
