package pull

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// While entries arrive all the time, a caller must get the first entries that are found. Regression: a pull went on
// reading until it had Count entries, or until a tenth of the visibility timeout was over. So the slower Redis
// answered, the later the first message came.
func TestPullDoesNotWaitForMoreEntries(t *testing.T) {
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
					// Tells the puller that an entry was added, without adding one.
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
			t.Errorf("%d deliveries after %s: want 2 within a tenth of the visibility timeout", len(found), took)
		}
	})
}
