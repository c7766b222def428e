package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

var kinds = []Kind{Worker, Producer}

// passes runs the kit, and fails the test unless no case fails, the level is reached, and exactly untried cases are not
// tried.
func passes(t *testing.T, cfg Config, untried int) {
	t.Helper()
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Error(err)
		return
	}
	for _, r := range report.Cases {
		if r.State == Failed {
			t.Errorf("%s: %s\n%s", r.Name, r.Seen, r.Stderr)
		}
	}
	if report.Level != cfg.Level || !report.Reached() || report.Counts.NotTried != untried {
		t.Errorf("%s: level %s, %+v; want %s, %d not tried", cfg.Command, report.Level, report.Counts, cfg.Level, untried)
	}
}

// On servers that the kit starts itself, every case is tried, and a good program passes all.
func TestGoodProgramsPassEveryCase(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			cfg := config(kind, Complete)
			cfg.ServerProgram = redistest.Program(t)
			passes(t, cfg, 0)
		})
	}
}

// sameEverywhere are cases about the program's own data, clock and settings. Servers do not differ in them if the
// other cases pass. TestGoodProgramsPassEveryCase runs them.
var sameEverywhere = []string{
	"outage", "late-reply", "policy-changes", "policy-of-queue", "policy-of-group", "killed-after-extending", "stop-in-work", "ack-after-work", "extend-held",
	"payload", "headers", "names", "limits", "ids", "largest", "unknown-fields", "same-id", "for-own-group", "stop-idle",
	"input-ends",
	"due-in-the-past", "ok-when-stored",
}

// byServer returns the cases in which servers may differ.
func byServer(cases []Case) []Case {
	return slices.DeleteFunc(slices.Clone(cases), func(c Case) bool { return slices.Contains(sameEverywhere, c.Name) })
}

// On a user's server, a good program passes all cases, except those that would disturb other clients: these are not
// tried. No key is left.
func TestGoodProgramsPassOnEveryServer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		prefix := s.Prefix(t)
		var running sync.WaitGroup
		for _, kind := range kinds {
			cfg := config(kind, Complete)
			cfg.URL, cfg.Prefix, cfg.Cases = s.URL(), prefix, byServer(cfg.Cases)
			running.Go(func() { passes(t, cfg, alone(cfg.Cases)) })
		}
		running.Wait()
		nothingLeft(t, s, prefix)
	})
}

// alone counts the cases that need a server of their own.
func alone(cases []Case) (n int) {
	for _, c := range cases {
		if c.alone != "" {
			n++
		}
	}
	return n
}

// nothingLeft fails the test if the server has a key of the prefix.
func nothingLeft(t *testing.T, s *redistest.Server, prefix string) {
	t.Helper()
	c := s.Client(t)
	keys, err := c.Do(context.Background(), c.B().Keys().Pattern(prefix+"*").Build()).AsStrSlice()
	if err != nil || len(keys) > 0 {
		t.Errorf("keys %q are left (%v)", keys, err)
	}
}

// Cases that need a server of their own are not tried on a user's server. They are reported with the reason, and never
// count as passed.
func TestWhatIsNotTriedIsNotPassed(t *testing.T) {
	t.Parallel()
	cfg := config(Worker, Good)
	s := redistest.Shared(t)
	cfg.URL, cfg.Prefix, cfg.Partial = s.URL(), s.Prefix(t), true
	cfg.Cases = slices.DeleteFunc(cfg.Cases, func(c Case) bool { return c.alone == "" })
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Cases {
		if r.State != NotTried || r.Seen == "" {
			t.Errorf("%s: %s, %q", r.Name, r.State, r.Seen)
		}
	}
	if report.Counts.NotTried == 0 || report.Counts.Passed > 0 || report.Reached() {
		t.Errorf("%+v, reached %v", report.Counts, report.Reached())
	}
}

// A program reaches the highest level below its first failure. A level whose cases were all not tried is no obstacle,
// but without a passed case there is no level. A producer begins at level good.
func TestLevelIsTheHighestWithoutAFailure(t *testing.T) {
	for _, tc := range []struct {
		kind    Kind
		asked   Level
		states  map[Level]State
		level   Level
		reached bool
	}{
		{Worker, Complete, map[Level]State{Minimal: Passed, Good: Passed, Complete: Passed}, Complete, true},
		{Worker, Complete, map[Level]State{Minimal: Passed, Good: Passed, Complete: Failed}, Good, false},
		{Worker, Good, map[Level]State{Minimal: Passed, Good: NotTried}, Good, true},
		{Worker, Good, map[Level]State{Minimal: Failed, Good: Passed}, 0, false},
		{Worker, Complete, map[Level]State{Minimal: Passed, Good: Failed, Complete: Passed}, Minimal, false},
		{Worker, Minimal, map[Level]State{Minimal: NotTried}, 0, false},
		{Producer, Good, map[Level]State{Good: Passed}, Good, true},
		{Producer, Good, map[Level]State{Good: Failed}, 0, false},
		{Producer, Complete, map[Level]State{Good: Passed, Complete: Passed}, Complete, true},
		{Producer, Complete, map[Level]State{Good: Passed, Complete: Failed}, Good, false},
		{Producer, Complete, map[Level]State{Good: Failed, Complete: Passed}, 0, false},
	} {
		r := &Report{Kind: tc.kind, Asked: tc.asked}
		for level, state := range tc.states {
			r.Cases = append(r.Cases, Result{Case: Case{Level: level}, State: state})
		}
		r.judge()
		if r.Level != tc.level || r.Reached() != tc.reached {
			t.Errorf("%s %v: level %s, reached %v; want %s, %v", tc.kind, tc.states, r.Level, r.Reached(), tc.level, tc.reached)
		}
	}
}

// A run that is interrupted while cases are running leaves no key and no process of a program.
func TestAnInterruptLeavesNothing(t *testing.T) {
	s, dir := redistest.Shared(t), t.TempDir()
	t.Setenv(envPids, dir)
	cfg := config(Worker, Good)
	cfg.URL, cfg.Prefix = s.URL(), s.Prefix(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	cfg.Done = func(Result) { interrupt() } // the first case has ended, others are running
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	nothingLeft(t, s, cfg.Prefix)
	files, err := os.ReadDir(dir)
	if err != nil || len(files) == 0 {
		t.Fatal("no program has run", err)
	}
	for _, f := range files {
		pid, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("program %d is left: %v", pid, err)
		}
	}
}

const reference = "../../../docs/reference/"

// read returns a page of docs/reference.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(reference + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// docs/reference/conformance.md lists every broken program that the kit accepts, with the reason. The sections of
// protocol.md that cases and rules name exist.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	document, protocol := read(t, "conformance.md"), read(t, "protocol.md")
	for _, m := range slices.Concat(pythonWorkers, nodeWorkers, shellWorkers, sparedProducers) {
		if row := fmt.Sprintf("| %s | %s |\n", m.breaks, m.spared); m.spared != "" && !strings.Contains(document, row) {
			t.Errorf("conformance.md lacks the line\n%s", row)
		}
	}
	sections := map[string]string{}
	for _, kind := range kinds {
		for _, c := range Cases(kind, Complete) {
			sections[string(kind)+" case "+c.Name] = c.Section
		}
		for _, r := range Rules(kind) {
			sections[string(kind)+" rule "+r.Name] = r.Section
		}
	}
	for name, text := range sections {
		var section int
		if _, err := fmt.Sscan(strings.NewReplacer(",", " ", ".", " ").Replace(text), &section); err != nil ||
			!strings.Contains(protocol, fmt.Sprintf("\n## %d. ", section)) {
			t.Errorf("%s: protocol.md has no section %q", name, text)
		}
	}
}

// On a cluster, the partitions of a queue are on different servers. Cases that need the network of a program in the
// hands of the kit are not tried there.
func TestGoodProgramsPassOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 2, 0)
	var running sync.WaitGroup
	for _, kind := range kinds {
		cfg := config(kind, Complete)
		cfg.URL, cfg.Cases = cluster.URL(), byServer(cfg.Cases)
		untried := alone(cfg.Cases)
		for _, c := range cfg.Cases {
			if c.tapped && c.alone == "" {
				untried++
			}
		}
		running.Go(func() { passes(t, cfg, untried) })
	}
	running.Wait()
	for _, s := range cluster.Servers {
		if n := s.Do(t, "DBSIZE"); n != "0" {
			t.Errorf("%s keys are left at %s", n, s.Addr())
		}
	}
}
