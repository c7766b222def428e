package languages

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

const examples = "../../examples"

// A run of the kit mostly waits: for visibility timeouts, restarts and outages.
func TestMain(m *testing.M) {
	redistest.SideBySide(5)
	redistest.Main(m)
}
