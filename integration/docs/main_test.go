package docs

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4) // most of them wait
	redistest.Main(m)
}
