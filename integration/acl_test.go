package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

type documentedUser struct{ name, password, command string }

var setUser = regexp.MustCompile(`ACL SETUSER (\S+) on >(\S+) `)

// documentedUsers returns the users of docs/operations/users.md with the commands that create them.
func documentedUsers(t *testing.T) map[string]documentedUser {
	t.Helper()
	users := map[string]documentedUser{}
	for _, b := range fencedBlocks(t, "docs/operations/users.md", "redis-cli") {
		for _, s := range steps(t, b) {
			if m := setUser.FindStringSubmatch(s.command); m != nil {
				users[m[1]] = documentedUser{m[1], m[2], s.command}
			}
		}
	}
	if len(users) != 8 {
		t.Fatalf("%d users", len(users))
	}
	return users
}

// guests are the documented users on a shared server, with names and a prefix of their own.
type guests struct {
	t      *testing.T
	server *redistest.Server
	admin  rueidis.Client
	prefix string
	suffix string
	users  map[string]documentedUser
}

func newGuests(t *testing.T, server *redistest.Server, durable bool) *guests {
	t.Helper()
	g := &guests{t: t, server: server, admin: server.Client(t), prefix: server.Prefix(t), users: documentedUsers(t)}
	g.suffix = fmt.Sprintf("-%08x", rand.Uint32())
	extra := " +wait +waitaof +config|get"
	if g.do("WAITAOF", "0", "0", "1").Error() != nil { // a server without the command has no permission for it either
		extra = " +wait"
	}
	for _, u := range g.users {
		line := strings.Replace(u.command, "SETUSER "+u.name, "SETUSER "+u.name+g.suffix, 1)
		if u.name == "producer" && durable {
			line += extra
		}
		if err := g.do(strings.Fields(strings.ReplaceAll(line, "~duestream:", "~"+g.prefix+":"))...).Error(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.do("ACL", "DELUSER", u.name+g.suffix) })
	}
	return g
}

func (g *guests) do(args ...string) rueidis.RedisResult {
	return g.admin.Do(context.Background(), g.admin.B().Arbitrary(args...).Build())
}

func (g *guests) dial(user string) *bridge.Redis {
	g.t.Helper()
	u := g.users[user]
	r, err := bridge.Dial(g.t.Context(), strings.Replace(g.server.URL(), "redis://",
		"redis://"+u.name+g.suffix+":"+u.password+"@", 1))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(r.Close)
	return r
}

// The users for producers, workers and bridges can do all of their work, on every server.
func TestUsersCanDoTheirWork(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, true)
		s := &stack{t: t}
		b, err := bridge.NewBridge(bridge.Config{Redis: g.dial("bridge"), Prefix: g.prefix, AnyServer: true,
			Defaults: bridge.Policy{
				VisibilityTimeout: 600 * time.Millisecond, MaxAttempts: 3, RetryMin: 10 * time.Millisecond,
				RetryMax: 10 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		s.run("bridge", b.Run)

		const queue, group = "emails", "mailer"
		keys := lua.NewKeys(g.prefix, queue)
		done, hold := make(chan string, 100), make(chan struct{})
		work := func(consumer string) (stop func()) {
			w, err := bridge.NewWorker(bridge.WorkerConfig{
				Redis: g.dial("worker"), Prefix: g.prefix, Queue: queue, Group: group, Consumer: consumer, ShutdownTimeout: -1,
				Handler: func(ctx context.Context, m *bridge.Message) error {
					switch {
					case m.ID == "dead":
						return bridge.DeadLetter(errors.New("no good"))
					case m.ID == "retried" && m.Attempt == 1:
						return errors.New("once more")
					case m.ID == "released" && consumer == "first": // stopped while it works on this message
						close(hold)
						<-ctx.Done()
						return ctx.Err()
					case m.ID == "extended":
						select {
						case <-time.After(1500 * time.Millisecond): // longer than two visibility timeouts
						case <-ctx.Done():
							return context.Cause(ctx)
						}
					}
					done <- fmt.Sprint(m.ID, " ", m.Attempt)
					return nil
				}})
			if err != nil {
				t.Fatal(err)
			}
			return s.run("worker", w.Run)
		}
		stopFirst := work("first")

		client, err := bridge.NewClient(bridge.ClientConfig{Redis: g.dial("producer"), Prefix: g.prefix})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		batch := []bridge.NewMessage{
			{ID: "plain", Payload: []byte("x"), Headers: map[string]string{"a": "b"}, Dedup: time.Minute}, {ID: "dead"},
			{ID: "retried"},
			{ID: "extended"}, {ID: "released"}, {ID: "cancelled", Delay: time.Hour}, {ID: "moved", Delay: time.Hour},
		}
		results, err := client.ScheduleBatch(t.Context(), queue, batch)
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		_, again := client.Schedule(t.Context(), queue, nil, bridge.WithID("plain"), bridge.Dedup(time.Minute))
		_, moved := client.Reschedule(t.Context(), queue, "moved", bridge.In(time.Millisecond))
		if err := errors.Join(err, client.Cancel(t.Context(), queue, "cancelled"), moved); err != nil ||
			!errors.Is(again, bridge.ErrDuplicate) {
			t.Fatal(err, again)
		}
		const grown = "grown" // a queue that has grown: IDs are looked up in former partitions, too
		if _, err := lua.RegisterCounts(t.Context(), g.admin, lua.NewGlobals(g.prefix),
			map[string]lua.Counts{grown: {1, 2, 8}}); err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			id := fmt.Sprint("parted-", i)
			_, once := client.Schedule(t.Context(), grown, nil, bridge.WithID(id), bridge.In(time.Hour))
			_, twice := client.Schedule(t.Context(), grown, nil, bridge.WithID(id))
			err := errors.Join(once, client.Cancel(t.Context(), grown, id))
			if none := client.Cancel(t.Context(), grown, id); err != nil || !errors.Is(twice, bridge.ErrDuplicate) ||
				!errors.Is(none, bridge.ErrNotScheduled) {
				t.Errorf("%s: %v; scheduled twice: %v, cancelled twice: %v", id, err, twice, none)
			}
		}
		for _, durability := range []bridge.Durability{bridge.Replicated(1), bridge.Fsynced} { // not available here
			durable, err := bridge.NewClient(bridge.ClientConfig{Redis: g.dial("producer"), Prefix: g.prefix,
				Durability: durability})
			if err == nil {
				_, err = durable.Schedule(t.Context(), queue, nil, bridge.In(time.Hour))
				durable.Close()
			}
			if !errors.Is(err, bridge.ErrNotDurable) && !errors.Is(err, bridge.ErrUnsupported) {
				t.Errorf("durability %v: %v", durability, err)
			}
		}

		<-hold
		stopFirst() // releases what it holds, and deletes its consumer
		consumers, err := g.do("XINFO", "CONSUMERS", keys.Stream, group).ToArray()
		if err != nil || len(consumers) != 0 {
			t.Errorf("after the first worker's stop there are %d consumers: %v", len(consumers), err)
		}
		if err := g.do("XGROUP", "DESTROY", keys.Stream, group).Error(); err != nil {
			t.Fatal(err)
		}
		work("second") // creates the group again, at 0
		// A consumer takes an entry and never comes back. And an unregistered queue appears, with a payload without a
		// member.
		stranger, strange := lua.NewKeys(g.prefix, "stranger"), "abandoned"
		g.do("XGROUP", "CREATE", stranger.Stream, "g", "0", "MKSTREAM")
		g.do("HSET", stranger.Payload, "orphan", "x")
		g.do("ZADD", stranger.Due, "1", strange)
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			read, err := g.do("XREADGROUP", "GROUP", "g", "gone", "COUNT", "1", "STREAMS", stranger.Stream, ">").AsXRead()
			return err == nil && len(read[stranger.Stream]) == 1, fmt.Sprint("the bridge does not find the queue: ", err)
		})
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			read, err := g.do("XREADGROUP", "GROUP", "g", "other", "COUNT", "1", "STREAMS", stranger.Stream, ">").AsXRead()
			if err != nil || len(read[stranger.Stream]) == 0 {
				return false, fmt.Sprint("what was abandoned does not come back: ", err)
			}
			entry := read[stranger.Stream][0]
			g.do("XACK", stranger.Stream, "g", entry.ID)
			return entry.FieldValues["attempt"] == "2", fmt.Sprint(entry)
		})
		want := map[string]bool{"plain": true, "retried": true, "extended": true, "released": true, "moved": true}
		for timeout := time.After(30 * time.Second); len(want) > 0; {
			select {
			case got := <-done:
				delete(want, strings.Fields(got)[0])
			case <-timeout:
				t.Fatalf("not handled: %v", want)
			}
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			left, _ := g.do("XLEN", keys.Stream).AsInt64()
			freed, _ := g.do("XLEN", stranger.Stream).AsInt64()
			dead, _ := g.do("XLEN", keys.Dead).AsInt64()
			return left+freed == 0 && dead == 1, fmt.Sprint(left, " and ", freed, " entries left, ", dead, " dead")
		})
		g.deniedNothing("bridge", "worker", "producer")
	})
}

// deniedNothing checks that the server's ACL LOG has no denial of a documented user.
func (g *guests) deniedNothing(users ...string) {
	g.t.Helper()
	for _, u := range users {
		for _, what := range g.denials(g.t, u+g.suffix) {
			g.t.Errorf("%s was denied %s", u, what)
		}
	}
}

// denials returns the commands that ACL LOG shows as denied to a login. It leaves out optional commands, which client
// libraries send to introduce themselves, or to clear a connection after a transaction.
func (g *guests) denials(t *testing.T, login string) (denied []string) {
	t.Helper()
	log, err := g.do("ACL", "LOG", "128").ToArray()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range log {
		entry, err := row.AsMap()
		if err != nil {
			t.Fatal(err)
		}
		object, name := entry["object"], entry["username"]
		what, _ := object.ToString()
		who, _ := name.ToString()
		if who == login && !strings.HasPrefix(what, "client|") && !strings.HasSuffix(what, "unsubscribe") && what != "discard" {
			denied = append(denied, what)
		}
	}
	return denied
}

// No user has rights beyond its role: on other prefixes, on the work of other roles, or of an administrator.
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
		all := []string{ // denied to all
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
		read := []string{"XRANGE " + k.Stream + " - +", "XREAD STREAMS " + k.Stream + " 0", "XREADGROUP GROUP g c STREAMS " +
			k.Stream + " >",
			"XACK " + k.Stream + " g 1-1", "XCLAIM " + k.Stream + " g c 0 1-1", "XAUTOCLAIM " + k.Stream + " g c 0 0", "XDEL " +
				k.Stream + " 1-1",
			"XTRIM " + k.Stream + " MAXLEN 0", "XGROUP CREATE " + k.Stream + " g 0", "XGROUP DELCONSUMER " + k.Stream +
				" g c", "HGETALL " + k.Payload,
			"XPENDING " + k.Stream + " g", "SCAN 0", "INFO"}
		for user, forbidden := range map[string][]string{
			"producer": append(append(settings, "HGET "+k.Payload+" x", "XADD "+k.Dead+" * a b", "HDEL "+k.Policy+" x"),
				read...),
			"plain-producer": append(append(settings, "EVAL return 1 0", "ZRANGE "+k.Due+" 0 -1", "HGET "+k.Payload+" x",
				"XADD "+k.Stream+" MAXLEN 0 * a b", "XADD "+k.Dead+" MAXLEN 0 * a b"), read...),
			"worker": append(settings, "SCAN 0", "INFO", "XREAD STREAMS "+k.Stream+" 0", "XADD "+k.Stream+" * a b",
				"XAUTOCLAIM "+k.Stream+" g c 0 0", "ZREM "+k.Due+" x", "HGET "+k.Payload+" x", "ZREMRANGEBYSCORE "+k.Due+" 0 1",
				"HKEYS "+k.Payload),
			"plain-worker": append(settings, "XADD "+k.Dead+" MAXLEN 0 * a b", "XADD "+k.Stream+" MAXLEN 0 * a b",
				"XADD "+k.Wake+" * a b", "HGET "+k.Payload+" x", "EVAL return 1 0", "SCAN 0", "INFO", "ZADD "+k.Due+" 1 x",
				"ZREM "+k.Due+" x", "XDEL "+k.Stream+" 1-1", "XTRIM "+k.Stream+" MAXLEN 0", "HSET "+k.Payload+" x y",
				"XGROUP DELCONSUMER "+k.Stream+" g c"),
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
			if user != "operator" { // the operator may repair everything of duestream
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
					continue // unknown to this server
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

func without(list []string, these ...string) []string {
	var kept []string
	for _, one := range list {
		if !strings.Contains("\n"+strings.Join(these, "\n")+"\n", "\n"+one+"\n") {
			kept = append(kept, one)
		}
	}
	return kept
}
