package campaign

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Variables of a long campaign, set by `make campaign`.
const (
	envDuration = "DUESTREAM_CAMPAIGN_DURATION"
	envOut      = "DUESTREAM_CAMPAIGN_OUT"
	envRate     = "DUESTREAM_CAMPAIGN_RATE" // messages per second
	envSeed     = "DUESTREAM_TEST_SEED"
)

// ParallelIfShort runs a short campaign in parallel with the others, because all mostly wait for their faults. A long
// campaign gets the machine for itself.
func ParallelIfShort(t *testing.T) {
	if os.Getenv(envDuration) == "" {
		t.Parallel()
	}
}

// Prove runs a short campaign, or a long one if envDuration is set. longRate is the default rate of a long campaign, in
// messages per second. The test fails for each violation, and if the run did not have every fault and every feature.
func Prove(t testing.TB, cfg Config, longRate float64) {
	seed, _ := strconv.ParseUint(os.Getenv(envSeed), 10, 64)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	cfg.Seed, cfg.Visibility, cfg.Settle, cfg.Dir = seed, 2500*time.Millisecond, 40*time.Second, t.TempDir()
	cfg.Pause = [2]time.Duration{100 * time.Millisecond, 600 * time.Millisecond}
	long := os.Getenv(envDuration)
	if long != "" {
		d, err := time.ParseDuration(long)
		if err != nil {
			t.Fatalf("%s: %v", envDuration, err)
		}
		if text := os.Getenv(envRate); text != "" {
			if longRate, err = strconv.ParseFloat(text, 64); err != nil || longRate <= 0 {
				t.Fatalf("%s %q: must be a number above 0", envRate, text)
			}
		}
		cfg.Duration, cfg.Rate, cfg.Patience, cfg.Settle = d, longRate, 1, 2*time.Minute
		cfg.Pause = [2]time.Duration{500 * time.Millisecond, 2500 * time.Millisecond}
		cfg.Progress = func(format string, args ...any) { t.Logf(format, args...) }
	}
	t.Logf("seed %d", seed)
	result := Run(t, cfg)
	t.Log(result.Line())
	out := &lines{t: t}
	if err := result.Table(out); err != nil {
		t.Fatal(err)
	}
	out.flush()
	if dir := os.Getenv(envOut); dir != "" {
		write(t, dir, result)
	}
	if result.Bad() > 0 {
		if err := result.Report(out); err != nil {
			t.Error(err)
		}
		if err := writeTimeline(out, result.Faults); err != nil {
			t.Error(err)
		}
		out.flush()
		t.Errorf("%d violations", result.Bad())
	}
	const fewestKinds = 20 // of faults; each form of a campaign has more
	if done, _, faults := result.counts(); len(done) != result.Kinds || result.Kinds < fewestKinds ||
		result.Accepted < cfg.Hold || sum(result.Retries) == 0 || sum(result.Dead) == 0 || result.unused() != "" {
		t.Errorf("this run proves little: %d faults of %d kinds, of %d that there are, %d messages%s", faults, len(done),
			result.Kinds, result.Accepted, result.unused())
	}
}

// lines collects lines for the log of the test.
type lines struct {
	t    testing.TB
	text []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *lines) flush() {
	l.t.Logf("\n%s", l.text)
	l.text = nil
}

// write writes the table, the timeline and the findings into a directory.
func write(t testing.TB, dir string, r *Result) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]func(f *os.File) error{
		"campaign.md":  func(f *os.File) error { return r.Table(f) },
		"timeline.txt": func(f *os.File) error { return writeTimeline(f, r.Faults) },
		"findings.txt": func(f *os.File) error { return r.Report(f) },
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := content(f); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
