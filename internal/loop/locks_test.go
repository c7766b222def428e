package loop

import (
	"sync"
	"testing"
)

// A lock on one name excludes others of the same name, and delays no other name. This matters because a queue whose
// server does not answer keeps its lock for seconds.
func TestALockedNameDelaysNoOther(t *testing.T) {
	t.Parallel()
	var q Locks
	unlock := q.Lock("away")
	q.Lock("other")() // takes the lock and releases it, while "away" is locked

	made := 0
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			defer q.Lock("away")()
			made++ // the race detector sees two at once
		})
	}
	unlock()
	all.Wait()
	if made != 50 || len(q.locks) != 0 {
		t.Errorf("%d of 50 had the lock, %d locks are left", made, len(q.locks))
	}
}
