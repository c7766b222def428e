package outbox

import (
	"os"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	if part := os.Getenv(childPart); part != "" {
		os.Exit(runChild(part))
	}
	redistest.Main(m)
}
