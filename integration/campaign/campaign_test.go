package campaign

import (
	"os"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	if status, isChild := Child(); isChild {
		os.Exit(status)
	}
	redistest.Main(m)
}

// TestCampaign checks the guarantees G1 to G6 under all faults at once: see the package documentation.
func TestCampaign(t *testing.T) {
	ParallelIfShort(t)
	cfg := Config{Duration: 30 * time.Second, Rate: 250, Patience: 4, Hold: 1500}
	Prove(t, cfg, 2600)
}

// The guarantees of TestCampaign hold on a cluster of three masters with one replica each too, with a queue of three
// partitions, failovers and moved slots.
func TestCampaignOnACluster(t *testing.T) {
	ParallelIfShort(t)
	cfg := Config{Duration: 20 * time.Second, Rate: 120, Patience: 4, Hold: 300, Masters: 3, Partitions: 3}
	Prove(t, cfg, 600)
}

// The guarantees of TestCampaign hold with processes of the previous release beside those of this one too. Bridges, a
// worker of each group, a producer, a gateway and the operator are upgraded and rolled back during the run.
func TestCampaignOfTwoReleases(t *testing.T) {
	ParallelIfShort(t)
	cfg := Config{Duration: 20 * time.Second, Rate: 120, Patience: 4, Hold: 300, Releases: true}
	Prove(t, cfg, 800)
}
