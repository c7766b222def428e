package stream

import (
	"context"
	"sync"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// rig is a queue on a server, driven by hand.
type rig struct{ *queuetest.Rig }

func newRig(t *testing.T, s *redistest.Server) *rig { return &rig{queuetest.New(t, s)} }

// start runs a worker until the test ends or stop is called; stop returns what Run returned.
func (r *rig) start(cfg WorkerConfig) (w *Worker, stop func() error) {
	r.T.Helper()
	if cfg.Client == nil {
		cfg.Client, cfg.Blocking = r.Client, r.Blocking
	}
	cfg.Prefix, cfg.Queue = r.Prefix, r.Queue
	if cfg.Group == "" {
		cfg.Group = "g"
	}
	w, err := NewWorker(cfg)
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

// firstPartition returns the worker of partition 0 of a worker's first queue.
func firstPartition(w *Worker) *partitionWorker { return w.queues[0].opened()[0] }
