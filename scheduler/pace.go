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

// pace finds how many members one drain may take without holding the server for longer than drainBudget. It measures
// drains by the local clock, and trusts the quickest of several: the others also waited for something else.
type pace struct {
	most    int // as configured
	samples [paceSamples]time.Duration
	n       int
}

// limit returns the greatest number of members of the next drain. Without samples it is half of the configured limit.
func (p *pace) limit() int {
	if p.n == 0 {
		return max(1, p.most/2)
	}
	cost := slices.Min(p.samples[:min(p.n, paceSamples)])
	return min(p.most, max(leastDrain, int(drainBudget/max(1, cost))))
}

// took adds a sample: a drain of this many members, answered after d, where an empty request is answered after idle.
func (p *pace) took(members int, d, idle time.Duration) {
	if members < pacedMembers {
		return
	}
	p.samples[p.n%paceSamples] = max(0, d-idle) / time.Duration(members)
	p.n++
}
