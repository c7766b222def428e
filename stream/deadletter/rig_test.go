package deadletter

import (
	"context"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/stream"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}

// rig is a queue on a server, driven by hand.
type rig struct{ *queuetest.Rig }

func newRig(t *testing.T, s *redistest.Server) *rig { return &rig{queuetest.New(t, s)} }

func (r *rig) deadLetters() *DeadLetters { return New(r.Client, r.Prefix) }

// letters returns all dead letters, oldest first.
func (r *rig) letters() (all []Letter) {
	r.T.Helper()
	for letter, err := range r.deadLetters().List(context.WithoutCancel(r.T.Context()), r.Queue, Filter{}) {
		if err != nil {
			r.T.Fatal(err)
		}
		all = append(all, letter)
	}
	return all
}

func (r *rig) grow(n int) {
	r.T.Helper()
	if _, err := stream.Grow(r.T.Context(), r.Client, r.Prefix, r.Queue, n, nil); err != nil {
		r.T.Fatal(err)
	}
}
