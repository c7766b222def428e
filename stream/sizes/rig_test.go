package sizes

import (
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
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
