package lua

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// functionNames are the names that clients may rely on: docs/reference/protocol.md, section 17.
var functionNames = []string{
	"duestream_schedule", "duestream_cancel", "duestream_reschedule",
	"duestream_cancel_retries", "duestream_reschedule_retries", "duestream_expire",
	"duestream_register", "duestream_ack", "duestream_retry",
	"duestream_dead_letter", "duestream_release", "duestream_extend", "duestream_save_progress", "duestream_redrive",
}

// The table in docs/reference/protocol.md, section 17, lists the functions as they are, and explains every argument.
func TestFunctionsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## 17. Functions\n")
	section, _, found := strings.Cut(section, "\n## 18. Versions\n")
	if !found {
		t.Fatal("there is no section on functions")
	}
	var rows, names []string
	for _, f := range Functions() {
		names = append(names, f.Name)
		args := slices.Clone(f.Args)
		if len(f.Each) > 0 {
			args = append(args, "["+strings.Join(f.Each, " ")+"]")
		}
		rows = append(rows, fmt.Sprintf("| `%s` | `%s` | `%s` |", f.Name, strings.Join(f.Keys, " "), strings.Join(args, " ")))
		for _, name := range slices.Concat(f.Args, f.Each) {
			if !regexp.MustCompile("(?m)^- \\*\\*(`\\w+`, )?`"+name+"`(, `\\w+`)*\\*\\*: ").MatchString(section) &&
				!slices.Contains([]string{"group", "consumer", "queue", "letter", "max_attempts", "delays"}, name) {
				t.Errorf("%s of %s is not explained", name, f.Name)
			}
		}
		if !regexp.MustCompile("(?m)^- .*\\*\\*`" + f.Name + "`\\*\\*").MatchString(section) {
			t.Errorf("the reply of %s is not explained", f.Name)
		}
		further := slices.DeleteFunc(slices.Concat(f.More, f.Later), func(key string) bool {
			return key == "policy" || key == "history"
		})
		row := "(?m)^\\| .*`" + f.Name + "`.* \\| `" + strings.Join(further, " ") + "` \\| (before|after) `"
		if len(further) > 0 && !regexp.MustCompile(row).MatchString(section) {
			t.Errorf("the further keys of %s, %v, are not documented", f.Name, further)
		}
	}
	wantList(t, "functions", names, functionNames...)
	wantList(t, "documented functions",
		regexp.MustCompile("(?m)^\\| `duestream_\\w+` \\| `[^|]*` \\| `[^|]*` \\|").FindAllString(section, -1), rows...)
	if !strings.Contains(section, "| `duestream_version` | – | – |") {
		t.Error("the version is not documented")
	}
}

// The other tests of the contract really call the functions.
func TestContractIsTestedThroughFunctions(t *testing.T) {
	b := newFunctionsQueue(t, redistest.Shared(t))
	b.fixture()
	for _, c := range calls() {
		if err := c.run(b); err != nil {
			t.Errorf("%s: %v", c.script.name, err)
		}
	}
	sent := b.c.(*fcaller).sent
	for _, name := range functionNames {
		// These two functions have no script of their own that Go calls.
		if sent[name] == 0 && name != "duestream_dead_letter" && name != "duestream_release" {
			t.Errorf("%s is not called", name)
		}
	}
}

// functionExits are the two functions without a script of their own, and the calls of retry that they stand for.
var functionExits = []struct {
	function string
	args     func(entry, id string) []string
	failure  Failure
}{
	{"duestream_dead_letter", func(entry, id string) []string { return []string{entry, id, "boom"} },
		Failure{Action: ActionDead, Delay: -1, Reason: ReasonDeadLetter, Error: "boom"}},
	{"duestream_release", func(entry, id string) []string { return []string{entry, id} },
		Failure{Action: ActionRelease, Delay: -1}},
}

// These functions must give the same verdicts, and leave the same data, as the script retry with their action.
// The entries are of each kind: whole, of another message, for another group, deleted, malformed, and missing.
func TestDeadLetterAndReleaseAreRetries(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		for _, x := range functionExits {
			b := newFunctionsQueue(t, s)
			byScript, byFunction := b.queue("script"), b.queue("function")
			var failures []Failure
			args := []string{"g"}
			for entry, id := range map[string]string{"1-1": "", "2-1": "two", "3-1": "not three", "4-1": "", "5-1": "five",
				"6-1": "", "7-1": ""} {
				args = append(args, x.args(entry, id)...)
				f := x.failure
				f.Held = Held{Entry: entry, ID: id}
				failures = append(failures, f)
			}
			for _, q := range []*testQueue{byScript, byFunction} {
				q.groups("g")
				for i := range 6 {
					values := []string{"id", []string{"one", "two", "three", "four", "five", "six"}[i], "payload", "p", "attempt",
						strconv.Itoa(i + 1), "due_ms", "5", "h:a", "b", "max_attempts", "3"}
					switch i {
					case 3:
						values = append(values, "for", "another")
					case 5:
						values[5] = "abc"
					}
					q.do(append([]string{"XADD", q.k.Stream, fmt.Sprint(i+1, "-1")}, values...)...)
				}
				q.read("g", "c", 10)
				q.do("XDEL", q.k.Stream, "5-1")
			}
			outcomes, err := Retry(b.ctx, b.c, byScript.k, "g", policy, failures)
			if err != nil {
				t.Fatal(err)
			}
			k := byFunction.k
			m := b.do(append([]string{"FCALL", x.function, "6", k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake}, args...)...)
			reply, err := m.AsIntSlice()
			if err != nil || fmt.Sprint(reply) != fmt.Sprint(outcomes) {
				t.Fatalf("%s answers %v, the script %v: %v", x.function, reply, outcomes, err)
			}
			if a, b := byScript.left(), byFunction.left(); a != b || !strings.Contains(a, "two") {
				t.Errorf("%s leaves\n%s\nthe script\n%s", x.function, b, a)
			}
		}
	})
}

// A client without message keys calls without turns. An entry with a key then stays pending if its retry would have to
// hold the key, and a bridge takes the entry back. Every other entry of the call is settled. An entry with a key that
// becomes a dead letter is settled too. Regression: the whole call was refused, and a worker that repeated it stood
// still for ever.
func TestFunctionsWithoutTurnsLeaveARetryWithAKeyPending(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		for _, x := range []struct {
			function string
			args     func(e Entry) []string
			keyed    int // verdict of the entries with a key
			plain    int // verdict of the entry without one
		}{
			{"retry", func(e Entry) []string { return []string{e.EntryID, e.ID, "retry", "", "max_attempts", "no"} }, -1, 1},
			{"release", func(e Entry) []string { return []string{e.EntryID, e.ID} }, -1, 3},
			{"dead_letter", func(e Entry) []string { return []string{e.EntryID, e.ID, "no"} }, 2, 2},
		} {
			b := newFunctionsQueue(t, s).queue(x.function)
			b.groups("g")
			b.enqueue(b.keyed("a", "k", 9), b.keyed("a2", "k", 8), b.keyed("b", "other", 7),
				Item{ID: "plain", When: At(time.UnixMilli(b.now() - 6000))})
			k, given := b.k, b.wantDelivered([]string{"g"}, "plain", "a", "b")
			call := func(e ...Entry) string {
				t.Helper()
				words := []string{"FCALL", "duestream_" + x.function, "6"}
				words = append(words, k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, "g")
				if x.function == "retry" {
					words = append(words, "5", "1000")
				}
				for _, e := range e {
					words = append(words, x.args(e)...)
				}
				verdicts, err := b.try(words...).AsIntSlice()
				if err != nil {
					t.Fatalf("%s: %v", x.function, err)
				}
				return fmt.Sprint(verdicts)
			}
			redistest.Want(t, x.function, call(given...), fmt.Sprint([]int{x.plain, x.keyed, x.keyed}))
			b.ack("g", heldOf(given[1])...)
			redistest.Want(t, x.function+" of an entry that was acknowledged", call(given[1]), "[0]")
		}
	})
}

// left returns what is stored, without times and IDs that the server chose.
func (b *testQueue) left() string {
	b.Helper()
	var s strings.Builder
	fmt.Fprintln(&s, b.state("g"))
	for _, key := range []string{b.k.Stream, b.k.Dead} {
		var rows []string
		for _, e := range b.raw(key) {
			var row []string
			for _, f := range e.FieldValues {
				if f.Field != FieldDead {
					row = append(row, fmt.Sprint(f.Field, "=", f.Value))
				}
			}
			slices.Sort(row)
			rows = append(rows, fmt.Sprint(row))
		}
		slices.Sort(rows)
		fmt.Fprintln(&s, key[strings.LastIndex(key, ":"):], rows)
	}
	for _, key := range []string{b.k.Payload, b.k.Meta} {
		hash := b.hash(key)
		for _, name := range slices.Sorted(maps.Keys(hash)) {
			fields := regexp.MustCompile(`"[^"]*":"[^"]*"`).FindAllString(hash[name], -1) // in any order
			slices.Sort(fields)
			fmt.Fprintf(&s, "%q %d %v\n", name, len(hash[name]), fields)
		}
	}
	members := b.texts("ZRANGE", b.k.Due, "0", "-1")
	slices.Sort(members)
	fmt.Fprintf(&s, "%q\n", members)
	return s.String()
}

// A call with too few or too many keys or arguments is refused with a text of what belongs there, and changes nothing.
func TestFunctionsRefuseWhatDoesNotFit(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		b := newFunctionsQueue(t, s)
		b.fixture()
		before := b.dump()
		refused := func(f Function, keys, args int) {
			t.Helper()
			words := []string{"FCALL", f.Name, strconv.Itoa(keys)}
			for i := range keys {
				words = append(words, keysOf(b.k)[i%len(keysOf(b.k))])
			}
			for range args {
				words = append(words, "1")
			}
			err := b.try(words...).Error()
			if err == nil {
				t.Errorf("%s takes %d keys and %d arguments", f.Name, keys, args)
				return
			}
			for _, name := range slices.Concat(f.Keys, f.Args, f.Each, []string{f.Name}) {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("%s with %d keys and %d arguments does not speak of %s: %v", f.Name, keys, args, name, err)
				}
			}
		}
		for _, f := range Functions() {
			fit := len(f.Args) + len(f.Each)
			refused(f, len(f.Keys)-1, fit)
			refused(f, len(f.Keys)+1, fit)
			if len(f.Args) > 0 {
				refused(f, len(f.Keys), len(f.Args)-1)
			}
			if len(f.Each) != 1 {
				refused(f, len(f.Keys), fit+1)
			}
		}
		for key, now := range b.dump() {
			redistest.Want(t, key, now, before[key])
		}
	})
}

// An older client, which gives only the keys of the table, meets no Lua error. Before, a check of rights asked for a
// key that such a call does not have.
func TestFunctionsAcceptFewerKeysOfOlderClients(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		b := newFunctionsQueue(t, s)
		for _, f := range Functions() {
			words := []string{"FCALL", f.Name, strconv.Itoa(len(f.Keys))}
			for _, key := range f.Keys {
				words = append(words, "fewest:{"+f.Name+"}:"+key)
			}
			for range len(f.Args) + len(f.Each) {
				words = append(words, "1")
			}
			if err := b.try(words...).Error(); err != nil && strings.Contains(err.Error(), "Lua") {
				t.Errorf("%s with %d keys: %v", f.Name, len(f.Keys), err)
			}
		}
	})
}

// formerCalls are shapes of calls that a former release documented: the keys, and the number of arguments of an item.
var formerCalls = []struct {
	function string
	keys     string
	args     int // before the items
	each     int
}{
	{"redrive", "dead due payload meta wake", 0, 5},
	{"ack", "stream policy history", 1, 2},
	{"retry", "stream due payload meta dead wake policy history", 3, 6},
	{"dead_letter", "stream due payload meta dead wake policy history", 1, 3},
	{"release", "stream due payload meta dead wake policy history", 1, 2},
	{"cancel_retries", "due payload meta policy history", 3, 1},
	{"cancel", "due payload meta seen policy history", 0, 1},
	{"reschedule", "due wake policy history", 2, 0},
	{"expire", "due meta wake policy history", 0, 1},
	{"extend", "stream dead policy history", 2, 2},
}

// A later library accepts the calls of an earlier one, with the keys and arguments that a former release documented.
func TestFunctionsAcceptCallsOfOlderClients(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		b := newFunctionsQueue(t, s)
		for _, f := range formerCalls {
			keys := strings.Fields(f.keys)
			words := []string{"FCALL", "duestream_" + f.function, strconv.Itoa(len(keys))}
			for _, key := range keys {
				words = append(words, "former:{"+f.function+"}:"+key)
			}
			for range f.args + f.each {
				words = append(words, "1")
			}
			if strings.HasSuffix(f.keys, "history") {
				words = append(words, "client 1")
			}
			if err := b.try(words...).Error(); err != nil && (strings.Contains(err.Error(), "was given") ||
				strings.Contains(err.Error(), "Lua")) {
				t.Errorf("%v: %v", words, err)
			}
		}

		b.groups("g")
		b.do("XADD", b.k.Dead, "1-1", "id", "m", "payload", "p", "attempt", "3", "due_ms", "5", "group", "g", "reason",
			"dead_letter")
		got, err := b.try("FCALL", "duestream_redrive", "5", b.k.Dead, b.k.Due, b.k.Payload, b.k.Meta, b.k.Wake, "1-1", "+0",
			"", "", "").AsIntSlice()
		if err != nil || fmt.Sprint(got) != "[1]" || len(b.texts("ZRANGE", b.k.Due, "0", "-1")) != 1 {
			t.Errorf("the former call of redrive answers %v, %v", got, err)
		}
		b.do("HSET", b.k.Policy, "history", "100")
		b.do("XADD", b.k.Stream, "1-1", "id", "n", "payload", "p", "attempt", "1", "due_ms", "5")
		b.read("g", "c", 10)
		got, err = b.try("FCALL", "duestream_ack", "3", b.k.Stream, b.k.Policy, b.k.History, "g", "1-1", "n",
			"client old").AsIntSlice()
		if told := b.raw(b.k.History); err != nil || fmt.Sprint(got) != "[1]" || len(told) != 1 {
			t.Errorf("the former call of ack answers %v, %v; told: %v", got, err, told)
		}
	})
}

// A full server refuses schedule as a whole, even a call that would have written nothing, and runs all other functions.
// TestFullServerRefusesOnlyEnqueue tests these through functions; the two without a script are tested here.
func TestFullServerRunsFunctions(t *testing.T) {
	b := newFunctionsQueue(t, redistest.Own(t))
	e := b.deliver([]string{"g"}, "a", "b")
	b.do("CONFIG", "SET", "maxmemory", "1")
	k := b.k
	for i, x := range functionExits {
		words := append([]string{"FCALL", x.function, "6", k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, "g"},
			x.args(e[i].EntryID, "")...)
		m := b.do(words...)
		if reply, err := m.AsIntSlice(); err != nil || len(reply) != 1 || reply[0] != []int64{2, 3}[i] {
			t.Errorf("%s on a full server: %v %v", x.function, reply, err)
		}
	}
	_, err := Enqueue(b.ctx, b.c, k, Token{}, []Item{{ID: "b", When: After(time.Hour), Dedup: Refuse}}, Durability{})
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("schedule on a full server: %v", err)
	}
	redistest.Want(b, "version", b.texts("FCALL", versionFunction, "0")[0], "protocol")
	b.do("CONFIG", "SET", "maxmemory", "0")
	b.wantState("due=1 payload=1 meta=1 stream=0 dead=1")
}

// The name of the release is put into the text of the library: it must not add code to it.
func TestReleaseInTheLibraryIsHarmless(t *testing.T) {
	b := newTestQueue(t, redistest.Own(t))
	b.do("FUNCTION", "LOAD", FunctionsLibrary(`v1' .. error("boom") .. '`+"\n"))
	redistest.Want(b, "release", b.texts("FCALL", versionFunction, "0")[3], "v1__.._error__boom___..___")
}
