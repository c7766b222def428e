package crashpoint

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// reliedOn names commands whose refusal would leave something half done, with the reason why a script may rely on
// them. If one is refused all the same, it may spoil the current message, and no other.
//
// A command that follows a write is reliable for another reason, too: a server that has let a script write once
// checks neither memory nor disk nor replicas for the rest of the script, and the types of all keys were checked
// before.
var reliedOn = map[string]string{
	"enqueue call HDEL": "follows ZADD of the same message",
	"retry call HSET":   "follows XACK, which took the entries of the call out of the pending list",
	"retry call ZADD":   "follows XACK, which took the entries of the call out of the pending list",
	"reclaim call HSET": "follows XACK, which took the entry out of the pending list",
	"reclaim call ZADD": "follows XACK, which took the entry out of the pending list",
	"redrive call HSET": "follows XDEL, which took the letter out of the dead",
	"redrive call ZADD": "follows XDEL, which took the letter out of the dead",

	"recur call ZREM":          "follows HSET of what is remembered, so that nothing is left out",
	"run_recurrence call ZREM": "follows HSET of what is remembered, so that nothing is left out",

	// A dead-letter stream whose IDs are used up refuses the dead letter of an entry that another client deleted. The
	// claim has already dropped such an entry from the pending list, so its ID is lost without a dead letter.
	"reclaim pcall XADD": "a letter for a body that is lost; counted as stuck",
	"extend pcall XADD":  "a letter for a body that is lost; told to the handler as lost",
}

// step is the preamble's note about the refused command.
type step struct {
	site         int
	clean        bool // nothing had been written before
	how, command string
}

func (s *scene) noted() (step, bool) {
	m := s.do("GETDEL", s.note)
	text, err := m.ToString()
	if err != nil {
		return step{}, false
	}
	var at step
	var wrote string
	if _, err := fmt.Sscan(text, &at.site, &wrote, &at.how, &at.command); err != nil {
		s.Fatalf("note %q: %v", text, err)
	}
	at.clean = wrote == "clean"
	return at, true
}

// compareBounds notes which bounds of attempts a scenario has reached.
func (s *seen) compareBounds(sc scenario, in *scene) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, d := range in.owed {
		name := fmt.Sprintf("%s: %s: %s", sc.script, sc.state, at)
		switch {
		case d.most == 0 || s.tight[name]:
		case in.top[at] >= d.most:
			s.tight[name] = true
			delete(s.loose, name)
		default:
			s.loose[name] = d.most
		}
	}
}

// refusedIn returns the file with the command that was refused in a script, or "" if none was refused.
func (s *scene) refusedIn(script string) string {
	m := s.do("GET", s.note)
	text, _ := m.ToString()
	var n int
	if _, err := fmt.Sscan(text, &n); err != nil {
		return ""
	}
	return sitesOf(s, script)[n].file
}

// Every command of every script is refused once, except XDELEX if the server lacks it: see TestXDELEXFails. There are
// two variants: nobody repeats the call, or its caller does. In both, no accepted message is lost, nothing stays half
// done, and a refusal before the first write changes nothing.
func TestEveryScriptStepFails(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	seen := newSeen()
	work := make(chan scenario)
	var hands sync.WaitGroup
	for range failsAtOnce {
		c := server.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
		hands.Go(func() {
			for sc := range work {
				t.Run(sc.script+": "+sc.state, func(t *testing.T) { failSteps(t, server, c, sc, seen) })
			}
		})
	}
	for _, sc := range scenarios() {
		work <- sc
	}
	close(work)
	hands.Wait()
	checkSites(t, seen.reached)
	for name, why := range reliedOn {
		if !seen.relied[name] {
			t.Errorf("reliedOn has an entry that no refusal needed: %s (%s)", name, why)
		}
	}
	for name, most := range seen.loose {
		t.Errorf("%s: no refusal led to attempt %d, so the bound of the scenario is too high", name, most)
	}
}

// xdelexCall is the beginning of a line that runs only on newer servers.
const xdelexCall = "redis.call('XDELEX'"

// Every command of ack and ack_result is refused on a server that has XDELEX. retry and reclaim free entries by the
// same line of lib/free.lua.
func TestXDELEXFails(t *testing.T) {
	t.Parallel()
	const image = "redis:8.6"
	server, ok := redistest.OwnOn(t, image)
	if !ok {
		t.Logf("not run: no image %s in a local Docker engine", image)
		return
	}
	c := server.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	seen := newSeen()
	for _, sc := range scenarios() {
		if sc.script == "ack" || sc.script == "ack_result" {
			t.Run(sc.script+": "+sc.state, func(t *testing.T) { failSteps(t, server, c, sc, seen) })
		}
	}
	for _, script := range []string{"ack", "ack_result"} {
		refused := false
		for i, at := range sitesOf(t, script) {
			refused = refused || strings.HasPrefix(at.line, xdelexCall) && seen.reached[script][i]
		}
		redistest.Want(t, "XDELEX of "+script+" was refused", refused, true)
	}
}

// failSteps refuses each command of a scenario's script, one after another.
func failSteps(t *testing.T, server *redistest.Server, c rueidis.Client, sc scenario, seen *seen) {
	for _, repeated := range []bool{false, true} {
		at := step{clean: true}
		for n := 1; ; n++ {
			found := false
			if at, found = failAt(t, newScene(t, server, c), sc, n, repeated, at.clean, seen); !found {
				t.Logf("%d steps refused, repeated=%v", n-1, repeated)
				break
			}
			seen.reach(sc.script, at.site)
		}
	}
}

// keepHistories are the scripts whose scenarios keep a history: those that read data for it, and not only write at
// their end.
var keepHistories = map[string]bool{"drain": true, "reclaim": true, "retry": true}

// failsAtOnce is how many scenarios run concurrently, each on a queue of its own.
const failsAtOnce = 8

// seen collects what the scenarios reached.
type seen struct {
	mu      sync.Mutex
	reached map[string]map[int]bool // script → numbers of its sites
	relied  map[string]bool         // used keys of reliedOn
	loose   map[string]int          // scenario and message with a debt.most that no attempt has reached → debt.most
	tight   map[string]bool         // scenario and message with a debt.most that an attempt has reached
}

func newSeen() *seen {
	return &seen{reached: map[string]map[int]bool{}, relied: map[string]bool{}, loose: map[string]int{},
		tight: map[string]bool{}}
}

func (s *seen) reach(script string, site int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reached[script] == nil {
		s.reached[script] = map[int]bool{}
	}
	s.reached[script][site] = true
}

func (s *seen) rely(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relied[name] = true
}

// failAt refuses the n-th command of the script, and returns the step of this command, or false if the script has fewer
// commands. clean says that the script had written nothing when command n-1 was refused, so it may have written nothing
// before command n either.
func failAt(t *testing.T, s *scene, sc scenario, n int, repeated, clean bool, seen *seen) (step, bool) {
	if keepHistories[sc.script] {
		s.do("HSET", s.k.Policy, "history", "1000")
	}
	call := sc.prepare(s)
	before := ""
	if clean {
		before = s.snapshot()
	}
	err := call(interrupt(s.c, sc.script, n, fmt.Sprintf(refuse, s.note)))
	at, found := s.noted()
	what := fmt.Sprintf("step %d (%s %s)", n, at.how, at.command)
	if !found && err != nil {
		t.Fatalf("without a refusal: %v", err)
	}
	if sc.bodies && at.clean && err != nil {
		// Commands before the script have stored the payloads and metas, which may be orphans now.
		s.do("DEL", s.k.Payload, s.k.Meta)
	}
	if clean && at.clean && err != nil && s.snapshot() != before {
		t.Errorf("%s: refused before the first write, and yet something changed:\n%s\nbefore:\n%s", what, s.snapshot(),
			before)
	}
	if err != nil && repeated {
		err = call(s.c)
		if err != nil {
			t.Errorf("%s: the repeated call: %v", what, err)
		}
	}
	if err == nil && sc.after != nil {
		sc.after(s)
	}
	if sc.mend != nil {
		sc.mend(s)
	}
	s.settle()
	seen.compareBounds(sc, s)
	debts, left := s.broken(err == nil)
	if sc.single && at.how == "pcall" {
		for to, n := range s.got {
			if n > 1 {
				t.Errorf("%s: %s was delivered %d times", what, to, n)
			}
		}
	}
	name := sc.script + " " + at.how + " " + at.command
	if _, ok := reliedOn[name]; ok && len(debts)+len(left) > 0 && !at.clean {
		seen.rely(name)
		most := 1
		if sc.script == "retry" {
			most = 3 // the messages of one call, which are written together
		}
		if len(debts) <= most {
			debts = nil
		}
		left = ""
	}
	if len(debts) > 0 || left != "" {
		t.Errorf("%s, repeated=%v: %s %s", what, repeated, strings.Join(debts, "; "), left)
	}
	return at, found
}

// takesBack has the commands that run only after another command was refused. A scenario refuses only one command, so
// it does not refuse these. lua.TestEnqueueOneTakesBackWhatItHasWritten tests them.
var takesBack = map[string]bool{
	"if wrote_payload then redis.pcall('HDEL', payload, id) end": true,
	"if wrote_meta then redis.pcall('HDEL', meta, id) end":       true,
	"if wrote_mark then redis.pcall('ZREM', seen, mark) end":     true,
}

// checkSites compares the reached sites with the sources: a command in a script's own file must have been refused in
// that script, and one in a shared file in some script.
func checkSites(t *testing.T, reached map[string]map[int]bool) {
	shared, hit := map[site]bool{}, map[site]bool{}
	total := 0
	for _, name := range scriptNames() {
		for i, at := range sitesOf(t, name) {
			own := at.file == name
			if own {
				total++
			}
			switch {
			case reached[name][i]:
				hit[at] = true
			case own && takesBack[at.line]:
			case own:
				t.Errorf("no scenario of %s reaches: %s", name, at.line)
			}
			if !own {
				shared[at] = true
			}
		}
	}
	for at := range shared {
		if !hit[at] && !strings.HasPrefix(at.line, xdelexCall) {
			t.Errorf("no scenario reaches %s", at)
		}
	}
	t.Logf("%d commands in the texts of %d scripts, and %d in shared ones: each was refused, except newer commands", total,
		len(scriptNames()), len(shared))
}
