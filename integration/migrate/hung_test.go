package migrate

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/integration/redistest"
)

// hangs is a Source whose server hangs when the first jobs are to be removed.
type hangs struct {
	migrate.Source
	server *redistest.Server
}

func (h hangs) Remove(ctx context.Context, queue string, jobs []migrate.Job) ([]bool, error) {
	h.server.Pause()
	return h.Source.Remove(ctx, queue, jobs)
}

// If the Redis of the program hangs while jobs are removed, the run ends with an error. Regression: it hung for ever,
// and ignored an interruption. All programs are tried at the same time, because the limit of a round trip is 30 s.
func TestTheRedisOfTheProgramHangs(t *testing.T) {
	t.Parallel()
	var runs sync.WaitGroup
	for name, e := range emigrants {
		s, _, _ := newStay(t, name, e)
		s.begin()
		old, err := bridge.Dial(t.Context(), s.from.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(old.Close)
		t.Cleanup(s.from.Resume)
		redis, err := bridge.Dial(t.Context(), s.to.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(redis.Close)
		source, err := e.open(t.Context(), old.Client)
		if err != nil {
			t.Fatal(err)
		}
		cfg := migrate.Config{From: hangs{source, s.from}, To: redistest.Must(admin.New(redis, "")), Window: time.Hour,
			Remove: true}
		runs.Go(func() {
			ended := make(chan error, 1)
			go func() {
				_, err := migrate.Move(context.Background(), cfg)
				ended <- err
			}()
			select {
			case err := <-ended:
				if err == nil {
					t.Errorf("%s: the run ended without an error", name)
				}
			case <-time.After(2 * time.Minute):
				t.Errorf("%s: the run hangs", name)
			}
		})
	}
	runs.Wait()
}
