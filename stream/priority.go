package stream

import "context"

// need is the purpose for which slots are claimed.
type need int

const (
	needWork  need = iota // a read of a partition with work: its last read returned entries
	needLook              // a read of a partition without work, which may wait at the server for entries
	needOwned             // handlers for entries that this consumer was given before
)

// queueShare is the share of one queue in the slots of a worker of several queues. The queue has work while any of its
// partitions has work, or waits for its first read.
type queueShare struct {
	rank   int     // strict order: a queue with a lower rank is served earlier
	weight float64 // zero with strict order
	busy   int     // partitions that have work
	served float64 // deliveries so far, divided by the weight
}

// claim is a request for slots.
type claim struct {
	share    *queueShare // of the partition's queue; nil: the worker has only this queue
	need     need
	most     int      // greatest number of slots
	lastLook *uint64  // order.reads + 1 at the partition's last look; 0: it has not looked; guarded by slots.mu
	granted  chan int // gets the number of slots; buffered for one; made by takeInOrder
}

// order decides which claim gets free slots when a worker serves several queues. A queue that had no work for long does
// not catch up: its share counts from the time at which it has work again.
type order struct {
	queues []*queueShare
	strict bool
	claims []*claim // oldest first
	served float64  // queueShare.served of the queue that was served last
	reads  uint64   // number of granted claims with needWork
}

// add adds a queue behind the others. The weight has no effect with strict order.
func (o *order) add(weight int) *queueShare {
	share := &queueShare{rank: len(o.queues)}
	if !o.strict {
		share.weight = float64(max(1, weight))
	}
	o.queues = append(o.queues, share)
	return share
}

// next returns the claim to serve. It returns nil if no claim may be served now, for example because the queue whose
// turn it is has no claim while it reads.
func (o *order) next() *claim {
	var best *claim
	first := o.first()
	for _, c := range o.claims {
		if c.need == needOwned {
			return c
		}
		if o.isEligible(c, first) && (best == nil || o.isBefore(c, best)) {
			best = c
		}
	}
	return best
}

// isEligible reports whether a claim may be served while it is the turn of the queue first.
func (o *order) isEligible(c *claim, first *queueShare) bool {
	if o.strict {
		return first == nil || c.share.rank <= first.rank
	}
	return c.need == needLook || c.share == first
}

// isBefore reports whether a claim is served before an older one. The look of a partition without work goes before the
// read of a partition with work, because a look takes few slots, for a short time, and finds new work. But a partition
// without work looks only once between two reads. Otherwise, over a slow connection, looks could follow each other so
// closely that partitions with work would never read.
func (o *order) isBefore(c, older *claim) bool {
	if olderLooksAgain := o.looksAgain(older); o.looksAgain(c) != olderLooksAgain {
		return olderLooksAgain
	}
	if o.strict {
		return c.share.rank < older.share.rank
	}
	return c.need == needLook && older.need != needLook
}

// looksAgain reports whether the claim is for a second look of its partition since the last granted read.
func (o *order) looksAgain(c *claim) bool {
	return c.need == needLook && *c.lastLook == o.reads+1
}

// first returns the queue with work whose turn it is; nil if no queue has work.
func (o *order) first() (first *queueShare) {
	for _, share := range o.queues {
		if share.busy > 0 && (first == nil || !o.strict && share.served < first.served) {
			first = share
		}
	}
	return first
}

// takeInOrder waits until it is the claim's turn, and takes all free slots, but at most claim.most; zero if ctx ended.
func (s *slots) takeInOrder(ctx context.Context, c *claim) int {
	c.granted = make(chan int, 1)
	s.mu.Lock()
	s.waiting++
	s.order.claims = append(s.order.claims, c)
	s.grant()
	noneFree := s.free == 0
	s.mu.Unlock()
	if noneFree && s.wants != nil && len(c.granted) == 0 {
		s.wants()
	}
	n := 0
	select {
	case n = <-c.granted:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	if n == 0 {
		s.withdraw(c)
		select {
		case n = <-c.granted: // the slots were granted while ctx ended: return them
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
		switch c.need {
		case needWork:
			s.order.served = max(s.order.served, c.share.served)
			s.order.reads++
		case needLook:
			*c.lastLook = s.order.reads + 1
		}
		n := min(s.free, c.most)
		s.free -= n
		c.granted <- n
	}
}

// updateShare adds to the number of a queue's partitions that have work, and to the number of its deliveries.
func (s *slots) updateShare(share *queueShare, busyChange, deliveries int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if share.busy == 0 && busyChange > 0 { // the queue has work again, and does not catch up
		share.served = max(share.served, s.order.served)
	}
	share.busy += busyChange
	if share.weight > 0 {
		share.served += float64(deliveries) / share.weight
	}
	s.grant()
}
