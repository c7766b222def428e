package scheduler

import (
	"slices"
	"time"
)

const (
	drainBudget  = 2 * time.Millisecond // of the server's time for one drain
	leastDrain   = 50                   // members, however slow the server seems to be
	paceSamples  = 16
	pacedMembers = 16 // a drain of fewer members says nothing about the cost of a member
)

// pace finds how many members one drain may take so that it holds the server for no longer than drainBudget. It measures from
// here how long drains take, and believes the quickest of several, because the others waited for something else.
type pace struct {
	most    int // as configured
	samples [paceSamples]time.Duration
	n       int
}

// limit returns how many members the next drain takes at most. Without samples it is half of what is configured.
func (p *pace) limit() int {
	if p.n == 0 {
		return max(1, p.most/2)
	}
	cost := slices.Min(p.samples[:min(p.n, paceSamples)])
	return min(p.most, max(leastDrain, int(drainBudget/max(1, cost))))
}

// took adds a drain of so many members that was answered after d, where a request that does nothing is answered after idle.
func (p *pace) took(members int, d, idle time.Duration) {
	if members < pacedMembers {
		return
	}
	p.samples[p.n%paceSamples] = max(0, d-idle) / time.Duration(members)
	p.n++
}
