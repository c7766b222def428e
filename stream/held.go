package stream

import (
	"sync"
	"time"
)

// holdings is the list of a worker's held deliveries. Its length never exceeds Concurrency.
type holdings struct {
	mu      sync.Mutex
	first   *delivery
	n       int
	waiting chan struct{} // closed when the list becomes empty
}

func (h *holdings) add(ds []*delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range ds {
		d.listed, d.prev, d.next = true, nil, h.first
		if h.first != nil {
			h.first.prev = d
		}
		h.first = d
	}
	h.n += len(ds)
}

func (h *holdings) remove(ds []*delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range ds {
		if !d.listed {
			continue
		}
		if d.prev != nil {
			d.prev.next = d.next
		} else {
			h.first = d.next
		}
		if d.next != nil {
			d.next.prev = d.prev
		}
		d.listed, d.prev, d.next = false, nil, nil
		h.n--
	}
	if h.n == 0 && h.waiting != nil {
		close(h.waiting)
		h.waiting = nil
	}
}

func (h *holdings) has(d *delivery) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return d.listed
}

func (h *holdings) list() []*delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*delivery, 0, h.n)
	for d := h.first; d != nil; d = d.next {
		all = append(all, d)
	}
	return all
}

// entries returns the IDs of the held entries.
func (h *holdings) entries() map[string]bool {
	all := h.list()
	ids := make(map[string]bool, len(all))
	for _, d := range all {
		ids[d.msg.EntryID] = true
	}
	return ids
}

// empty returns a channel that is closed once no delivery is held. No delivery may be added before that.
func (h *holdings) empty() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if h.waiting == nil {
		h.waiting = make(chan struct{})
	}
	return h.waiting
}

// emptyWithin waits until no delivery is held, at most for d. No delivery may be added meanwhile. It returns false if
// deliveries are still held.
func (h *holdings) emptyWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-h.empty():
		return true
	case <-timer.C:
		return false
	}
}

func (h *holdings) cancelAll(cause error) {
	for _, d := range h.list() {
		d.cancel(cause)
	}
}
