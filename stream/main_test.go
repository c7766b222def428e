package stream

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}
