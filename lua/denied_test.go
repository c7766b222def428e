package lua

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/assemble"
)

// limited returns a copy of the queue that calls as a new user with all rights, and a function, may, that replaces the
// user's rights.
func limited(b *testQueue) (guest *testQueue, may func(rules ...string)) {
	b.Helper()
	user := "guest-" + b.s.Prefix(b.T)
	may = func(rules ...string) {
		b.Helper()
		b.do(append([]string{"ACL", "SETUSER", user, "reset", "on", ">pw", "~*", "resetchannels"}, rules...)...)
	}
	may("+@all")
	b.Cleanup(func() { b.c.Do(b.T.Context(), b.c.B().Arbitrary("ACL", "DELUSER", user).Build()) })
	guest = new(*b)
	guest.c = b.s.Client(b.T, func(o *rueidis.ClientOption) { o.Username, o.Password, o.ForceSingleClient = user, "pw", true })
	if f, ok := b.c.(*fcaller); ok {
		guest.c = &fcaller{Client: guest.c, names: f.names, sent: map[string]int{}}
	}
	return guest, may
}

// rule is the permission for a command: +xgroup|create.
func rule(sign, command string) string {
	return sign + strings.ToLower(strings.ReplaceAll(command, " ", "|"))
}

// If a user lacks one of the commands that a script may call, nothing is done, and the command is named. Before, Ack by
// a user without XTRIM removed entries from the pending list and then failed, so 2,000 messages were reported as lost
// to another worker.
func TestScriptIsRefusedBeforeItBegins(t *testing.T) {
	t.Parallel()
	onServers(t, func(b *testQueue) {
		guest, may := limited(b)
		files := sources(b)
		for _, c := range calls() {
			all, err := files.Needs(c.script.name)
			if err != nil {
				b.Fatal(err)
			}
			late, err := files.NeedsAfterFirstWrite(c.script.name)
			if err != nil {
				b.Fatal(err)
			}
			writes := slices.ContainsFunc(all, assemble.Need.Writes)
			b.do(append([]string{"DEL", b.g.Queues, b.g.Bridges, b.g.Wake}, keysOf(b.k)...)...)
			b.fixture()
			before := b.dump()
			for _, n := range all {
				may("+@all", rule("-", n.Command))
				err := c.run(guest)
				if !writes { // the script is refused at that command, or goes on without it
					continue
				}
				same := func(g assemble.Need) bool { return g.Command == n.Command }
				if err == nil && !slices.ContainsFunc(late, same) {
					b.do(append([]string{"DEL", b.g.Queues, b.g.Bridges, b.g.Wake}, keysOf(b.k)...)...)
					b.fixture() // the call did not need the command, and changed the state: restore it
					before = b.dump()
					continue
				}
				var denied *DeniedError
				if !errors.As(err, &denied) || !errors.Is(err, ErrDenied) || Ambiguous(err) || Temporary(err) {
					b.Errorf("%s without %s: %v", c.script.name, n.Command, err)
				} else if denied.Command != n.Command || denied.Script != c.script.name ||
					!slices.Contains(denied.Users, "operator") {
					b.Errorf("%s without %s: %+v", c.script.name, n.Command, denied)
				}
				for name, now := range b.dump() {
					if now != before[name] {
						b.Errorf("%s without %s changed %s", c.script.name, n.Command, name)
						before[name] = now
					}
				}
			}
		}
	})
}

// The commands that assemble.Needs reads from the texts are enough for everything a script does: batches of 1, of more
// than 16, of 200, with groups, tokens, dedup windows, retries, dead letters, lost and malformed ones.
func TestScriptsNeedNoRightsBeyondTheirList(t *testing.T) {
	t.Parallel()
	onServers(t, func(b *testQueue) {
		guest, may := limited(b)
		files := sources(b)
		// as runs a call of a script as a user with exactly the rights of the script's list.
		as := func(s *script, what string, call func() error) {
			b.Helper()
			needs, err := files.Needs(s.name)
			if err != nil {
				b.Fatal(err)
			}
			rules := []string{"-@all", "+evalsha", "+eval", "+evalsha_ro", "+eval_ro", "+fcall"}
			for _, n := range needs {
				rules = append(rules, rule("+", n.Command))
			}
			may(rules...)
			if err := call(); err != nil {
				b.Errorf("%s: %v", what, err)
			}
		}
		for _, c := range calls() {
			b.do(append([]string{"DEL", b.g.Queues, b.g.Bridges, b.g.Wake}, keysOf(b.k)...)...)
			b.fixture()
			as(c.script, c.script.name, func() error { return c.run(guest) })
		}
		b.do(append([]string{"DEL", b.g.Queues, b.g.Bridges, b.g.Wake}, keysOf(b.k)...)...)
		for _, group := range []string{"g", "h"} {
			as(ensureGroupScript, "ensure_group", func() error { _, err := EnsureGroup(b.ctx, guest.c, b.k, group); return err })
		}
		const n = 480
		items := make([]Item, n)
		for i := range items {
			items[i] = Item{ID: fmt.Sprint("m", i), When: After(0), Payload: []byte("p"), Dedup: Window(time.Hour)}
			switch i % 4 {
			case 1:
				items[i].Meta = EncodeMeta(map[string]string{"a": "b"}, 1, time.Time{})
			case 2:
				items[i].When, items[i].Dedup = After(time.Hour), Fresh
			}
		}
		enqueue := func(token Token) error {
			_, err := Enqueue(b.ctx, guest.c, b.k, token, items, Durability{})
			return err
		}
		as(enqueueScript, "enqueue 480", func() error { return enqueue(Token{Name: "t", Window: time.Hour}) })
		as(enqueueScript, "enqueue again", func() error { return enqueue(Token{Name: "t", Window: time.Hour}) })
		as(enqueueScript, "enqueue as duplicates",
			func() error { return enqueue(Token{Name: "u", Done: "t", Window: time.Hour}) })
		var due [][]string
		for i := range n {
			due = append(due, []string{"ZADD", b.k.Due, "XX", "5", fmt.Sprint("m", i)})
		}
		b.all(due)
		b.do("ZADD", b.k.Due, "6", "odd", "6", "expired")
		b.do("HSET", b.k.Meta, "odd", "{", "expired", `{"expires_ms":"1"}`)
		as(drainScript, "drain", func() error { _, err := Drain(b.ctx, guest.c, b.k, 1000, 1<<20); return err })
		redistest.Want(b, "entries", b.count("XLEN", b.k.Stream), n)
		take := func(group string, count int) (held []Held) {
			m := b.do("XREADGROUP", "GROUP", group, "c1", "COUNT", fmt.Sprint(count), "STREAMS", b.k.Stream, ">")
			read, err := m.AsXRead()
			if err != nil {
				b.Fatal(err)
			}
			for _, e := range read[b.k.Stream] {
				held = append(held, Held{Entry: e.ID, ID: e.FieldValues["id"]})
			}
			return held
		}
		for _, size := range []int{1, 17, 200} {
			for _, group := range []string{"g", "h"} {
				held := take(group, size)
				redistest.Want(b, "read", len(held), size)
				as(extendScript, "extend", func() error { _, err := Extend(b.ctx, guest.c, b.k, group, "c1", held); return err })
				as(ackScript, fmt.Sprint("ack ", size),
					func() error { _, err := Ack(b.ctx, guest.c, b.k, group, held); return err })
			}
		}
		for _, action := range []Action{ActionRetry, ActionRelease, ActionDead} {
			for _, size := range []int{1, 40} {
				for _, group := range []string{"g", "h"} {
					held := take(group, size)
					failures := make([]Failure, len(held))
					for i, h := range held {
						failures[i] = Failure{Held: h, Action: action, Reason: "r", Error: "e"}
					}
					b.do("XDEL", b.k.Stream, held[0].Entry) // its body is lost
					as(retryScript, fmt.Sprint(action, " ", size),
						func() error { _, err := Retry(b.ctx, guest.c, b.k, group, policy, failures); return err })
				}
			}
		}
		take("g", 30)
		as(reclaimScript, "reclaim", func() error {
			_, err := Reclaim(b.ctx, guest.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, Limit: 100, MaxBytes: 1 << 20})
			return err
		})
		as(trimScript, "trim", func() error { _, err := Trim(b.ctx, guest.c, b.k, "", 1000, 1<<20); return err })
		var letters []Redrive
		for _, e := range b.raw(b.k.Dead) {
			letters = append(letters, Redrive{Letter: e.ID, When: After(0)})
		}
		as(redriveScript, fmt.Sprint("redrive ", len(letters)),
			func() error { _, err := RedriveDead(b.ctx, guest.c, b.k, letters); return err })
		as(cancelScript, "cancel", func() error {
			_, err := Cancel(b.ctx, guest.c, b.k, b.texts("ZRANGE", b.k.Due, "0", "-1"), Durability{})
			return err
		})
	})
}

// A command that Go itself sends is named, too, if the server names it.
func TestDeniedCommandIsNamed(t *testing.T) {
	b := inProcess(t)
	for text, command := range map[string]string{
		"NOPERM this user has no permissions to run the 'xreadgroup' command or its subcommand":                   "XREADGROUP",
		"NOPERM User worker has no permissions to run the 'xgroup|create' command":                                "XGROUP CREATE",
		"NOPERM this user lacks XINFO GROUPS on \"p:{q}:stream\", which script ack may need; nothing was changed": "XINFO GROUPS",
	} {
		err := Classify("x", b.try("EVAL", "return redis.error_reply(ARGV[1])", "0", text).Error())
		var denied *DeniedError
		if !errors.As(err, &denied) || denied.Command != command || !errors.Is(err, ErrDenied) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Drain runs XINFO GROUPS at the first message that is addressed to a single group, which may come after its first
// write. Before, a user without that right was told that the stream refuses entries, after some messages had been
// moved.
func TestDrainWithoutTheRightToListGroupsDoesNothing(t *testing.T) {
	t.Parallel()
	onServers(t, func(b *testQueue) {
		guest, may := limited(b)
		may("+@all", "-xinfo|groups")
		b.groups("g")
		b.enqueue(Item{ID: "a", When: After(time.Hour)}, Item{ID: "b", When: After(time.Hour), Meta: `{"for":"g"}`})
		b.makeDue()
		before := b.dump()
		_, err := Drain(b.ctx, guest.c, b.k, 10, 1<<20)
		var denied *DeniedError
		if !errors.As(err, &denied) || denied.Command != "XINFO GROUPS" || denied.Script != "drain" {
			b.Errorf("refused by %v", err)
		}
		for name, now := range b.dump() {
			redistest.Want(b, name, now, before[name])
		}
	})
}

// Drain looks up ordering keys after its first write. Before, drain stopped there for a user without the right to do
// so, and each drain delivered the messages before the first one with a key again.
func TestDrainWithoutTheRightToReadKeysDeliversNothingTwice(t *testing.T) {
	t.Parallel()
	onServers(t, func(b *testQueue) {
		for _, command := range []string{"zrangebylex", "zscore"} {
			b := b.queue(command)
			guest, may := limited(b)
			may("+@all", "-"+command)
			b.groups("g")
			b.enqueue(Item{ID: "a", When: After(time.Hour)}, Item{ID: "b", When: After(time.Hour), Meta: `{"key":"k"}`})
			b.makeDue()
			for range 3 {
				_, _ = Drain(b.ctx, guest.c, b.k, 10, 1<<20)
			}
			if n := b.count("XLEN", b.k.Stream); n > 1 { // none if the drain is refused whole
				b.Errorf("without %s: %d entries of message a", command, n)
			}
		}
	})
}
