package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A producer or worker that uses functions has the rights of docs/operations/users.md, with +fcall instead of +evalsha
// and +eval. With them, it may call every function of its role, and may not change functions. An operator may call
// functions and change them.
func TestUsersOfFunctions(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		for _, user := range []string{"producer", "worker"} {
			if err := g.do("ACL", "SETUSER", user+g.suffix, "+fcall", "-evalsha", "-eval").Error(); err != nil {
				t.Fatal(err)
			}
		}
		operator, producer, worker := g.dial("operator"), g.dial("producer"), g.dial("worker")
		if _, err := redistest.Must(admin.New(operator, "")).LoadFunctions(t.Context(), "", true); err != nil {
			t.Fatal(err)
		}
		for _, l := range redistest.Must(admin.New(operator, "")).ShowFunctions(t.Context(), "") {
			if l.Err != nil || l.State != admin.LibraryCurrent {
				t.Errorf("%+v", l)
			}
		}
		k, queues := lua.NewKeys(g.prefix, "emails"), lua.NewGlobals(g.prefix).Queues
		keys := map[string]string{"due": k.Due, "payload": k.Payload, "meta": k.Meta, "stream": k.Stream, "dead": k.Dead,
			"wake": k.Wake, "progress": k.Progress,
			"policy": k.Policy, "seen": k.Seen, "queues": queues}
		functions := map[string]admin.Function{}
		for _, f := range admin.Functions() {
			functions[f.Name] = f
		}
		// call calls a function, and removes it from functions: those that remain there at the end were not called.
		call := func(r *bridge.Redis, name string, args ...string) (string, error) {
			f := functions["duestream_"+name]
			words := []string{"FCALL", "duestream_" + name, fmt.Sprint(len(f.Keys))}
			for _, key := range f.Keys {
				words = append(words, keys[key])
			}
			delete(functions, f.Name)
			reply, err := r.Client.Do(t.Context(), r.Client.B().Arbitrary(append(words, args...)...).Build()).ToAny()
			return fmt.Sprint(reply), err
		}
		// is returns a check of a call's result. It wants this reply, or, if want has no closing bracket, a list that
		// begins with this element. The comments of the functions say what the numbers mean.
		is := func(want string) func(string, error) {
			return func(got string, err error) {
				t.Helper()
				if err != nil || got != want && !strings.HasPrefix(got, want+" ") {
					t.Errorf("%q %v, want %s", got, err, want)
				}
			}
		}
		if err := g.do("XGROUP", "CREATE", k.Stream, "mailer", "0", "MKSTREAM").Error(); err != nil {
			t.Fatal(err)
		}
		is("1")(call(producer, "register", "emails", "1"))
		message := func(id, when string) []string { return []string{id, when, "p", `{"h:a":"b"}`, "60000"} }
		// token of this call, token of the call before, and time it is kept in ms
		token := []string{"call", "before", "60000"}
		scheduled := append(token, message("later", "+60000")...)
		for _, id := range []string{"acked", "extended", "retried", "buried", "released"} {
			scheduled = append(scheduled, message(id, "+0")...)
		}
		is("[1")(call(producer, "schedule", scheduled...))
		is("[1")(call(producer, "reschedule", "later", "+70000"))
		is("[1]")(call(producer, "cancel", "later"))
		read, err := worker.Client.Do(t.Context(), worker.Client.B().Arbitrary("XREADGROUP", "GROUP", "mailer", "c",
			"STREAMS", k.Stream, ">").Build()).AsXRead()
		if err != nil || len(read[k.Stream]) != 5 {
			t.Fatal(read, err)
		}
		held := map[string]string{}
		for _, e := range read[k.Stream] {
			held[e.FieldValues["id"]] = e.ID
		}
		is("[1]")(call(worker, "extend", "mailer", "c", held["extended"], "extended"))
		is("1")(call(worker, "save_progress", "mailer", "c", held["extended"], "extended", "page 7"))
		// The second entry does not hold the message "another", so it is not acknowledged.
		is("[1 0]")(call(worker, "ack", "mailer", held["acked"], "acked", held["extended"], "another"))
		is("[1]")(call(worker, "retry", "mailer", "5", "1000,2000", held["retried"], "retried", "retry", "", "max_attempts",
			"boom"))
		is("[2]")(call(worker, "dead_letter", "mailer", held["buried"], "buried", "boom")) // 2: it is a dead letter
		is("[3]")(call(worker, "release", "mailer", held["released"], "released"))         // 3: it is released
		letters, err := operator.Client.Do(t.Context(),
			operator.Client.B().Xrange().Key(k.Dead).Start("-").End("+").Build()).AsXRange()
		if err != nil || len(letters) != 1 {
			t.Fatal(letters, err)
		}
		// The first element is the cursor of the next call: 0 means that these calls looked at the whole schedule.
		is("[0")(call(producer, "reschedule_retries", "0", "100", "", "+2000", "retried"))
		is("[0")(call(producer, "cancel_retries", "0", "100", "", "retried"))
		is("[0]")(call(operator, "expire", "later")) // not scheduled any more
		is("[1]")(call(operator, "redrive", letters[0].ID, "+0", "", "", "", ""))
		if len(functions) != 0 {
			t.Errorf("not called: %v", functions)
		}
		g.wantNoDenials("producer", "worker", "operator")

		for _, user := range []string{"producer", "plain-producer", "worker", "plain-worker", "bridge"} {
			forbidden := [][]string{{"FUNCTION", "LOAD", "REPLACE", "x"}, {"FUNCTION", "DELETE", "duestream"},
				{"FUNCTION", "FLUSH"}, {"FUNCTION", "RESTORE", "x"}}
			if user != "producer" && user != "worker" {
				forbidden = append(forbidden, []string{"FCALL", "duestream_ack", "1", k.Stream, "g"})
			}
			for _, command := range forbidden {
				reply, err := g.do(append([]string{"ACL", "DRYRUN", user + g.suffix}, command...)...).ToString()
				if err != nil || !strings.Contains(reply, "no permissions") {
					t.Errorf("%s may run %v: %s %v", user, command, reply, err)
				}
			}
		}
	})
}
