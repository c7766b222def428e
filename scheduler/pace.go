package scheduler

import (
	"slices"
	"time"
)

const (
	drainBudget   = 2 * time.Millisecond // of the server's time for one drain
	minDrainLimit = 50                   // members of a drain, even if the server seems to be slow
	paceSamples   = 16
	sampleMembers = 16 // a drain of fewer members says nothing about the cost of a member
)

// pace finds how many members one drain may move without holding the server for longer than drainBudget. It measures
// drains by the local clock, and uses the fastest of the last samples, because slower drains also waited for other
// work of the server.
type pace struct {
	most    int                        // configured limit of a drain
	samples [paceSamples]time.Duration // time per member, in a ring
	n       int                        // number of samples taken so far
}

// limit returns the greatest number of members of the next drain. Without samples it is half of the configured limit.
func (p *pace) limit() int {
	if p.n == 0 {
		return max(1, p.most/2)
	}
	cost := slices.Min(p.samples[:min(p.n, paceSamples)])
	return min(p.most, max(minDrainLimit, int(drainBudget/max(1, cost))))
}

// add adds a sample. A drain of this many members was answered after drainTime, and a request that costs the server
// nothing is answered after roundTrip.
func (p *pace) add(members int, drainTime, roundTrip time.Duration) {
	if members < sampleMembers {
		return
	}
	p.samples[p.n%paceSamples] = max(0, drainTime-roundTrip) / time.Duration(members)
	p.n++
}
