// Package crashpoint interrupts duestream at each of its steps, one after another. Each time it checks that the
// system comes to rest with nothing lost. The points are counted, not random: a sweep ends when a run does not reach
// the next point.
//
//   - Inside a script: the n-th command is refused (TestEveryScriptStepFails, TestXDELEXFails), or the server is killed
//     at it (TestServerDiesAtEveryScriptStep).
//   - Between two requests of a Go part: the n-th request is not sent, or its reply is lost, or the process dies there,
//     or is told to stop (TestProducerInterrupted, TestWorkerInterrupted, TestBridgeInterrupted,
//     TestOperatorInterrupted).
package crashpoint

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}
