package lua

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// serversAtOnce is how many servers a test uses in parallel: tests mostly wait for the next reply.
const serversAtOnce = 4

func TestMain(m *testing.M) {
	redistest.SideBySide(serversAtOnce)
	redistest.Main(m)
}

// notInProcess names the tests that the in-process server of dev cannot pass, each with the feature that the server
// lacks. Every other test that uses everywhere runs on it, too.
var notInProcess = map[string]string{}

func init() {
	for reason, tests := range map[string][]string{
		"a deleted entry stays in its pending lists for ever: XAUTOCLAIM and XCLAIM neither drop nor report it": {
			"TestReclaimReportsLostBodies",
		},
		"JUSTID adds to the delivery counter": {"TestExtendLeavesTheCounterAlone"},
		"the last generated ID is not kept, so that no stream is ever full": {
			"TestStreamThatRefusesStopsTheBatch", "TestDeadStreamThatRefusesStopsNoOtherMessage",
			"TestDeadStreamThatRefusesLeavesEntriesPending", "TestEnqueueIntoAFullStreamKeepsTheMessage",
		},
		"JSON null decodes to an empty list":   {"TestDrainBuriesJSONNull"},
		"NOACK entries are counted as pending": {"TestTrimCountsNoAckAsServed"},
	} {
		for _, name := range tests {
			notInProcess[name] = reason
		}
	}
}

// everywhere runs f on the shared server, on local images and on the in-process server. On the shared server it runs f
// once more, with published scripts called as functions. The servers run in parallel, after the test's function has
// returned; on one server one f runs at a time.
func everywhere(t *testing.T, f func(b *testQueue)) {
	t.Helper()
	onServers(t, f)
	t.Run("in-process", func(t *testing.T) {
		t.Parallel()
		parent, _, _ := strings.Cut(t.Name(), "/")
		if reason := notInProcess[parent]; reason != "" {
			t.Logf("not expected of the in-process server: %s", reason)
			return
		}
		f(inProcess(t))
	})
}

// onServers is everywhere without the in-process server, which has no users, and is too slow for large data.
func onServers(t *testing.T, f func(b *testQueue)) {
	t.Helper()
	shared := redistest.Shared(t)
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		f(newTestQueue(t, s))
		if s == shared {
			t.Run("FCALL", func(t *testing.T) { f(newFunctionsQueue(t, s)) })
		}
	})
}

// eachAtOnce is redistest.Each with the servers in parallel, after the test's function has returned.
func eachAtOnce(t *testing.T, f func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		f(t, s)
	})
}

// inProcess returns a queue on a new in-process server.
func inProcess(t *testing.T) *testQueue {
	return newTestQueue(t, redistest.InProcess(t))
}
