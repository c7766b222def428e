package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// documentedUsers returns the users of docs/operations/users.md.
func documentedUsers(t *testing.T) map[string]acl.User {
	t.Helper()
	text, err := os.ReadFile("../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	users := acl.Users(string(text))
	if len(users) != 8 { // producer and worker, each also as "plain-", bridge, gateway, doctor and operator
		t.Fatalf("%d users", len(users))
	}
	return users
}

// guests are the documented users on a server that other tests use at the same time. So their names have a suffix, and
// their keys a prefix, that no other test has.
type guests struct {
	t      *testing.T
	server *redistest.Server
	admin  rueidis.Client
	prefix string
	suffix string
	users  map[string]acl.User // by documented name
}

// newGuests creates all documented users. If durable is true, the producer also has the rights that clients with a
// durability need.
func newGuests(t *testing.T, server *redistest.Server, durable bool) *guests {
	t.Helper()
	g := &guests{t: t, server: server, admin: server.Client(t), prefix: server.Prefix(t), users: documentedUsers(t)}
	g.suffix = fmt.Sprintf("-%08x", rand.Uint32())
	extra := " +wait +waitaof +config|get"
	if g.do("WAITAOF", "0", "0", "1").Error() != nil { // a server without the command has no permission for it either
		extra = " +wait"
	}
	for name, u := range g.users {
		line := strings.Replace(u.Line, "SETUSER "+name, "SETUSER "+name+g.suffix, 1)
		if name == "producer" && durable {
			line += extra
		}
		if err := g.do(strings.Fields(strings.ReplaceAll(line, "~duestream:", "~"+g.prefix+":"))...).Error(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.do("ACL", "DELUSER", name+g.suffix) })
	}
	return g
}

// do runs a command as administrator.
func (g *guests) do(args ...string) rueidis.RedisResult {
	return g.admin.Do(context.Background(), g.admin.B().Arbitrary(args...).Build())
}

// dial connects as the documented user.
func (g *guests) dial(user string) *bridge.Redis {
	g.t.Helper()
	r, err := bridge.Dial(g.t.Context(), strings.Replace(g.server.URL(), "redis://",
		"redis://"+user+g.suffix+":"+g.users[user].Password+"@", 1))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(r.Close)
	return r
}

// A producer that waits for replicas or for the disk needs no right beyond those of docs/operations/users.md.
func TestDurabilityNeedsOnlyDocumentedRights(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, true)
		// Neither is available on these servers. So the calls fail, but not for lack of rights.
		for _, durability := range []bridge.Durability{bridge.Replicated(1), bridge.Fsynced} {
			durable, err := bridge.NewClient(bridge.ClientConfig{Redis: g.dial("producer"), Prefix: g.prefix,
				Durability: durability})
			if err == nil {
				_, err = durable.Schedule(t.Context(), "emails", nil, bridge.In(time.Hour))
				durable.Close()
			}
			if !errors.Is(err, bridge.ErrNotDurable) && !errors.Is(err, bridge.ErrUnsupported) {
				t.Errorf("durability %v: %v", durability, err)
			}
		}
		g.wantNoDenials("producer")
	})
}

// wantNoDenials checks that the server has denied no command to these documented users, as its ACL LOG tells.
func (g *guests) wantNoDenials(users ...string) {
	g.t.Helper()
	for _, u := range users {
		for _, what := range g.denials(g.t, u+g.suffix) {
			g.t.Errorf("%s was denied %s", u, what)
		}
	}
}

// denials returns the commands that were denied to a login. It leaves out those with which client libraries clear a
// connection after a transaction.
func (g *guests) denials(t *testing.T, login string) (denied []string) {
	t.Helper()
	all, err := acl.Denials(t.Context(), g.admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.User == login && !strings.HasSuffix(d.What, "unsubscribe") && d.What != "discard" {
			denied = append(denied, d.What)
		}
	}
	return denied
}

// No documented user has rights beyond its role: none on keys with another prefix, none for the work of other roles,
// and none of an administrator. ACL DRYRUN answers this for a list of commands for each user, and some real calls
// confirm it.
func TestUsersCanDoNothingElse(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		k, other := lua.NewKeys(g.prefix, "emails"), lua.NewKeys("other"+g.prefix, "emails")
		globals := lua.NewGlobals(g.prefix)
		for _, key := range []string{other.Due, other.Stream} {
			t.Cleanup(func() { g.do("DEL", key) })
		}
		all := []string{ // denied to every user, apart from three exceptions for the operator below
			"CONFIG GET maxmemory", "CONFIG SET maxmemory 1", "FLUSHALL", "FLUSHDB", "SHUTDOWN", "DEBUG SLEEP 0", "ACL WHOAMI",
			"ACL SETUSER x on nopass",
			"SAVE", "BGREWRITEAOF", "REPLICAOF NO ONE", "MONITOR", "CLIENT KILL ID 1", "CLIENT LIST", "SCRIPT FLUSH",
			"SCRIPT KILL", "MODULE LIST",
			"SLOWLOG GET", "KEYS *", "SWAPDB 0 1", "CLUSTER RESET", "FAILOVER", "LATENCY RESET", "PSYNC ? -1", "SUBSCRIBE c",
			"PUBLISH c x",
			"SET x 1", "GET x", "DEL " + other.Due, "ZADD " + other.Due + " 1 x", "XADD " + other.Stream + " * a b",
			"XREADGROUP GROUP g c STREAMS " + other.Stream + " >",
			"EVALSHA 0000000000000000000000000000000000000000 1 " + other.Due, "EVAL return 1 " + other.Due,
		}
		destructive := []string{"DEL " + k.Due, "UNLINK " + k.Stream, "EXPIRE " + k.Payload + " 1", "RENAME " + k.Due + " " +
			k.Seen,
			"XGROUP DESTROY " + k.Stream + " g", "XGROUP SETID " + k.Stream + " g $", "XSETID " + k.Stream +
				" 9-9", "FUNCTION LIST", "DUMP " + k.Due,
			"RESTORE " + k.Due + " 0 x", "SORT " + k.Due, "MIGRATE h 1 " + k.Due + " 0 1", "OBJECT FREQ " + k.Due}
		settings := []string{"HSET " + k.Policy + " held 1", "HSET " + globals.Defaults + " max_attempts 1", "ZADD " +
			globals.Bridges + " 1 x", "ZREM " + globals.Bridges + " x"}
		push := []string{"HGETALL " + k.Push, "HSET " + k.Push + " g x"} // URLs and signing keys
		read := []string{"XRANGE " + k.Stream + " - +", "XREAD STREAMS " + k.Stream + " 0", "XREADGROUP GROUP g c STREAMS " +
			k.Stream + " >",
			"XACK " + k.Stream + " g 1-1", "XCLAIM " + k.Stream + " g c 0 1-1", "XAUTOCLAIM " + k.Stream + " g c 0 0", "XDEL " +
				k.Stream + " 1-1",
			"XTRIM " + k.Stream + " MAXLEN 0", "XGROUP CREATE " + k.Stream + " g 0", "XGROUP DELCONSUMER " + k.Stream +
				" g c", "HGETALL " + k.Payload,
			"XPENDING " + k.Stream + " g", "SCAN 0", "INFO"}
		for user, forbidden := range map[string][]string{
			"producer": append(append(append(settings, push...), "HGET "+k.Payload+" x", "XADD "+k.Dead+" * a b",
				"HDEL "+k.Policy+" x", "HSET "+k.Recurring+" r x"), read...),
			"plain-producer": append(append(append(settings, push...),
				"EVAL return 1 0", "ZRANGE "+k.Due+" 0 -1", "HGET "+k.Payload+" x",
				"XADD "+k.Stream+" MAXLEN 0 * a b", "XADD "+k.Dead+" MAXLEN 0 * a b"), read...),
			"worker": append(append(settings, push...),
				"SCAN 0", "INFO", "XREAD STREAMS "+k.Stream+" 0", "XADD "+k.Stream+" * a b",
				"XAUTOCLAIM "+k.Stream+" g c 0 0", "ZREM "+k.Due+" x", "HGET "+k.Payload+" x",
				"ZREMRANGEBYSCORE "+k.Due+" 0 1", "HKEYS "+k.Payload),
			"plain-worker": append(append(settings, push...),
				"XADD "+k.Dead+" MAXLEN 0 * a b", "XADD "+k.Stream+" MAXLEN 0 * a b", "XADD "+k.Wake+" * a b",
				"HGET "+k.Payload+" x", "EVAL return 1 0", "SCAN 0", "INFO", "ZADD "+k.Due+" 1 x",
				"ZREM "+k.Due+" x", "XDEL "+k.Stream+" 1-1", "XTRIM "+k.Stream+" MAXLEN 0",
				"HSET "+k.Payload+" x y", "XGROUP DELCONSUMER "+k.Stream+" g c"),
			"gateway": {"SCAN 0", "FUNCTION LIST", "XGROUP DELCONSUMER " + k.Stream + " g c", "XAUTOCLAIM " + k.Stream + " g c 0 0",
				"ZREM " + other.Due + " x", "UNLINK " + k.Due, "DUMP " + k.Payload},
			"bridge": {"XREADGROUP GROUP g c STREAMS " + k.Stream + " >", "XGROUP CREATE " + k.Stream + " g 0"},
			"doctor": {"ZADD " + k.Due + " 1 x", "ZREM " + k.Due + " x", "HSET " + k.Payload + " x y", "HDEL " + k.Payload + " x",
				"XADD " + k.Wake + " * a b", "XACK " + k.Stream + " g 1-1",
				"XTRIM " + k.Stream + " MAXLEN 0", "XDEL " + k.Stream + " 1-1", "PERSIST " + k.Due, "XGROUP CREATE " + k.Stream +
					" g 0", "XGROUP DELCONSUMER " + k.Stream + " g c",
				"XREADGROUP GROUP g c STREAMS " + k.Stream + " >", "EVAL return 1 " + k.Due, "EVALSHA x 1 " + k.Due, "XCLAIM " +
					k.Stream + " g c 0 1-1"},
			"operator": {"FUNCTION FLUSH", "FUNCTION RESTORE x", "FUNCTION KILL", "SCRIPT FLUSH", "SCRIPT KILL"},
		} {
			list := append(append([]string{}, all...), forbidden...)
			if user != "operator" { // the operator may repair all keys of duestream
				list = append(list, destructive...)
			} else {
				list = without(list, "KEYS *", "CLIENT KILL ID 1", "CLIENT LIST")
			}
			for _, command := range list {
				args := strings.Fields(command)
				if args[0] == "EVAL" { // EVAL script numkeys key
					args = []string{"EVAL", "return 1", fmt.Sprint(len(args) - 3), args[len(args)-1]}
				}
				reply, err := g.do(append([]string{"ACL", "DRYRUN", user + g.suffix}, args...)...).ToString()
				if err != nil && strings.Contains(err.Error(), "not found") {
					continue // this server does not have the command
				}
				if err != nil || !strings.Contains(reply, "no permissions") && !strings.Contains(reply, "has no permissions") {
					t.Errorf("%s may run %s: %s %v", user, command, reply, err)
				}
			}
		}
		// The server also denies real calls, even inside scripts.
		for _, user := range []string{"producer", "worker", "bridge"} {
			c := g.dial(user).Client
			for what, err := range map[string]error{
				"KEYS": c.Do(t.Context(), c.B().Keys().Pattern("*").Build()).Error(),
				"another prefix": c.Do(t.Context(), c.B().Zadd().Key(other.Due).ScoreMember().ScoreMember(1,
					"x").Build()).Error(),
				"in a script": c.Do(t.Context(),
					c.B().Eval().Script("return redis.call('DEL', KEYS[1])").Numkeys(1).Key(k.Due).Build()).Error(),
				"a key in script": c.Do(t.Context(),
					c.B().Eval().Script("return redis.call('ZADD', ARGV[1], 1, 'x')").Numkeys(1).Key(k.Due).Arg(other.Due).
						Build()).Error(),
			} {
				if !errors.Is(lua.Classify(what, err), bridge.ErrDenied) {
					t.Errorf("%s: %s: %v", user, what, err)
				}
			}
		}
	})
}

// without returns the list without these elements.
func without(list []string, these ...string) []string {
	var kept []string
	for _, one := range list {
		if !strings.Contains("\n"+strings.Join(these, "\n")+"\n", "\n"+one+"\n") {
			kept = append(kept, one)
		}
	}
	return kept
}
