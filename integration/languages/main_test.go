package languages

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

const examples = "../../examples"

// Runs of the kit mostly wait: for visibility timeouts, restarts and outages. So several tests run concurrently.
func TestMain(m *testing.M) {
	redistest.SideBySide(5)
	redistest.Main(m)
}
