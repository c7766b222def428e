package conformance

import (
	"cmp"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// mutation is an example program with one text replaced, so that it breaks the protocol.
type mutation struct {
	breaks    string   // the fault of the program
	file      string   // relative to examples; its directory is the program
	old, new  string   // old occurs exactly once in the file
	cases     []string // cases to run: those that should refuse the program
	rule      string   // the watched rule that refuses it; "" = the cases do
	functions bool     // the fault shows with the functions library loaded
	// spared is why the kit accepts the program: the fault can neither lose nor duplicate a message, nor delay it
	// longer than the protocol allows; or the kit cannot see it.
	spared string
}

const (
	// envMutations selects mutations. "": a sample, another one each day. "table": all. Any other text: the mutations
	// with that text in their file or fault.
	envMutations   = "DUESTREAM_TEST_MUTATIONS"
	mutantsAtATime = 4
	sampled        = 8 // one mutation in this number is in the sample
)

// Each program is an example worker with one realistic fault. The kit must refuse it, and name a rule that the fault
// breaks. A fault with a reason in spared must be accepted.
func TestBrokenWorkersAreRefused(t *testing.T) {
	t.Parallel()
	checkMutations(t, Worker, slices.Concat(pythonWorkers, nodeWorkers, shellWorkers))
}

// As TestBrokenWorkersAreRefused, for producers.
func TestBrokenProducersAreRefused(t *testing.T) {
	t.Parallel()
	all := slices.Concat(pythonProducers, nodeProducers, shellProducers, sparedProducers)
	slices.SortStableFunc(all, func(a, b mutation) int { // an outage lasts 9 s: such mutations come first, together
		return cmp.Compare(len(slices.DeleteFunc(slices.Clone(a.cases), isOutage)),
			len(slices.DeleteFunc(slices.Clone(b.cases), isOutage)))
	})
	checkMutations(t, Producer, all)
}

// Regression: a day runs only a sample, so nobody noticed for weeks that the text of a mutation was gone from its
// program.
func TestEveryMutationChangesItsProgram(t *testing.T) {
	t.Parallel()
	for _, m := range slices.Concat(pythonWorkers, nodeWorkers, shellWorkers, pythonProducers, nodeProducers, shellProducers,
		sparedProducers) {
		text, err := os.ReadFile(filepath.Join("../../../examples", m.file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.old); n != 1 || m.old == m.new {
			t.Errorf("%s: %s: the text to be replaced is there %d times", m.file, m.breaks, n)
		}
	}
}

// isOutage reports whether a case waits for an outage.
func isOutage(name string) bool { return name == "outage" }

// checkMutations checks that the kit refuses mutations of one kind, except the spared ones. They share two servers: one
// with the functions library, one without.
func checkMutations(t *testing.T, kind Kind, all []mutation) {
	t.Helper()
	dependOnExamples(t)
	commands := map[string][]string{
		"python": {redistest.PythonWithRedis(t), "conformance.py"}, "node": {redistest.NodeWithIoredis(t, filepath.Join(examples, "node")), "conformance.js"}, "shell": {"bash", "conformance.sh"},
	}
	all = chosen(t, all)
	plain, loaded := mutationRig(t, kind, Good), mutationRig(t, kind, Complete)
	var running sync.WaitGroup
	free := make(chan struct{}, mutantsAtATime)
	for _, m := range all {
		dir := t.TempDir()
		if err := m.write(dir); err != nil {
			t.Errorf("%s: %s: %v", m.file, m.breaks, err)
			continue
		}
		language := filepath.Dir(m.file)
		command := slices.Clone(commands[language])
		command[len(command)-1] = filepath.Join(dir, command[len(command)-1])
		running.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			on := plain
			if m.functions {
				on = loaded
			}
			m.judge(t, kind, on, append(command, string(kind)))
		})
	}
	running.Wait()
}

// chosen returns the mutations to run, in a shuffled but fixed order, so that languages alternate: some are slow to
// start.
func chosen(t *testing.T, all []mutation) (some []mutation) {
	which, day := os.Getenv(envMutations), time.Now().YearDay()
	for i, m := range all {
		switch {
		case which == "table", which == "" && (i+day)%sampled == 0, which != "" &&
			strings.Contains(m.file+": "+m.breaks, which):
			some = append(some, m)
		}
	}
	t.Logf("%d of %d (%s=%q, day %d)", len(some), len(all), envMutations, which, day)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	return some
}

// levelOf returns the level whose cases can show the fault.
func levelOf(m mutation) Level {
	if m.functions {
		return Complete
	}
	return Good
}

// judge runs the cases of a mutation and checks their outcome. On an overloaded machine the kit forgives faults that
// the machine may have caused, such as a late reclaim. So a mutation that is accepted, but should be refused, is tried
// up to five times.
func (m mutation) judge(t *testing.T, kind Kind, on *rig, command []string) {
	cfg := mutationConfig(kind, levelOf(m))
	cfg.Command = command
	var by, seen []string
	for tries := 0; tries == 0 || m.spared == "" && len(by) == 0 && tries < 5; tries++ {
		for _, c := range Cases(kind, Complete) {
			if !slices.Contains(m.cases, c.Name) {
				continue
			}
			r := try(t.Context(), &cfg, on, c)
			switch r.State {
			case Failed:
				by = append(by, cmp.Or(r.Broke, r.Name))
				seen = append(seen, fmt.Sprintf("%s: %s (%s; protocol.md, section %s) %d ms", cmp.Or(r.Broke, r.Name), r.Seen,
					r.Rule, r.Section, r.Millis))
			case NotTried:
				t.Errorf("%s: %s: %s was not tried: %s", m.file, m.breaks, c.Name, r.Seen)
			}
		}
	}
	about := fmt.Sprintf("%s: %s: %s", m.file, m.breaks, strings.Join(seen, "\n    "))
	wanted := m.cases
	if m.rule != "" {
		wanted = []string{m.rule}
	}
	switch named := slices.ContainsFunc(by, func(name string) bool { return slices.Contains(wanted, name) }); {
	case m.spared != "" && len(by) > 0:
		t.Errorf("the table says that the kit accepts it, and the kit refuses it: %s", about)
	case m.spared == "" && len(by) == 0:
		t.Errorf("the kit accepts it: %s", about)
	case m.spared == "" && !named:
		t.Errorf("it is refused, but not by %s: %s", strings.Join(wanted, " or "), about)
	default:
		t.Log(about)
	}
}

func mutationConfig(kind Kind, level Level) Config {
	return Config{Kind: kind, Level: level, Prefix: DefaultPrefix, Visibility: time.Second, Patience: 25 * time.Second}
}

// mutationRig starts a server and a bridge. At level complete, the functions library is loaded.
func mutationRig(t *testing.T, kind Kind, level Level) *rig {
	t.Helper()
	cfg := mutationConfig(kind, level)
	cfg.ServerProgram = redistest.Program(t)
	on, err := newRig(t.Context(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := on.end(); err != nil {
			t.Error(err)
		}
	})
	return on
}

var examples = filepath.Join("..", "..", "..", "examples")

// write copies the example into a directory, with the text replaced.
func (m mutation) write(dir string) error {
	from := filepath.Join(examples, filepath.Dir(m.file))
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, f := range files {
		name := filepath.Join(from, f.Name())
		if f.IsDir() { // node_modules
			if name, err = filepath.Abs(name); err == nil {
				err = os.Symlink(name, filepath.Join(dir, f.Name()))
			}
			if err != nil {
				return err
			}
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if f.Name() == filepath.Base(m.file) {
			if n := strings.Count(string(text), m.old); n != 1 {
				return fmt.Errorf("the text to be replaced is there %s", times(n))
			}
			text = []byte(strings.Replace(string(text), m.old, m.new, 1))
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), text, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// dependOnExamples reads all examples, so that go test runs again after a change. It does not notice files that child
// processes read.
func dependOnExamples(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(examples, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == "node_modules" {
			return filepath.SkipDir
		}
		if err == nil && !entry.IsDir() {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
