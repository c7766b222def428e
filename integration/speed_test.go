package integration

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/bench"
	"github.com/duestream/duestream/integration/redistest"
)

// TestSpeedAgainstTheFloor notices when something has become several times slower. It compares only figures of the same
// run: duestream with its floor, scripts with bare commands, and a queue with a backlog with one without. The limits
// are about a third of the figures at the time of writing. Each figure must reach its limit in one of three tries, so
// that a busy machine does not break the test. The test measures the real program, which the race detector does not
// slow down. Figures to quote come from the benchmarks.
func TestSpeedAgainstTheFloor(t *testing.T) { // not parallel, so that it has the machine for itself within this package
	duestream, server := build(t), redistest.Own(t)
	limits := map[string]float64{ // the lowest speed ratios that pass
		"enqueue_one_caller":       0.15,
		"enqueue_64_callers":       0.15,
		"enqueue_256_callers":      0.15,
		"enqueue_batches_of_100":   0.10,
		"enqueue_8_batches_of_100": 0.10,
		"deliver":                  0.20,
		"retry":                    0.20,
		"burst_last":               0.10,
		"drain script":             0.20,
		"retry script":             0.05,
		"drain behind a backlog":   0.30,
		"deliver behind the same":  0.30,
	}
	best := map[string]float64{}
	slow := func() (names []string) {
		for _, name := range slices.Sorted(maps.Keys(limits)) {
			if !(best[name] >= limits[name]) { // also if best is NaN
				names = append(names, name)
			}
		}
		return names
	}
	begin := time.Now()
	for try := 1; try <= 3 && len(slow()) > 0; try++ {
		few := runBench(t, duestream, server, "enqueue", "deliver", "--messages", "20000", "--rounds", "1")
		failing := runBench(t, duestream, server, "retry", "lateness", "--messages", "3000", "--rounds", "1", "--rate", "1000",
			"--duration", "200ms")
		behind := runBench(t, duestream, server, "deliver", "--messages", "20000", "--rounds", "1", "--backlog", "100000")
		seen := map[string]float64{}
		for _, f := range slices.Concat(slices.Collect(maps.Values(few)), slices.Collect(maps.Values(failing))) {
			if f.Ratio != nil && f.LowerIsBetter { // a time: its ratio becomes a ratio of speeds
				seen[f.Name] = 1 / f.Ratio.Median
			} else if f.Ratio != nil {
				seen[f.Name] = f.Ratio.Median
			}
		}
		bare := few["enqueue_256_callers"].Floor.Median // messages a second by bare HSET and ZADD, all pipelined
		seen["drain script"] = few["drain_script_alone"].Value.Median / bare
		seen["retry script"] = failing["xreadgroup_retry_script_alone"].Value.Median / bare
		seen["drain behind a backlog"] = behind["drain_script_alone"].Value.Median / few["drain_script_alone"].Value.Median
		seen["deliver behind the same"] = behind["deliver"].Value.Median / few["deliver"].Value.Median
		for _, name := range slices.Sorted(maps.Keys(limits)) {
			t.Logf("try %d: %s: %.2f times as fast", try, name, seen[name])
			best[name] = max(best[name], seen[name])
		}
		t.Logf("try %d ended after %s", try, time.Since(begin).Round(time.Second))
	}
	for _, name := range slow() {
		t.Errorf("%s: %.2f times as fast as what it is compared with, at best of three tries; it should be %.2f at least", name,
			best[name], limits[name])
	}
}

// runBench runs `duestream bench` and returns its figures.
func runBench(t *testing.T, duestream string, server *redistest.Server, args ...string) map[string]bench.Figure {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, duestream, append([]string{"bench", "--json", "--redis", server.URL()}, args...)...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("duestream bench %q: %v\n%s", args, err, errOut.String())
	}
	var report struct{ Results []bench.Result }
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
		t.Fatalf("duestream bench %q: %v\n%s", args, err, out.String())
	}
	figures := map[string]bench.Figure{}
	for _, r := range report.Results {
		for _, f := range r.Figures {
			if f.Value.Median <= 0 || math.IsNaN(f.Value.Median) {
				t.Errorf("%s: %+v", f.Name, f)
			}
			figures[f.Name] = f
		}
	}
	return figures
}
