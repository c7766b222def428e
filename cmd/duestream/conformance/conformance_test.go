package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "program" {
		os.Exit(runProgram(os.Args[2:]))
	}
	redistest.Main(m)
}

const envPids = "DUESTREAM_CONFORMANCE_PIDS" // directory in which each program leaves a file of its number

// runProgram is the body of the programs that the tests hand to the kit: kind, and what is broken about it.
func runProgram(args []string) int {
	if dir := os.Getenv(envPids); dir != "" {
		_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), nil, 0o600)
	}
	broken := strings.Join(args[1:], "")
	run := map[string]func() error{
		"worker": func() error { return runPlainWorker(broken) }, "producer": func() error { return runPlainProducer(broken) },
		"sdk-worker": runSDKWorker, "sdk-producer": runSDKProducer,
	}[args[0]]
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "program:", err)
		return 1
	}
	return 0
}

// config returns how a test runs the kit on a program of runProgram.
func config(kind Kind, level Level, program ...string) Config {
	return Config{
		Kind: kind, Level: level, Command: append([]string{os.Args[0], "program"}, program...), Cases: Cases(kind, level),
		Prefix: DefaultPrefix, Visibility: DefaultVisibility, Patience: DefaultPatience, Parallel: 8,
	}
}

// goodPrograms are programs that keep to the protocol, and what they reach.
var goodPrograms = []struct {
	kind    Kind
	level   Level
	program string
}{
	{Worker, Good, "worker"}, {Worker, Complete, "sdk-worker"}, {Producer, Good, "producer"}, {Producer, Complete, "sdk-producer"},
}

// passes runs the kit and checks that every case passed that was tried, and how many were not.
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

// On servers of the kit's own every case is tried.
func TestGoodProgramsPassEveryCase(t *testing.T) {
	t.Parallel()
	for _, g := range goodPrograms {
		t.Run(g.program, func(t *testing.T) {
			t.Parallel()
			cfg := config(g.kind, g.level, g.program)
			cfg.ServerProgram = redistest.Program(t)
			passes(t, cfg, 0)
		})
	}
}

// On a server that somebody else runs all but those that disturb others are.
func TestGoodProgramsPassOnEveryServer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		prefix := s.Prefix(t)
		var running sync.WaitGroup
		for _, g := range goodPrograms {
			cfg := config(g.kind, g.level, g.program)
			cfg.URL, cfg.Prefix = s.URL(), prefix
			running.Go(func() { passes(t, cfg, alone(cfg.Cases)) })
		}
		running.Wait()
		nothingLeft(t, s, prefix)
	})
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

// breaks says by which cases, or rules that are watched in every case, a program fails that does one thing wrong: it must by some, and may by others that the same rule explains.
type breaks struct {
	broken    string
	must, may []string
}

func TestABrokenWorkerFailsByTheRuleThatItBreaks(t *testing.T) {
	t.Parallel()
	fail(t, Worker, []breaks{
		{"acks-first", []string{"acks-after-work", "acks-no-failure"}, []string{"late-acknowledgement", "killed"}},
		{"claims", []string{"no-claims"}, nil},
		{"ignores-for", []string{"skips-others"}, nil},
		{"text-payload", []string{"as-given"}, nil},
		{"group-at-dollar", []string{"group-at-zero"}, nil},
		{"dies-on-nogroup", []string{"group-lost"}, nil},
		{"no-extend", []string{"extend"}, []string{"extend-held", "partitions-extend"}},
		{"hoards", []string{"extend-held"}, []string{"stop", "several-workers", "poison", "ack-after-work", "finishes"}},
		{"one-partition", []string{"partitions", "partitions-grow"}, []string{"partitions-extend"}},
		{"attempt-one", []string{"as-given"}, nil},
		{"no-stop", []string{"stop", "stop-idle"}, nil},
	})
}

func TestABrokenProducerFailsByTheRuleThatItBreaks(t *testing.T) {
	t.Parallel()
	fail(t, Producer, []breaks{
		{"zadd-first", []string{"writes-whole"}, nil},
		{"seconds", []string{"score", "arrives"}, []string{"replace", "ids", "largest", "ok-when-stored", "request-lost", "reply-lost", "late-reply", "input-ends", "wakes-each", "failed-command", "partitions-grow", "outage"}},
		{"no-wake", []string{"wakes"}, nil},
		{"keeps-headers", []string{"replace"}, []string{"reused"}},
		{"expiry", []string{"keeps-keys"}, nil},
		{"sets-registry", []string{"keeps-registry"}, nil},
	})
}

// fail runs the kit on programs that are broken, some at a time.
func fail(t *testing.T, kind Kind, all []breaks) {
	t.Helper()
	s := redistest.Own(t)
	reports, errs := make([]*Report, len(all)), make([]error, len(all))
	var running sync.WaitGroup
	free := make(chan struct{}, 3)
	for i, b := range all {
		running.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			cfg := config(kind, Good, string(kind), b.broken)
			cfg.URL, cfg.Patience, cfg.Parallel = s.URL(), 10*time.Second, 10
			cfg.Cases = slices.DeleteFunc(cfg.Cases, func(c Case) bool { // which take long: mutations of the examples fail by them
				return slices.ContainsFunc(slices.Concat(comingBackCases, policyCases, outageCases), func(slow Case) bool { return slow.Name == c.Name })
			})
			reports[i], errs[i] = Run(t.Context(), cfg)
		})
	}
	running.Wait()
	for i, b := range all {
		if errs[i] != nil {
			t.Fatal(b.broken, errs[i])
		}
		var failed []string
		for _, r := range reports[i].Cases {
			if r.State == Failed {
				name := cmp.Or(r.Broke, r.Name)
				failed = append(failed, name)
				t.Logf("%s: %s: %s: %s", b.broken, r.Name, name, r.Seen)
				if !slices.Contains(b.must, name) && !slices.Contains(b.may, name) {
					t.Errorf("%s: fails by %s, which it does not break: %s", b.broken, name, r.Seen)
				}
			}
		}
		for _, name := range b.must {
			if !slices.Contains(failed, name) {
				t.Errorf("%s: does not fail by %s", b.broken, name)
			}
		}
		if reports[i].Reached() {
			t.Errorf("%s: reaches the level", b.broken)
		}
	}
}

func TestWhatIsNotTriedIsNotPassed(t *testing.T) {
	t.Parallel()
	cfg := config(Worker, Good, "worker")
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
	cfg := config(Worker, Good, "worker")
	cfg.URL, cfg.Prefix = s.URL(), s.Prefix(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	cfg.Done = func(Result) { interrupt() } // the first case is over, others are under way
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

// docs/CONFORMANCE.md lists every case and every rule that is watched, and the sections that rules name are there.
func TestDocumentListsEveryCase(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	document, protocol := read("CONFORMANCE.md"), read("PROTOCOL.md")
	for _, kind := range []Kind{Worker, Producer} {
		for _, r := range Rules(kind) {
			if row := fmt.Sprintf("| `%s` | %s | %s | %s |\n", r.Name, r.Level, r.Rule, r.Section); !strings.Contains(document, row) {
				t.Errorf("it lacks the line\n%s", row)
			}
		}
	}
	for _, m := range slices.Concat(pythonWorkers, nodeWorkers, shellWorkers) {
		if row := fmt.Sprintf("| %s | %s |\n", m.breaks, m.spared); m.spared != "" && !strings.Contains(document, row) {
			t.Errorf("it lacks the line\n%s", row)
		}
	}
	_, table, found := strings.Cut(document, "\n## Cases\n")
	if !found {
		t.Fatal("there is no section Cases")
	}
	all := append(Cases(Worker, Complete), Cases(Producer, Complete)...)
	for _, c := range all {
		if row := fmt.Sprintf("| `%s` | %s | %s | %s |\n", c.Name, c.Level, c.Rule, c.Section); !strings.Contains(table, row) {
			t.Errorf("it lacks the line\n%s", row)
		}
		var section int
		if _, err := fmt.Sscan(strings.NewReplacer(",", " ", ".", " ").Replace(c.Section), &section); err != nil || !strings.Contains(protocol, fmt.Sprintf("\n## %d. ", section)) {
			t.Errorf("%s: PROTOCOL.md has no section %q", c.Name, c.Section)
		}
	}
	if rows := strings.Count(table, "\n| `"); rows != len(all) {
		t.Errorf("it has %d cases; there are %d", rows, len(all))
	}
}

// On a cluster partitions are on different servers, and nobody can tell in which order they execute commands.
func TestGoodProgramsPassOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 2, 0)
	var running sync.WaitGroup
	for _, g := range goodPrograms {
		cfg := config(g.kind, g.level, g.program)
		cfg.URL = cluster.URL()
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
