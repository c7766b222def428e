package stream

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4) // parallel tests; most of them wait
	redistest.Main(m)
}
