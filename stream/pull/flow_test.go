package pull

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// While entries arrive faster than the server is asked, a caller gets the first ones found. It once asked until it had
// its Count, or until a tenth of its time was over: the slower Redis answered, the later came the first message.
func TestWhoHasSomethingDoesNotWaitForMore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.pull(10, 0) // creates the group
		r.Ready("first", "second")
		stop := make(chan struct{})
		var flow sync.WaitGroup
		flow.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					r.added(r.Keys.Stream, "9999999999999-"+strconv.Itoa(i))
				}
			}
		})
		began := time.Now()
		found := r.pull(10, 10*time.Second)
		took := time.Since(began)
		close(stop)
		flow.Wait()
		if len(found) != 2 || took >= found[0].Within/10 {
			t.Errorf("%d deliveries after %s: want 2 before a tenth of their time", len(found), took)
		}
	})
}
