package stream

import "context"

// need is the purpose for which slots are claimed.
type need int

const (
	needWork  need = iota // the last read found something
	needLook              // the last read found nothing: to wait at the server, or to look
	needOwned             // for entries that this consumer was given before
)

// line is the position of one queue among the queues of a worker. The queue has work while any of its partitions has
// work, or has not been read yet.
type line struct {
	rank   int     // with strict order: lower is served earlier
	weight float64 // its share; zero with strict order
	busy   int     // partitions that have work
	served float64 // deliveries, divided by the weight
}

// claim is a waiting request for slots.
type claim struct {
	line   *line
	why    need
	most   int
	looked *uint64  // kept by the claimant: order.reads + 1 at its last look; guarded by slots.mu
	got    chan int // buffered for one
}

// order decides which claim gets free slots when a worker serves several queues. A queue that had no work for long does
// not catch up: its share counts from the time at which it has work again.
type order struct {
	lines  []*line
	strict bool
	claims []*claim // oldest first
	served float64  // of the line that was served last
	reads  uint64   // number of granted claims of lines with work
}

// next returns the claim to serve. It returns nil, despite free slots, if the line in turn is reading just now.
func (o *order) next() *claim {
	var best *claim
	first := o.first()
	for _, c := range o.claims {
		if c.why == needOwned {
			return c
		}
		if o.isEligible(c, first) && (best == nil || o.isBefore(c, best)) {
			best = c
		}
	}
	return best
}

func (o *order) isEligible(c *claim, first *line) bool {
	if o.strict {
		return first == nil || c.line.rank <= first.rank
	}
	return c.why == needLook || c.line == first
}

// isBefore reports whether a claim is served before an older one. The look of a partition without work goes before the
// read of a partition with work: a look takes few slots, for a short time, and finds new work. But such a partition
// looks only once between two reads. Over a slow connection a chain of looks would otherwise let no partition with work
// read.
func (o *order) isBefore(c, older *claim) bool {
	if own, other := o.looksAgain(c), o.looksAgain(older); own != other {
		return other
	}
	if o.strict {
		return c.line.rank < older.line.rank
	}
	return c.why == needLook && older.why != needLook
}

// looksAgain reports whether the claimant has looked since a claim with work was last granted.
func (o *order) looksAgain(c *claim) bool {
	return c.why == needLook && *c.looked == o.reads+1
}

// first returns the line with work whose turn it is; nil if no line has work.
func (o *order) first() (first *line) {
	for _, l := range o.lines {
		if l.busy > 0 && (first == nil || !o.strict && l.served < first.served) {
			first = l
		}
	}
	return first
}

// takeInTurn waits until it is the claim's turn, and takes all free slots, but at most claim.most; zero if ctx ended.
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
		case n = <-c.got: // granted at this moment
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

// grant gives free slots to the claims whose turn it is. The caller holds the lock.
func (s *slots) grant() {
	for s.free > 0 {
		c := s.order.next()
		if c == nil {
			return
		}
		s.withdraw(c)
		switch c.why {
		case needWork:
			s.order.served = max(s.order.served, c.line.served)
			s.order.reads++
		case needLook:
			*c.looked = s.order.reads + 1
		}
		n := min(s.free, c.most)
		s.free -= n
		c.got <- n
	}
}

// changed adds by to the partitions of a line that have work, and counts its deliveries.
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
