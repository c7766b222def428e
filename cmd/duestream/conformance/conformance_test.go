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
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// goodPrograms keep to the protocol, up to a level.
var goodPrograms = []struct {
	kind    Kind
	level   Level
	program string
}{
	{Worker, Good, "worker"}, {Worker, Complete, "sdk-worker"}, {Producer, Good, "producer"}, {Producer, Complete, "sdk-producer"},
}

// passes runs the kit. It checks that no case failed, and how many were not tried.
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

// On servers of the kit itself, every case is tried.
func TestGoodProgramsPassEveryCase(t *testing.T) {
	t.Parallel()
	for _, g := range goodPrograms {
		t.Run(g.program, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, g.kind, g.level, g.program)
			cfg.ServerProgram, cfg.Command[0] = redistest.Program(t), os.Args[0]
			passes(t, cfg, 0)
		})
	}
}

// sameEverywhere are cases about the program's own data, clock and settings. Servers do not differ in them if the
// other cases pass. TestGoodProgramsPassEveryCase runs them.
var sameEverywhere = []string{
	"outage", "late-reply", "policy-changes", "policy-of-queue", "policy-of-group", "killed-after-extending", "stop-in-work", "ack-after-work", "extend-held",
	"payload", "headers", "names", "limits", "ids", "largest", "score", "unknown-fields", "same-id", "several-workers", "for-own-group", "stop-idle", "input-ends",
	"due-in-the-past", "ok-when-stored",
}

// byServer returns the cases in which servers may differ.
func byServer(cases []Case) []Case {
	return slices.DeleteFunc(slices.Clone(cases), func(c Case) bool { return slices.Contains(sameEverywhere, c.Name) })
}

// On a user's server, all cases run except those that disturb others. Each case runs on each server, with one of the
// two programs of its kind; the programs alternate from server to server.
func TestGoodProgramsPassOnEveryServer(t *testing.T) {
	t.Parallel()
	var servers atomic.Int32
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		turn := int(servers.Add(1))
		t.Parallel()
		prefix := s.Prefix(t)
		var running sync.WaitGroup
		for i, g := range goodPrograms {
			cfg := config(t, g.kind, g.level, g.program)
			cfg.URL, cfg.Prefix, cfg.Cases = s.URL(), prefix, everyOther(byServer(cfg.Cases), turn+i)
			running.Go(func() { passes(t, cfg, alone(cfg.Cases)) })
		}
		running.Wait()
		nothingLeft(t, s, prefix)
	})
}

// everyOther returns the cases of this turn, and all cases of level complete, which only one program must pass.
func everyOther(cases []Case, turn int) (some []Case) {
	for i, c := range cases {
		if (i+turn)%2 == 0 || c.Level == Complete {
			some = append(some, c)
		}
	}
	return some
}

func alone(cases []Case) (n int) {
	for _, c := range cases {
		if c.alone != "" {
			n++
		}
	}
	return n
}

func nothingLeft(t *testing.T, s *redistest.Server, prefix string) {
	t.Helper()
	c := s.Client(t)
	keys, err := c.Do(context.Background(), c.B().Keys().Pattern(prefix+"*").Build()).AsStrSlice()
	if err != nil || len(keys) > 0 {
		t.Errorf("keys %q are left (%v)", keys, err)
	}
}

func TestWhatIsNotTriedIsNotPassed(t *testing.T) {
	t.Parallel()
	cfg := config(t, Worker, Good, "worker")
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

func TestAnInterruptLeavesNothing(t *testing.T) {
	s, dir := redistest.Shared(t), t.TempDir()
	t.Setenv(envPids, dir)
	cfg := config(t, Worker, Good, "worker")
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

func TestParseCommandReadsWhatMonitorWrites(t *testing.T) {
	for line, want := range map[string]command{
		`+1795283707.604380 [0 127.0.0.1:50368] "ZADD" "p:{q}:due" "1" "a\x1f\xe9 \"q\" \\ \r\n"`: {"127.0.0.1:50368", "ZADD", "p:{q}:due"},
		`+1795284834.680445 [0 [::1]:46652] "hset" "p:{q}:meta" "a" "{"h:kind":"order"}"`:         {"[::1]:46652", "HSET", "p:{q}:meta"}, // Valkey 8.1
		`+1795283707.604547 [0 lua] "SET" "foo" "1"`:                                              {"lua", "SET", "foo"},
		`+1795283707.604547 [0 127.0.0.1:1] "MULTI"`:                                              {"127.0.0.1:1", "MULTI", ""},
	} {
		if c, ok := parseCommand(line); !ok || c != want {
			t.Errorf("%s: %+v, %v; want %+v", line, c, ok, want)
		}
	}
	for _, bad := range []string{"", "+OK", `+1 [0 x] "open`, "+1 [0 x] ", `+1 [0 x] "A" "b`} {
		if c, ok := parseCommand(bad); ok {
			t.Errorf("%q: %+v", bad, c)
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

// docs/reference/conformance.md lists every broken program that the kit accepts. The sections that rules name exist.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	document, protocol := read(t, "conformance.md"), read(t, "protocol.md")
	for _, m := range slices.Concat(pythonWorkers, nodeWorkers, shellWorkers, sparedProducers) {
		if row := fmt.Sprintf("| %s | %s |\n", m.breaks, m.spared); m.spared != "" && !strings.Contains(document, row) {
			t.Errorf("conformance.md lacks the line\n%s", row)
		}
	}
	sections := map[string]string{}
	for _, kind := range []Kind{Worker, Producer} {
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

// Long cases begin first and run concurrently with short ones. Every case runs once.
func TestLongCasesBeginFirst(t *testing.T) {
	for _, kind := range []Kind{Worker, Producer} {
		cases := Cases(kind, Complete)
		begin := startOrder(cases)
		if len(begin) != len(cases) || cases[begin[0]].Name != "outage" || slices.Contains(lasting, cases[begin[1]].Name) ||
			!slices.Contains(lasting, cases[begin[2]].Name) {
			t.Errorf("%v", begin)
		}
		slices.Sort(begin)
		for i, index := range begin {
			if i != index {
				t.Fatalf("%s: case %d is missing, or there twice: %v", kind, i, begin)
			}
		}
	}
	for _, name := range lasting {
		if !slices.ContainsFunc(slices.Concat(Cases(Worker, Complete), Cases(Producer, Complete)), func(c Case) bool {
			return c.Name == name
		}) {
			t.Errorf("there is no case %s", name)
		}
	}
	if begin := startOrder(Cases(Worker, Complete)[:1]); len(begin) != 1 {
		t.Error(begin)
	}
}

// On a cluster partitions are on different servers, and nobody can tell in which order they execute commands.
func TestGoodProgramsPassOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 2, 0)
	var running sync.WaitGroup
	for _, g := range goodPrograms {
		cfg := config(t, g.kind, g.level, g.program)
		cfg.URL, cfg.Cases = cluster.URL(), byServer(cfg.Cases)
		untried := alone(cfg.Cases)
		if g.kind == Producer {
			untried++
		}
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
