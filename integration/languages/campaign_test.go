package languages

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/campaign"
	"github.com/duestream/duestream/integration/redistest"
)

// Go, Python and Node.js share the queues of a campaign: producers and workers of all three packages, in the same
// groups, lose nothing under all of its faults, and nothing is early or has two owners.
func TestCampaignOfLanguages(t *testing.T) {
	campaign.ParallelIfShort(t)
	ReadAll(t, pythonPackage)
	ReadAll(t, "testdata")
	at := func(file string) string { return redistest.Must(filepath.Abs(filepath.Join("testdata", file))) }
	cfg := campaign.Config{Duration: 30 * time.Second, Rate: 120, Patience: 4, Hold: 300, Languages: []campaign.Language{
		{Name: "python", Command: []string{redistest.PythonWithRedis(t), at("campaign.py")}},
		{Name: "node", Command: []string{buildNodePackage(t), at("campaign.mjs")}},
	}}
	campaign.Prove(t, cfg, 600)
}
