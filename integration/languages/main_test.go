package languages

import (
	"os"
	"testing"

	"github.com/duestream/duestream/integration/campaign"
	"github.com/duestream/duestream/integration/redistest"
)

const examples = "../../examples"

// Runs of the kit mostly wait: for visibility timeouts, restarts and outages. So several tests run concurrently.
func TestMain(m *testing.M) {
	if status, isChild := campaign.Child(); isChild {
		os.Exit(status)
	}
	redistest.SideBySide(5)
	redistest.Main(m)
}
