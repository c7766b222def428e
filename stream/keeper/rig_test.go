package keeper

import (
	"context"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/stream/deadletter"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}

// rig is a queue on a server, driven by hand.
type rig struct{ *queuetest.Rig }

func newRig(t *testing.T, s *redistest.Server) *rig { return &rig{queuetest.New(t, s)} }

func (r *rig) reclaimer() *Reclaimer {
	return NewReclaimer(ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue})
}

// reclaim makes passes until nothing more is reclaimed, and adds up their results.
func (r *rig) reclaim() (sum ReclaimResult) {
	r.T.Helper()
	reclaimer := r.reclaimer()
	for {
		one, err := reclaimer.Reclaim(r.T.Context())
		if err != nil {
			r.T.Fatal(err)
		}
		sum.Retried += one.Retried
		sum.Dead += one.Dead
		sum.Skipped += one.Skipped
		sum.Stuck += one.Stuck
		if one.Moved() == 0 {
			return sum
		}
	}
}

func (r *rig) trim() TrimResult {
	r.T.Helper()
	result, err := NewTrimmer(r.Client, r.Prefix, r.Queue).Trim(r.T.Context())
	if err != nil {
		r.T.Fatal(err)
	}
	return result
}

// letters returns all dead letters, oldest first.
func (r *rig) letters() (all []deadletter.Letter) {
	r.T.Helper()
	for letter, err := range deadletter.New(r.Client, r.Prefix).List(context.WithoutCancel(r.T.Context()), r.Queue,
		deadletter.Filter{}) {
		if err != nil {
			r.T.Fatal(err)
		}
		all = append(all, letter)
	}
	return all
}
