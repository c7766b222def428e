package stream

import "context"

// need is what slots are wanted for.
type need int

const (
	needWork  need = iota // the last read found something
	needLook              // the last read found nothing: to wait, or to look
	needOwned             // for entries that this consumer has been given already
)

// line is a queue's place among those of a worker. It has work while any of its partitions has, or has not looked yet.
type line struct {
	rank   int     // strict: the lower, the earlier
	weight float64 // its share; zero when the order is strict
	busy   int     // partitions that have work
	served float64 // deliveries, divided by the weight
}

// claim is somebody who waits for slots.
type claim struct {
	line *line
	why  need
	most int
	got  chan int // has room for one
}

// order says who gets free slots, where a worker serves several queues. A queue that was left out for long does not catch up: its
// share counts from when it has work again.
type order struct {
	lines  []*line
	strict bool
	claims []*claim // in the order in which they came
	served float64  // of the line that was served last
}

// next returns the claim to be served; nil when none is to be, although slots are free: whose turn it is reads just now.
func (o *order) next() *claim {
	var best *claim
	first := o.first()
	for _, c := range o.claims {
		switch {
		case c.why == needOwned:
			return c
		case o.strict:
			if (first == nil || c.line.rank <= first.rank) && (best == nil || c.line.rank < best.line.rank) {
				best = c
			}
		case c.why == needLook: // with few slots, and seldom: without it nobody would know that the queue has work
			if best == nil || best.why != needLook {
				best = c
			}
		case c.line == first && best == nil:
			best = c
		}
	}
	return best
}

// first returns the line with work whose turn it is; nil when none has any.
func (o *order) first() (first *line) {
	for _, l := range o.lines {
		if l.busy > 0 && (first == nil || !o.strict && l.served < first.served) {
			first = l
		}
	}
	return first
}

// takeInTurn waits until it is the claim's turn, and takes all free slots, but no more than it wants; zero when ctx ended.
func (s *slots) takeInTurn(ctx context.Context, c *claim) int {
	s.mu.Lock()
	s.waiting++
	s.order.claims = append(s.order.claims, c)
	s.grant()
	none := s.free == 0
	s.mu.Unlock()
	if none && s.wants != nil && len(c.got) == 0 {
		s.wants()
	}
	n := 0
	select {
	case n = <-c.got:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	if n == 0 {
		s.withdraw(c)
		select {
		case n = <-c.got: // just now
			s.free += n
			n = 0
			s.grant()
		default:
		}
	}
	return n
}

func (s *slots) withdraw(c *claim) {
	for i, other := range s.order.claims {
		if other == c {
			s.order.claims = append(s.order.claims[:i], s.order.claims[i+1:]...)
			return
		}
	}
}

// grant gives free slots to those whose turn it is. The caller holds the lock.
func (s *slots) grant() {
	for s.free > 0 {
		c := s.order.next()
		if c == nil {
			return
		}
		s.withdraw(c)
		if c.why == needWork {
			s.order.served = max(s.order.served, c.line.served)
		}
		n := min(s.free, c.most)
		s.free -= n
		c.got <- n
	}
}

// changed notes that more or fewer partitions of a line have work, and how many deliveries it was given.
func (s *slots) changed(l *line, by, deliveries int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.busy == 0 && by > 0 {
		l.served = max(l.served, s.order.served)
	}
	l.busy += by
	if l.weight > 0 {
		l.served += float64(deliveries) / l.weight
	}
	s.grant()
}
