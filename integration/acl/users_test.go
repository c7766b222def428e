package acl

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/assemble"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// role describes the program of a documented user.
type role struct {
	roots   []string // its entry points
	without []string // functions that are reached from the roots, but that another user runs
	// commands that it sends besides the scripts, with the names of their keys; "" means no key
	sends map[string][]string
	// optional are commands that the user may lack: other rows of the document grant them, or nothing needs them.
	optional []string
}

var (
	always = []string{"HELLO", "ASKING"} // sent by the client library; ASKING on a cluster
	roles  = map[string]role{
		"producer": {
			roots: []string{"bridge.NewClient", "bridge.Client.Schedule", "bridge.Client.Send", "bridge.Client.SendBatch",
				"bridge.Client.ScheduleBatch", "bridge.Client.Cancel", "bridge.Client.Reschedule", "bridge.Client.Close"},
			sends: map[string][]string{"HGET": {"duestream:queues"}, "ZMSCORE": {"due", "seen"}, "TIME": {""},
				"HSET": {"payload", "meta"}, "ZRANGE": {"duestream:bridges"}},
			optional: append(always, "CONFIG GET", "WAIT", "WAITAOF"),
		},
		"worker": {
			roots: []string{"bridge.NewWorker", "stream.Worker.Run", "stream.Message.SaveProgress",
				"bridge/once.Redis.Do"},
			sends: map[string][]string{"HGET": {"duestream:queues"}, "HGETALL": {"policy", "duestream:defaults"},
				"XINFO GROUPS": {"stream"}, "XPENDING": {"stream"}, "XRANGE": {"stream"},
				"XREADGROUP": {"stream"}, "HDEL": {"progress"}},
			// A worker asks for no durability, but the function that sends its scripts could.
			optional: append(always, "WAIT", "WAITAOF"),
		},
		"bridge": {
			roots: []string{"bridge.NewBridge", "bridge.Bridge.Run"},
			sends: map[string][]string{"EXISTS": {"duestream:defaults"}, "HGETALL": {"policy", "duestream:defaults",
				"duestream:queues", "planned"}, "HLEN": {"recurring"}, "HSCAN": {"recurring", "calm"}, "TIME": {""},
				"HGET": {"duestream:queues", "payload", "meta", "recurring", "planned"}, "HDEL": {"calm"},
				"ZSCORE": {"due"},
				"INFO":   {""}, "SCAN": {""},
				"XINFO GROUPS": {"stream"}, "XINFO CONSUMERS": {"stream"}, "XPENDING": {"stream"},
				"XLEN": {"stream"}, "XREAD": {"wake", "duestream:wake"}, "ZREM": {"duestream:bridges"}},
			optional: append(always, "WAIT", "WAITAOF"),
		},
		"gateway": {
			// table holds the handlers of all routes.
			roots: []string{"bridge/gateway.New", "bridge/gateway.Gateway.Run", "bridge/gateway.Gateway.Close",
				"bridge/gateway.table", "bridge/access.Open", "bridge/access.Store.First",
				"bridge/access.Store.Authenticate", "bridge/access.Store.Take",
				"bridge/lmstfy.NewAdmin", "bridge/lmstfy.server.run", "bridge/lmstfy.server.answer",
				"bridge/lmstfy.publish", "bridge/lmstfy.publishBulk", "bridge/lmstfy.republish",
				"bridge/lmstfy.consume", "bridge/lmstfy.ack", "bridge/lmstfy.peek",
				"bridge/lmstfy.peekJob", "bridge/lmstfy.size", "bridge/lmstfy.destroy",
				"bridge/lmstfy.peekDead", "bridge/lmstfy.deadSize", "bridge/lmstfy.respawn",
				"bridge/lmstfy.deleteDead"},
			without: []string{"lua.DeleteEmpty"}, // destroy deletes a queue with everything in it
			sends: map[string][]string{"EXISTS": {"stream"}, "HEXISTS": {"duestream:queues"}, "TYPE": {"due"}, "TIME": {""},
				"HGET": {"duestream:tokens", "duestream:queues", "meta"}, "HGETALL": {"policy", "recurring"},
				"GET": {"result"}, "HKEYS": {"duestream:queues"}, "HLEN": {"duestream:tokens"},
				"HMGET": {"policy", "payload"},
				"HDEL":  {"duestream:queues", "duestream:tokens"}, "HSCAN": {"duestream:tokens"},
				"HSET":    {"duestream:tokens", "payload", "meta"},
				"HSTRLEN": {"payload", "meta"}, "INFO": {""}, "MEMORY USAGE": {"stream"},
				"WATCH": {"duestream:tokens"}, "UNWATCH": {""}, "MULTI": {""}, "EXEC": {""}, "UNLINK": {"history"},
				"ZMSCORE": {"due", "seen"},
				"XDEL":    {"dead"}, "XTRIM": {"dead"}, "XLEN": {"dead"}, "XPENDING": {"stream"}, "XRANGE": {"stream", "dead"},
				"XREVRANGE": {"stream", "dead"}, "XREAD": {"stream"}, "XINFO CONSUMERS": {"stream"}, "XINFO GROUPS": {"stream"},
				"ZCARD": {"due"}, "ZCOUNT": {"due"}, "ZRANGE": {"due", "duestream:bridges"},
				"ZSCAN": {"due"}, "ZSCORE": {"due", "seen"}},
			optional: append(always, "CONFIG GET", "WAIT", "WAITAOF"), // durability is optional
		},
		"doctor": {
			roots: []string{"bridge/admin/doctor.Examine"},
			// Repairs need the operator.
			without: []string{"stream/keeper.Trim", "stream/keeper.DeleteOrphans", "stream.Grow", "scheduler.Gather",
				"lua.DropConsumers", "lua.AddToken", "lua.RegisterCounts"},
		},
	}
)

const anyQueue = "duestream:{emails}:"

// keysOf returns the keys that the header of a script, or a role (script ""), means by a name: of the queue "emails",
// or shared by all queues. Some names mean several kinds of keys.
func keysOf(script, name string) []string {
	switch name {
	case "wake":
		if script == "signal" {
			return []string{anyQueue + name, "duestream:wake"}
		}
	case "queues", "bridges", "defaults":
		return []string{"duestream:" + name}
	case "settings":
		return []string{anyQueue + "policy", "duestream:defaults"}
	case "bucket":
		return []string{anyQueue + "rate:group"}
	case "once":
		return []string{anyQueue + "once:5:group:order-42"}
	case "fields":
		return []string{anyQueue + "payload", anyQueue + "meta"}
	case "entries":
		return []string{anyQueue + "stream", anyQueue + "dead"}
	case "result":
		return []string{anyQueue + "result:mailer:order-42"}
	case "":
		return []string{""}
	}
	if strings.HasPrefix(name, "duestream:") {
		return []string{name}
	}
	return []string{anyQueue + name}
}

// uses returns every use of a command by the program of a role, in scripts and besides them, and the names of its
// scripts.
func uses(t *testing.T, c *code, name string, r role) (all []use, scripts []string) {
	t.Helper()
	found, err := c.reach(r.roots, r.without)
	if err != nil {
		t.Fatal(err)
	}
	sources, err := assemble.Read(os.DirFS("../../lua"))
	if err != nil {
		t.Fatal(err)
	}
	add := func(n assemble.Need, keys []string, why string) {
		if len(n.Keys) == 0 {
			keys = []string{""}
		}
		for _, key := range keys {
			all = append(all, use{n.Command, key, why})
		}
	}
	for _, command := range slices.Sorted(maps.Keys(found)) {
		script, isScript := strings.CutPrefix(command, "script ")
		keys, known := r.sends[command]
		switch {
		case isScript:
			scripts = append(scripts, script)
			header, err := sources.Header(script)
			if err != nil {
				t.Fatal(err)
			}
			needs, err := sources.Needs(script)
			if err != nil {
				t.Fatal(err)
			}
			names := header.Keys
			for _, n := range needs {
				for _, key := range n.Keys {
					add(n, keysOf(script, names[key]), "script "+script)
				}
				if len(n.Keys) == 0 {
					add(n, nil, "script "+script)
				}
			}
			for i, key := range names {
				for _, full := range keysOf(script, key) {
					add(assemble.Need{Command: "EVALSHA", Keys: []int{i}}, []string{full}, "script "+script)
					add(assemble.Need{Command: "EVAL", Keys: []int{i}}, []string{full}, "script "+script)
				}
			}
		case slices.Contains(r.optional, command), command == "EVAL", command == "EVALSHA":
		case !known:
			t.Errorf("%s sends %s (%s): write into `sends` of its role which keys it is for, or into `optional` that the user "+
				"can do without", name, command, found[command])
		default:
			for _, key := range keys {
				for _, full := range keysOf("", key) {
					n := assemble.Need{Command: command}
					if full != "" {
						n.Keys = []int{0}
					}
					add(n, []string{full}, found[command])
				}
			}
		}
	}
	for command := range r.sends {
		if found[command] == "" {
			t.Errorf("%s sends no %s: take it out of `sends`", name, command)
		}
	}
	all = append(all, use{"PING", "", "the client library"})
	return all, scripts
}

// Each documented user has exactly the rights that its program needs: every command that the program sends, in scripts
// and besides them, is allowed on its keys, and no other command is. Regression: the worker lacked XTRIM, so a script
// that acknowledged more than 16 entries failed after its XACKs.
func TestUsersFollowFromTheSources(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	users := Users(string(text))
	c, err := loadCode("../..", "./bridge", "./bridge/admin/doctor", "./bridge/gateway", "./bridge/lmstfy",
		"./bridge/once")
	if err != nil {
		t.Fatal(err)
	}
	server := redistest.Own(t)
	admin := server.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	do := func(words ...string) (string, error) {
		return admin.Do(context.Background(), admin.B().Arbitrary(words...).Build()).ToString()
	}
	runs := map[string][]string{} // script → users
	for _, name := range []string{"producer", "worker", "bridge", "gateway"} {
		user, ok := users[name]
		if !ok {
			t.Fatalf("docs/operations/users.md has no user %s", name)
		}
		if _, err := do(strings.Fields(user.Line)...); err != nil {
			t.Fatal(err)
		}
		all, scripts := uses(t, c, name, roles[name])
		for _, script := range scripts {
			runs[script] = append(runs[script], name)
		}
		told := map[string]bool{}
		for _, u := range all {
			n := assemble.Need{Command: u.command}
			if u.key != "" {
				n.Keys = []int{0}
			}
			reply, err := do(append([]string{"ACL", "DRYRUN", name}, words(n, u.key)...)...)
			if what := u.command + u.key; (err != nil || reply != "OK") && !told[what] {
				told[what] = true
				t.Errorf("%s lacks %s on %q, which %s may call: add +%s to `ACL SETUSER %s` in docs/operations/users.md, in "+
					"the brackets of that key (%s %v)",
					name, u.command, u.key, u.why, strings.ToLower(strings.ReplaceAll(u.command, " ", "|")), name, reply, err)
			}
		}
		for _, one := range superfluous(user, all) {
			t.Errorf("%s may %s, and nothing that its program sends needs it: take it out of `ACL SETUSER %s` in "+
				"docs/operations/users.md", name, one, name)
		}
	}
	// Of the doctor, only the scripts are collected here. Its own tests check its rights, command by command.
	looks, err := c.reach(roles["doctor"].roots, roles["doctor"].without)
	if err != nil {
		t.Fatal(err)
	}
	for command := range looks {
		if script, isScript := strings.CutPrefix(command, "script "); isScript {
			runs[script] = append(runs[script], "doctor")
		}
	}
	for _, script := range lua.Scripts() {
		if want := slices.Sorted(slices.Values(append(runs[script], "operator"))); !slices.Equal(lua.Users(script), want) {
			t.Errorf("script %s is run by %v, and lua/users.go says %v", script, want, lua.Users(script))
		}
	}
	for script := range runs {
		if !slices.Contains(lua.Scripts(), script) {
			t.Errorf("script %s is not in lua/users.go", script)
		}
	}
}

// The documented user of a process with several roles, such as a bridge that also serves HTTP, has exactly the rights
// of these roles together.
func TestOneProcessMayDoTheWorkOfSeveral(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	users := Users(string(text))
	commands := func(names ...string) (all []string) {
		for _, name := range names {
			for _, r := range users[name].rules {
				all = append(all, r.commands...)
			}
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	for purpose, is := range map[string]struct { // by row of the table "Also needed"
		with string   // the user to whom the row gives further rights
		also []string // the users whose rights these are
	}{
		"`duestream gateway --push`": {"gateway", []string{"worker"}},
		"`duestream serve --http`":   {"bridge", []string{"gateway", "worker"}},
	} {
		have := append(commands(is.with), parseRule(strings.Join(Also(string(text), purpose), " ")).commands...)
		for _, command := range commands(is.also...) {
			if !slices.Contains(have, command) {
				t.Errorf("%s, with %s, lacks %s", purpose, is.with, command)
			}
		}
		if want := commands(append(is.also, is.with)...); len(have) != len(want) {
			t.Errorf("%s, with %s, has more than it needs: %v, want %v", purpose, is.with, have, want)
		}
	}
}

// The documented users bridge and gateway, with the row for the dashboard, have exactly the rights that the dashboard
// needs besides their own.
func TestTheDashboardHasItsRights(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	c, err := loadCode("../..", "./bridge/dashboard")
	if err != nil {
		t.Fatal(err)
	}
	needed := dashboardCommands(t, c)
	users := Users(string(text))
	for purpose, name := range map[string]string{
		"`duestream serve --admin`": "bridge", "`duestream gateway --admin`": "gateway",
	} {
		own := users[name].rules[0].commands // the rules of brackets are for some keys alone
		added := parseRule(strings.Join(Also(string(text), purpose), " ")).commands
		for _, command := range slices.Sorted(maps.Keys(needed)) {
			if !slices.Contains(own, command) && !slices.Contains(added, command) {
				t.Errorf("%s, with %s, lacks %s, which %s may send", purpose, name, command, needed[command])
			}
		}
		for _, command := range added {
			if needed[command] == "" || slices.Contains(own, command) {
				t.Errorf("%s, with %s, has %s, and does not need it", purpose, name, command)
			}
		}
	}
}

// dashboardCommands returns the commands that the dashboard sends, in scripts and besides them, each with the reason.
func dashboardCommands(t *testing.T, c *code) map[string]string {
	t.Helper()
	roots := []string{"bridge/dashboard.New", "bridge/access.Open", "bridge/access.Store.Authenticate",
		"bridge/access.Store.Take", "bridge/access.Store.First"}
	for name := range c.names {
		if strings.HasPrefix(name, "bridge/dashboard.") && strings.HasSuffix(name, "Section") {
			roots = append(roots, name)
		}
	}
	found, err := c.reach(roots, nil)
	if err != nil {
		t.Fatal(err)
	}
	sources, err := assemble.Read(os.DirFS("../../lua"))
	if err != nil {
		t.Fatal(err)
	}
	// Other rows of the document grant these, and the dashboard does without them: see its examination of the server.
	optional := append([]string{"CONFIG GET", "FUNCTION LIST", "FCALL", "WAIT", "WAITAOF"}, always...)
	needed := map[string]string{}
	for command, why := range found {
		script, isScript := strings.CutPrefix(command, "script ")
		switch {
		case isScript:
			needs, err := sources.Needs(script)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range needs {
				needed[n.Command] = command
			}
		case !slices.Contains(optional, command):
			needed[command] = why
		}
	}
	for _, command := range []string{"EVALSHA_RO", "EVAL_RO"} {
		needed[command] = "an examination, whose scripts are read-only"
	}
	return needed
}

// words returns a complete command for ACL DRYRUN, which refuses commands with too few arguments.
func words(n assemble.Need, key string) []string {
	switch n.Command {
	case "EVAL", "EVALSHA":
		return []string{n.Command, "x", "1", key}
	case "XREADGROUP":
		return []string{"XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">"}
	case "XREAD":
		return []string{"XREAD", "STREAMS", key, "0"}
	case "XINFO CONSUMERS":
		return []string{"XINFO", "CONSUMERS", key, "g"}
	case "SCAN":
		return []string{"SCAN", "0"}
	}
	return n.Words(key)
}

// Users parses the rules of a user from the text of the document, and superfluous finds the parts of them that no use
// needs.
func TestRulesOfUsers(t *testing.T) {
	t.Parallel()
	users := Users("x\n> ACL SETUSER a on >p ~k:* -@all +get +xgroup|create (%R~k:{*}:h ~q +hget) (~k:s +xadd)\nOK\n")
	want := "[{[k:*] [GET XGROUP CREATE]} {[k:{*}:h q] [HGET]} {[k:s] [XADD]}]"
	if got := fmt.Sprint(users["a"].rules); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	left := superfluous(users["a"], []use{{"GET", "k:1", ""}, {"HGET", "k:{1}:h", ""}})
	if got := fmt.Sprint(left); got != "[+xgroup|create on k:* ~q for +hget +xadd on k:s ~k:s for +xadd]" {
		t.Error(got)
	}
}
