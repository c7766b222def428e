package stream

import "sync"

// runners call handlers, each on a goroutine of its own while it runs. A goroutine whose handler has returned takes the
// next waiting delivery. A new goroutine starts only when all others are in a handler, so quick handlers share a few.
type runners struct {
	handle func(*delivery)

	mu       sync.Mutex
	waiting  []*delivery
	starting bool // a new goroutine has not taken a delivery yet
}

func (r *runners) start(ds []*delivery) {
	if len(ds) == 0 {
		return
	}
	r.mu.Lock()
	r.waiting = append(r.waiting, ds...)
	r.mu.Unlock()
	r.startIfNeeded()
}

// startIfNeeded starts a goroutine if deliveries wait, unless a new goroutine has not taken a delivery yet.
func (r *runners) startIfNeeded() {
	r.mu.Lock()
	needed := len(r.waiting) > 0 && !r.starting
	r.starting = r.starting || needed
	r.mu.Unlock()
	if needed {
		go r.run()
	}
}

func (r *runners) run() {
	defer r.startIfNeeded() // deferred, because a handler may end its goroutine with runtime.Goexit
	for first := true; ; first = false {
		d, more := r.next(first)
		if d == nil {
			return
		}
		if more {
			go r.run()
		}
		r.handle(d)
	}
}

// next returns a delivery, and whether the caller must start another goroutine before it enters the handler.
func (r *runners) next(first bool) (d *delivery, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first {
		r.starting = false
	}
	if len(r.waiting) == 0 {
		r.waiting = nil
		return nil, false
	}
	d = r.waiting[0]
	r.waiting[0] = nil
	r.waiting = r.waiting[1:]
	more = len(r.waiting) > 0 && !r.starting
	r.starting = r.starting || more
	return d, more
}
