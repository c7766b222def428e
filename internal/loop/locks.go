package loop

import "sync"

// Locks has one lock for each name. If the names are queues, a queue whose server does not answer delays no other
// queue. The zero value is ready for use.
type Locks struct {
	mu    sync.Mutex
	locks map[string]*namedLock
}

type namedLock struct {
	sync.Mutex
	users int // how many goroutines hold the lock or wait for it
}

// Lock locks a name, and returns the function that unlocks it.
func (all *Locks) Lock(name string) (unlock func()) {
	all.mu.Lock()
	if all.locks == nil {
		all.locks = map[string]*namedLock{}
	}
	one := all.locks[name]
	if one == nil {
		one = &namedLock{}
		all.locks[name] = one
	}
	one.users++
	all.mu.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		all.mu.Lock()
		defer all.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(all.locks, name)
		}
	}
}
