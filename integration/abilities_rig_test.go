package integration

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// asUser is the fixture for one ability in the table of abilities in docs/operations/users.md: a Redis user with the
// rights of the ability's row, and a queue with a history, a rate, a ready limit and four partitions. Its methods work
// as this user, unless they say that they work as an administrator.
type asUser struct {
	*guests
	t      *testing.T
	user   string        // name of the user in the document
	also   string        // the user also has the rights of the row of "Also needed" whose purpose begins so; "" if none
	login  string        // name of the user on the server
	redis  *bridge.Redis // connection of the user
	admin  *bridge.Redis // connection of an administrator
	op     *admin.Admin  // handle of that administrator
	queue  string
	binary string // path of the duestream command

	optional []string // commands that may be denied to the user, because it works without them
	workers  []func() // each stops a worker
}

const abilityGroup = "mailer"

// grownCounts are the partition counts of each queue: it had one partition, and has four now.
var grownCounts = lua.Counts{1, 4}

// runSharedBridge runs the bridge that serves the queues of all abilities on a server, as the documented user "bridge".
// It returns an administrator's connection.
func (g *guests) runSharedBridge(t *testing.T) *bridge.Redis {
	t.Helper()
	s := &stack{t: t}
	b, err := bridge.NewBridge(bridge.Config{Redis: g.dial("bridge"), Prefix: g.prefix, AnyServer: true,
		Defaults: quick()})
	if err != nil {
		t.Fatal(err)
	}
	s.run("bridge", b.Run)
	return s.dial(g.server.URL())
}

// newUser creates the fixture for one ability. The user has the rights of the documented user, and those of the row of
// the table "Also needed" whose purpose begins with also. Its name on the server is login.
func (g *guests) newUser(t *testing.T, user, also, login string, administrator *bridge.Redis) *asUser {
	t.Helper()
	text, err := os.ReadFile("../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	own := strings.ReplaceAll(string(text), "~duestream:", "~"+g.prefix+":")
	line := strings.Fields(strings.Replace(acl.Users(own)[user].Line, "SETUSER "+user, "SETUSER "+login, 1))
	if also != "" {
		rights := acl.Also(own, also)
		if len(rights) == 0 {
			t.Fatalf("no row of the table %q has a purpose that begins with %q", "Also needed", also)
		}
		line = append(line, rights...)
	}
	if strings.HasPrefix(user, "plain-") {
		line = append(line, "+ping") // sent by our client library
	}
	if err := g.do(line...).Error(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.do("ACL", "DELUSER", login) })
	s := &stack{t: t}
	a := &asUser{guests: g, t: t, user: user, also: also, login: login, admin: administrator,
		op: redistest.Must(admin.New(administrator, g.prefix)), queue: redistest.Queue(t)}
	a.redis = s.dial(a.url())
	a.settings(a.queue)
	if _, err := lua.RegisterCounts(t.Context(), administrator.Client, lua.NewGlobals(g.prefix),
		map[string]lua.Counts{a.queue: grownCounts}); err != nil {
		t.Fatal(err)
	}
	if _, err := bridge.CreateGroup(t.Context(), administrator, g.prefix, a.queue, abilityGroup); err != nil {
		t.Fatal(err)
	}
	return a
}

// settings writes a history, a rate and a ready limit into the queue's policy.
func (a *asUser) settings(queue string) {
	a.t.Helper()
	history, rate, limit := 1000, bridge.Rate("1000/s"), 10_000
	if err := a.op.WritePolicy(a.t.Context(), queue, "", admin.PolicyUpdate{History: &history, Rate: &rate,
		ReadyLimit: &limit}); err != nil {
		a.t.Fatal(err)
	}
}

func (a *asUser) url() string {
	password := a.users[a.user].Password
	return strings.Replace(a.server.URL(), "redis://", "redis://"+a.login+":"+password+"@", 1)
}

// client returns a Client with the user's connection.
func (a *asUser) client() *bridge.Client { return a.clientOf(a.redis) }

func (a *asUser) clientOf(r *bridge.Redis) *bridge.Client {
	a.t.Helper()
	c, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: a.prefix})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = c.Close() })
	return c
}

// keys returns the keys of the partition of an ID; for "", those of the first partition.
func (a *asUser) keys(id string) lua.Keys {
	if id == "" {
		return lua.NewKeys(a.prefix, a.queue)
	}
	return lua.NewKeys(a.prefix, lua.PartitionName(a.queue, grownCounts.Of(id)))
}

func (a *asUser) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// send schedules a message as the user.
func (a *asUser) send(id string, options ...bridge.Option) {
	a.t.Helper()
	_, err := a.client().Schedule(a.t.Context(), a.queue, []byte("of "+id), append(options, bridge.WithID(id))...)
	a.must(err)
}

// feed schedules messages as an administrator.
func (a *asUser) feed(ids ...string) {
	a.t.Helper()
	client := a.clientOf(a.admin)
	for _, id := range ids {
		_, err := client.Schedule(a.t.Context(), a.queue, []byte("of "+id), bridge.WithID(id))
		a.must(err)
	}
}

// feedLater schedules a message for an hour from now, as an administrator.
func (a *asUser) feedLater(id string, options ...bridge.Option) {
	a.t.Helper()
	_, err := a.clientOf(a.admin).Schedule(a.t.Context(), a.queue, []byte("of "+id),
		append(options, bridge.WithID(id), bridge.In(time.Hour))...)
	a.must(err)
}

// manyNames returns the IDs m0 to m<n-1>.
func manyNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("m", i))
	}
	return names
}

// count runs a command as administrator, and returns its integer reply.
func (a *asUser) count(args ...string) int64 {
	n, _ := a.do(args...).AsInt64()
	return n
}

func (a *asUser) eventually(f func() (bool, string)) {
	a.t.Helper()
	redistest.Eventually(a.t, 30*time.Second, f)
}

// partitions returns the names of the queue's partitions.
func (a *asUser) partitions() []string { return grownCounts.Names(a.queue) }

// total adds up the replies of a command for a key of each partition.
func (a *asUser) total(command string, key func(lua.Keys) string) (n int64) {
	for _, partition := range a.partitions() {
		n += a.count(command, key(lua.NewKeys(a.prefix, partition)))
	}
	return n
}

// awaitEmpty waits until the queue holds no scheduled message, no entry and no dead letter.
func (a *asUser) awaitEmpty() {
	a.t.Helper()
	a.eventually(func() (bool, string) {
		due := a.total("ZCARD", func(k lua.Keys) string { return k.Due })
		entries := a.total("XLEN", func(k lua.Keys) string { return k.Stream })
		dead := a.total("XLEN", func(k lua.Keys) string { return k.Dead })
		return due+entries+dead == 0, fmt.Sprintf("%d scheduled, %d entries, %d dead letters", due, entries, dead)
	})
}

// startWorker runs a worker with the given connection. It returns a channel that gets the ID of each message that
// handle accepts; nil accepts all.
func (a *asUser) startWorker(r *bridge.Redis, handle func(*bridge.Message) error,
	change ...func(*bridge.WorkerConfig)) <-chan string {
	a.t.Helper()
	ids := make(chan string, 1000)
	cfg := bridge.WorkerConfig{
		Redis: r, Prefix: a.prefix, Queue: a.queue, Group: abilityGroup, Concurrency: 40,
		Handler: func(_ context.Context, m *bridge.Message) error {
			if handle != nil {
				if err := handle(m); err != nil {
					return err
				}
			}
			ids <- m.ID
			return nil
		}}
	for _, one := range change {
		one(&cfg)
	}
	w, err := bridge.NewWorker(cfg)
	a.must(err)
	a.workers = append(a.workers, (&stack{t: a.t}).run("worker", w.Run))
	return ids
}

// work does the same as startWorker, with the user's connection.
func (a *asUser) work(handle func(*bridge.Message) error) <-chan string {
	return a.startWorker(a.redis, handle)
}

// noConsumerLeft checks that workers have deleted their consumers when they stopped.
func (a *asUser) noConsumerLeft() {
	a.t.Helper()
	for _, partition := range a.partitions() {
		left, err := a.do("XINFO", "CONSUMERS", lua.NewKeys(a.prefix, partition).Stream, abilityGroup).ToArray()
		if err != nil && strings.HasPrefix(err.Error(), "NOGROUP") {
			continue // the worker stopped before it looked at this partition, so it has no consumer there
		}
		if err != nil || len(left) > 0 {
			a.t.Errorf("%s: %d consumers are left (%v)", partition, len(left), err)
		}
	}
}

// awaitDelivered runs a worker as an administrator, and waits until it has handled these messages.
func (a *asUser) awaitDelivered(ids ...string) {
	a.t.Helper()
	a.await(a.startWorker(a.admin, nil), ids...)
}

// await waits until these IDs have come from a channel of startWorker. Other IDs may come too.
func (a *asUser) await(got <-chan string, ids ...string) {
	a.t.Helper()
	left := map[string]bool{}
	for _, id := range ids {
		left[id] = true
	}
	for timeout := time.After(30 * time.Second); len(left) > 0; {
		select {
		case id := <-got:
			delete(left, id)
		case <-timeout:
			a.t.Fatalf("not delivered: %v", left)
		}
	}
}

// failOnce returns a function that makes handlers. A handler fails a message with the given error unless a handler of
// the same function has seen the message before.
func failOnce() func(error) func(*bridge.Message) error {
	var mu sync.Mutex
	seen := map[string]bool{}
	return func(err error) func(*bridge.Message) error {
		return func(m *bridge.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if seen[m.ID] {
				return nil
			}
			seen[m.ID] = true
			return err
		}
	}
}

// command runs the duestream command as the user. The command must succeed. It returns the output.
func (a *asUser) command(args ...string) string {
	a.t.Helper()
	r := runCommand(a.t, a.url(), a.prefix, a.binary, "", args...)
	if r.code != 0 {
		a.t.Fatalf("%s as %s: exit code %d\n%s%s", strings.Join(args, " "), a.user, r.code, r.out, r.complaints)
	}
	return r.out
}
