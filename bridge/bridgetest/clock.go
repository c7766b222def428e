package bridgetest

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// kitClock is the clock of a kit, and of its handlers: see clock.Clock. It stands still until it is set. Its time is in
// whole milliseconds.
type kitClock struct {
	mu      sync.Mutex
	time    time.Time
	asStr   [3]string // see words
	timers  map[*kitTimer]bool
	waiting int             // handlers that wait for timers
	reading map[groupOf]int // partitions of workers that wait for timers before they read
}

// groupOf is a group of a stream.
type groupOf struct{ stream, group string }

// kitTimer is a function that waits for its time.
type kitTimer struct {
	at   time.Time
	call func()
}

// ceilTime rounds a time up to whole milliseconds.
func ceilTime(t time.Time) time.Time {
	if whole := t.Truncate(time.Millisecond); whole.Before(t) {
		return whole.Add(time.Millisecond)
	}
	return t
}

// order puts two goroutines into an order for the memory model of Go: everything before the first call of order happens
// before everything after the second call. The server puts the test and a handler into this order, but the race
// detector does not see the server.
func (c *kitClock) order() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

func newKitClock() *kitClock {
	return &kitClock{timers: map[*kitTimer]bool{}, reading: map[groupOf]int{}}
}

// Now implements clock.Clock.
func (c *kitClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

// AfterFunc implements clock.Clock. The clock has whole milliseconds, so it rounds d up.
func (c *kitClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := &kitTimer{ceilTime(c.time.Add(d)), f}
	c.timers[timer] = true
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		waited := c.timers[timer]
		delete(c.timers, timer)
		return waited
	}
}

// Wait implements clock.Clock.
func (c *kitClock) Wait(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting += n
}

// WaitToRead implements clock.Clock.
func (c *kitClock) WaitToRead(ctx context.Context, stream, group string, until time.Time) {
	of, fired := groupOf{stream, group}, make(chan struct{})
	timer := &kitTimer{ceilTime(until), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reading[of]--
		close(fired)
	}}
	c.mu.Lock()
	c.timers[timer] = true
	c.reading[of]++
	c.mu.Unlock()
	select {
	case <-fired:
		return
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timers[timer] { // otherwise the timer fires at this moment
		delete(c.timers, timer)
		c.reading[of]--
	}
}

// waitsToRead returns how many workers wait for timers before they read a stream for a group.
func (c *kitClock) waitsToRead(stream, group string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reading[groupOf{stream, group}]
}

// waits returns the number of handlers that wait for timers.
func (c *kitClock) waits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// nextTimer returns the time of the timer that is due first; the zero time if there is none.
func (c *kitClock) nextTimer() (next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for timer := range c.timers {
		if next.IsZero() || timer.at.Before(next) {
			next = timer.at
		}
	}
	return next
}

// fire calls the functions of the timers that are due, and returns whether there were any.
func (c *kitClock) fire() bool {
	c.mu.Lock()
	var due []*kitTimer
	for timer := range c.timers {
		if !timer.at.After(c.time) {
			due = append(due, timer)
			delete(c.timers, timer)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(due, func(a, b *kitTimer) int { return a.at.Compare(b.at) })
	for _, timer := range due {
		timer.call()
	}
	return len(due) > 0
}

func (c *kitClock) set(t time.Time) {
	ms := t.UnixMilli()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = time.UnixMilli(ms)
	c.asStr = [3]string{strconv.FormatInt(ms/1000, 10), strconv.FormatInt(ms%1000*1000, 10),
		strconv.FormatInt(ms, 10) + "-*"}
}

// words returns the time as TIME does, and an ID for XADD.
func (c *kitClock) words() (seconds, micros, stamp string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asStr[0], c.asStr[1], c.asStr[2]
}

// activity counts the commands of the program under test. A kit that has read the state of all queues learns from it
// whether the state may have changed meanwhile. A nil activity counts nothing.
type activity struct {
	count   atomic.Uint64 // beginnings and ends of commands
	running atomic.Int64
	changed chan struct{} // has a value after a command has ended

	mu        sync.Mutex
	schedules map[string]bool // keys that plain commands have added members to
}

func newActivity() *activity {
	return &activity{changed: make(chan struct{}, 1), schedules: map[string]bool{}}
}

// noteSchedule notes that a plain command adds a member to a key.
func (a *activity) noteSchedule(key string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.schedules[key] = true
}

// takeSchedules returns the keys that were noted since the last call.
func (a *activity) takeSchedules() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := slices.Sorted(maps.Keys(a.schedules))
	clear(a.schedules)
	return keys
}

// begin notes that a command begins, and returns the function that notes its end.
func (a *activity) begin() (end func()) {
	if a == nil {
		return func() {}
	}
	a.running.Add(1)
	a.count.Add(1)
	return func() {
		a.count.Add(1)
		a.running.Add(-1)
		select {
		case a.changed <- struct{}{}:
		default:
		}
	}
}

// since reports whether a command ran at any time after the count was taken.
func (a *activity) since(count uint64) bool { return a.running.Load() > 0 || a.count.Load() != count }

// consumer is a consumer of a stream's group.
type consumer struct{ stream, group, name string }

// readers are the consumers that read by blocking reads, as workers do. Advance waits for the entries that they hold. A
// consumer that reads without blocking may be one that a test lets die.
type readers struct {
	mu   sync.Mutex
	live map[consumer]bool
}

func newReaders() *readers { return &readers{live: map[consumer]bool{}} }

func (r *readers) begin(group, name string, streams []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, stream := range streams {
		r.live[consumer{stream, group, name}] = true
	}
}

func (r *readers) end(group, name string, streams []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, stream := range streams {
		delete(r.live, consumer{stream, group, name})
	}
}

// forget removes a worker that has ended.
func (r *readers) forget(group, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for one := range r.live {
		if one.group == group && one.name == name {
			delete(r.live, one)
		}
	}
}

func (r *readers) isLive(one consumer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live[one]
}

// serves reports whether any worker reads a stream for a group.
func (r *readers) serves(stream, group string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for one := range r.live {
		if one.stream == stream && one.group == group {
			return true
		}
	}
	return false
}
