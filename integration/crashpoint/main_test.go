// Package crashpoint interrupts duestream at every step it takes, one after the other, and checks each time that the system comes
// to rest with nothing lost. The points are counted, not drawn: a sweep ends when a run goes through without reaching the next
// one.
//
//   - Inside a script: the n-th command of the script is refused (TestEveryScriptStepFails), or the server is killed while the
//     script
//     stands there (TestServerDiesAtEveryScriptStep).
//   - Between two calls of a Go part: the n-th request is not sent, or its reply is lost, or the process dies there, or is told
//     to stop
//     (TestProducerInterrupted, TestWorkerInterrupted, TestBridgeInterrupted, TestOperatorInterrupted).
package crashpoint

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}
