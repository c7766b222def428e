package lookup

import (
	"context"
	"sync"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}

// rig is a queue on a server, driven by hand.
type rig struct{ *queuetest.Rig }

func newRig(t *testing.T, s *redistest.Server) *rig { return &rig{queuetest.New(t, s)} }

func (r *rig) grow(n int) lua.Counts {
	r.T.Helper()
	counts, err := stream.Grow(r.T.Context(), r.Client, r.Prefix, r.Queue, n, nil)
	if err != nil {
		r.T.Fatal(err)
	}
	return counts
}

func (r *rig) deadLetters() *deadletter.DeadLetters {
	return deadletter.New(r.Client, r.Prefix)
}

// letters returns all dead letters, oldest first.
func (r *rig) letters() (all []deadletter.Letter) {
	r.T.Helper()
	for letter, err := range r.deadLetters().List(context.WithoutCancel(r.T.Context()), r.Queue, deadletter.Filter{}) {
		if err != nil {
			r.T.Fatal(err)
		}
		all = append(all, letter)
	}
	return all
}

// start runs a worker until the test ends or stop is called; stop returns what Run returned.
func (r *rig) start(cfg stream.WorkerConfig) (w *stream.Worker, stop func() error) {
	r.T.Helper()
	cfg.Client, cfg.Blocking, cfg.Prefix, cfg.Queue, cfg.Group = r.Client, r.Blocking, r.Prefix, r.Queue, "g"
	w, err := stream.NewWorker(cfg)
	if err != nil {
		r.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	r.T.Cleanup(func() { stop() })
	return w, stop
}
