package lua

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// recorder records the words of every EVAL and EVALSHA.
type recorder struct {
	rueidis.Client
	mu   sync.Mutex
	sent [][]string
}

func (r *recorder) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if words := cmd.Commands(); strings.HasPrefix(words[0], "EVAL") {
		r.mu.Lock()
		r.sent = append(r.sent, slices.Clone(words))
		r.mu.Unlock()
	}
	return r.Client.Do(ctx, cmd)
}

// Every script runs on the in-process server of dev, except for the cases in notInProcess.
func TestScriptsRunOnTheInProcessServer(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.script.name, func(t *testing.T) {
			b := inProcess(t)
			b.fixture()
			if err := c.run(b); err != nil {
				t.Error(err)
			}
		})
	}
	var tests []string
	files, _ := filepath.Glob("*_test.go")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllStringSubmatch(string(text), -1) {
			tests = append(tests, m[1])
		}
	}
	for name, reason := range notInProcess {
		if !slices.Contains(tests, name) {
			t.Errorf("%s is not expected of the in-process server (%s), but there is no such test", name, reason)
		}
	}
}

// The Go call sends the keys that the header names, in that order, and a number of arguments that fits the header.
func TestCallsSendWhatTheHeaderSays(t *testing.T) {
	aliases := map[string][]string{"settings": {"policy"}, "fields": {"payload", "meta"},
		"entries": {"stream", "dead"}}
	for _, c := range calls() {
		b := inProcess(t)
		b.fixture()
		r := &recorder{Client: b.c}
		b.c = r
		if err := c.run(b); err != nil {
			t.Fatal(err)
		}
		most := 2 // EVALSHA, and EVAL if the server does not know the script
		if c.script == configureScript || c.script == setPolicyScript || c.script == registerScript {
			most = 4 // the wake token needs a call of its own, because on a cluster its key is in another slot
		}
		if len(r.sent) == 0 || len(r.sent) > most {
			t.Fatalf("%s took %d commands", c.script.name, len(r.sent))
		}
		words := r.sent[0] // EVALSHA sha n key… arg…
		keys := c.keys(b)
		wantList(t, c.script.name+": keys", words[3:3+len(keys)], keys...)
		for i, name := range c.script.keys {
			_, last, _ := strings.Cut(keys[i], "}:")
			last, _, _ = strings.Cut(last, ":")
			if last == "" {
				last = keys[i][strings.LastIndex(keys[i], ":")+1:]
			}
			if last != name && !slices.Contains(aliases[name], last) {
				t.Errorf("%s: the header calls %s %q", c.script.name, keys[i], name)
			}
		}
		n := len(words) - 3 - len(keys) - len(c.script.args)
		if c.script.hasActor() {
			n--
		}
		if n < -c.script.fewer || n > 0 && n%len(c.script.each) != 0 {
			t.Errorf("%s: %d arguments do not fit", c.script.name, len(words)-3-len(keys))
		}
	}
}

// A call from Go with a wrong number of keys or arguments is refused before it is sent.
func TestScriptRefusesWhatDoesNotFitItsHeader(t *testing.T) {
	b := inProcess(t)
	for _, c := range []struct {
		s          *script
		keys, args int
	}{{ackScript, 2, 4}, {ackScript, 3, 1}, {ackScript, 3, 3}, {trimScript, 2, 4}, {surveyScript, 5, 1},
		{surveyScript, 6, 0},
		{surveyScript, 6, 2}, {enqueueOneScript, 6, 4}, {enqueueOneScript, 6, 9}} {
		if _, err := c.s.run(b.ctx, b.c, make([]string, c.keys), make([]string, c.args)); err == nil {
			t.Errorf("%s accepted %d keys and %d arguments", c.s.name, c.keys, c.args)
		}
	}
}

// A server that does not know a script, for example after a restart, gets the script with the call.
func TestScriptsAreLoadedOnDemand(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("SCRIPT", "FLUSH")
		wantList(b, "verdicts", b.enqueue(Item{ID: "m", When: After(0)}), Ready)
		wantList(b, "verdicts", b.enqueue(Item{ID: "n", When: After(0)}), Ready)
		redistest.Want(b, "entries", b.count("XLEN", b.k.Stream), 2)
	})
}

// The in-process server lacks exactly what docs/operations/deploy.md says: each reason in notInProcess is an item of
// its list, and there are no others.
func TestInProcessServerLacksWhatIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/operations/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "It differs from a real Redis in these points:\n\n")
	list, _, _ = strings.Cut(list, "\n\n")
	if !found {
		t.Fatal("there is no list")
	}
	documented := map[string]bool{}
	for item := range strings.SplitSeq(list, "\n") {
		documented[strings.TrimPrefix(item, "- ")] = true
	}
	lacks := map[string]bool{}
	for name, reason := range notInProcess {
		lacks[reason] = true
		if !documented[reason] {
			t.Errorf("%s does not run there, because %q: that is not documented", name, reason)
		}
	}
	for item := range documented {
		if !lacks[item] {
			t.Errorf("%q is documented, and no test needs it", item)
		}
	}
}
