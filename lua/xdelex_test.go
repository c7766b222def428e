package lua

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// imageWithXDELEX is an image of a server on which scripts use XDELEX.
const imageWithXDELEX = "redis:8.6"

// onServerWithXDELEX returns a queue on a server of its own that has XDELEX. It returns false if no image is there.
func onServerWithXDELEX(t *testing.T) (b *testQueue, ok bool) {
	s, ok := redistest.OwnOn(t, imageWithXDELEX)
	if !ok {
		t.Logf("not run: no image %s in a local Docker engine", imageWithXDELEX)
		return nil, false
	}
	return newTestQueue(t, s), true
}

// withoutXDELEX returns a copy of the queue whose user lacks the right to XDELEX, so scripts ask each group.
func withoutXDELEX(b *testQueue) *testQueue {
	b.Helper()
	guest, may := limited(b)
	may("+@all", "-xdelex")
	return guest
}

// freeing are the commands that read the groups, or delete entries.
var freeing = []string{"xdel", "xdelex", "xinfo|groups", "xtrim"}

// A server that has XDELEX frees a few entries by it. A user without the right to it frees them as on older servers,
// and nothing is denied.
func TestAFewEntriesAreFreedByXDELEX(t *testing.T) {
	t.Parallel()
	b, ok := onServerWithXDELEX(t)
	if !ok {
		return
	}
	guest := withoutXDELEX(b)
	for _, c := range []struct {
		name     string
		messages int
		call     func(b *testQueue, held []Entry)
		want     string // commands with the right to XDELEX
		without  string // commands without it
	}{
		{"ack", 1, func(b *testQueue, held []Entry) { b.ack("g", heldBy(held)...) }, "xdelex", "xdel xinfo|groups"},
		{"ack 16", 16, func(b *testQueue, held []Entry) { b.ack("g", heldBy(held)...) }, "xdelex", "xdel xinfo|groups"},
		{"ack 17", 17, func(b *testQueue, held []Entry) { b.ack("g", heldBy(held)...) }, "xinfo|groups xtrim",
			"xinfo|groups xtrim"},
		{"ack_result", 1, func(b *testQueue, held []Entry) { b.ackResult("g", held[0], "paid") }, "xdelex",
			"xdel xinfo|groups"},
		{"retry", 1, func(b *testQueue, held []Entry) {
			redistest.Want(b, "outcome", b.fail("g", held[0].EntryID, ActionDead, "dead_letter", "no"), Dead)
		}, "xdelex", "xdel xinfo|groups"},
		{"reclaim", 1, func(b *testQueue, held []Entry) {
			b.abandon("g", "c1", held[0].EntryID)
			redistest.Want(b, "reclaimed", b.reclaim("g", time.Minute).Retried, 1)
		}, "xdelex", "xdel xinfo|groups"},
	} {
		for user, as := range map[string]*testQueue{"with": b, "without": guest} {
			want := map[string]string{"with": c.want, "without": c.without}[user]
			q := as.queue(strings.ReplaceAll(c.name, " ", "-") + "-" + user)
			var ids []string
			for i := range c.messages {
				ids = append(ids, fmt.Sprint("m", i))
			}
			held := q.deliver([]string{"g"}, ids...)
			before := b.s.Calls(t)
			c.call(q, held)
			after := b.s.Calls(t)
			var sent []string
			for _, command := range freeing {
				sent = append(sent, slices.Repeat([]string{command}, after[command]-before[command])...)
			}
			redistest.Want(t, c.name+" "+user+" the right to XDELEX", strings.Join(sent, " "), want)
			redistest.Want(t, "entries left by "+c.name+" "+user, q.count("XLEN", q.k.Stream), 0)
		}
	}
	redistest.Want(t, "rows of ACL LOG", len(redistest.Must(b.try("ACL", "LOG").ToArray())), 0)
}

// onVersion is put before the text of a script. The script then sees the given version of the server, and a user with
// every right. A call of XDELEX ends the script with an error.
const onVersion = `
local server = redis
local redis = setmetatable({
  REDIS_VERSION_NUM = %#x,
  acl_check_cmd = function() return true end,
  call = function(command, ...)
    if command == 'XDELEX' then error('called XDELEX') end
    return server.call(command, ...)
  end,
}, {__index = server})
`

// Redis has XDELEX since 8.2. Before 8.6, XDELEX counts a group that was destroyed, and may then keep an entry that
// nobody needs. So scripts use XDELEX from 8.6 on.
func TestScriptsUseXDELEXFromRedis86On(t *testing.T) {
	onServers(t, func(b *testQueue) {
		for version, uses := range map[int]bool{0x080000: false, 0x080203: false, 0x0805ff: false, 0x080600: true,
			0x080800: true} {
			b := b.queue(fmt.Sprintf("v%x", version))
			e := b.deliver([]string{"g"}, "m")[0]
			script := rueidis.NewLuaScript(fmt.Sprintf(onVersion, version) + Source("ack"))
			k := b.k
			err := script.Exec(b.ctx, b.c, []string{k.Stream, k.Due, k.Wake, k.Turns, k.Policy, k.History},
				[]string{"g", e.EntryID, "m", ""}).Error()
			used := err != nil && strings.Contains(err.Error(), "called XDELEX")
			if used != uses || err != nil && !uses {
				b.Errorf("version %#x: used XDELEX: %t (%v), want %t", version, used, err, uses)
			}
			if left := b.count("XLEN", k.Stream); !uses && left != 0 {
				b.Errorf("version %#x: %d entries left", version, left)
			}
		}
	})
}

// A full server still frees entries by XDELEX.
func TestXDELEXFreesEntriesOnAFullServer(t *testing.T) {
	t.Parallel()
	b, ok := onServerWithXDELEX(t)
	if !ok {
		return
	}
	held := b.deliver([]string{"g"}, "acked", "failed")
	b.do("CONFIG", "SET", "maxmemory", "1")
	redistest.Want(t, "acknowledged", b.ack("g", heldBy(held[:1])...)[0], true)
	redistest.Want(t, "outcome", b.fail("g", held[1].EntryID, ActionRetry, ReasonMaxAttempts, "no"), Retried)
	redistest.Want(t, "entries left", b.count("XLEN", b.k.Stream), 0)
	redistest.Want(t, "calls of XDELEX", b.s.Calls(t)["xdelex"], 2)
}

// An operator may take a command away from a server. Then scripts read the groups.
func TestEntriesAreFreedWhereXDELEXWasTakenAway(t *testing.T) {
	t.Parallel()
	s, ok := redistest.OwnOn(t, imageWithXDELEX, "--rename-command", "XDELEX", "")
	if !ok {
		t.Logf("not run: no image %s in a local Docker engine", imageWithXDELEX)
		return
	}
	b := newTestQueue(t, s)
	held := b.deliver([]string{"g"}, "m")
	redistest.Want(t, "acknowledged", b.ack("g", heldBy(held)...)[0], true)
	redistest.Want(t, "entries left", b.count("XLEN", b.k.Stream), 0)
}

// Two queues get the same random commands. XDELEX frees the entries of one queue, and XDEL those of the other. Both
// queues must have the same entries and the same pending lists. The commands create, destroy and reset groups, delete
// entries, give them back, reclaim them, and restore dumps. After a restart the server has the same entries again.
func TestXDELEXFreesTheSameEntriesAsXDEL(t *testing.T) {
	t.Parallel()
	b, ok := onServerWithXDELEX(t)
	if !ok {
		return
	}
	guest := withoutXDELEX(b)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	added, left, reclaimed, states := 0, 0, 0, map[int]string{}
	for round := range 25 {
		queues := []*testQueue{b.queue(fmt.Sprint("new", round)), guest.queue(fmt.Sprint("old", round))}
		commands, n := []string{}, 0
		// A command may be refused, for example because its group is gone.
		onStream := func(command string, words ...string) {
			commands = append(commands, command+" "+strings.Join(words, " "))
			for _, q := range queues {
				q.try(append(append(strings.Fields(command), q.k.Stream), words...)...)
			}
		}
		someID := func() string { return fmt.Sprintf("%d-%d", 1+r.IntN(n+1), r.IntN(2)) }
		group := func() string { return fmt.Sprint("g", r.IntN(3)) }
		onStream("XGROUP CREATE", "g0", "0", "MKSTREAM")
		for range 50 {
			switch r.IntN(12) {
			case 0, 1:
				n++
				onStream("XADD", fmt.Sprint(n, "-1"), "id", fmt.Sprint("m", n))
			case 2, 3:
				g, most := group(), 1+r.IntN(8)
				commands = append(commands, fmt.Sprint("read ", g, " ", most))
				for _, q := range queues {
					q.try("XREADGROUP", "GROUP", g, "c", "COUNT", fmt.Sprint(most), "STREAMS", q.k.Stream, ">")
				}
			case 4, 5, 6, 7:
				g, most := group(), 1+r.IntN(16)
				_, list, _ := strings.Cut(queues[0].contents(g), "|")
				pending := strings.Fields(list)
				r.Shuffle(len(pending), func(i, j int) { pending[i], pending[j] = pending[j], pending[i] })
				pending = pending[:min(most, len(pending))]
				if len(pending) == 0 {
					continue
				}
				commands = append(commands, "ack "+g+" "+strings.Join(pending, " "))
				for _, q := range queues {
					var held []Held
					for _, id := range pending {
						held = append(held, Held{Entry: id})
					}
					q.ack(g, held...)
				}
			case 8:
				switch r.IntN(4) {
				case 0:
					onStream("XGROUP CREATE", group(), someID())
				case 1:
					onStream("XGROUP DESTROY", group())
				case 2:
					onStream("XGROUP SETID", group(), someID())
				case 3:
					onStream("XDEL", someID())
				}
			case 9, 10:
				for i := range 3 {
					g, mode := fmt.Sprint("g", i), []string{nackSilent, nackFail, nackFatal}[r.IntN(3)]
					_, list, _ := strings.Cut(queues[0].contents(g), "|")
					for _, id := range strings.Fields(list) {
						if r.IntN(2) == 0 {
							commands = append(commands, "give back "+g+" "+mode+" "+id)
							queues[0].giveBack(g, mode, id)
							queues[1].giveBack(g, mode, id)
						}
					}
				}
				if r.IntN(2) == 0 {
					continue
				}
				commands = append(commands, "reclaim")
				for i := range 6 {
					q := queues[i%2]
					done, err := Reclaim(q.ctx, q.c, q.k, ReclaimArgs{Group: fmt.Sprint("g", i/2), Attempts: policy,
						MinIdle: time.Hour, Limit: 100, MaxBytes: 1 << 20})
					if err != nil && !errors.Is(err, ErrNoGroup) {
						t.Fatal(err)
					}
					reclaimed += done.Moved()
				}
			case 11:
				commands = append(commands, "load")
				for _, q := range queues {
					if dump := q.text("DUMP", q.k.Stream); dump != "" {
						q.do("RESTORE", q.k.Stream, "0", dump, "REPLACE")
					}
				}
			}
			byXDELEX, byGroup := queues[0].contents("g0", "g1", "g2"), queues[1].contents("g0", "g1", "g2")
			if byXDELEX != byGroup {
				t.Fatalf("by XDELEX:     %s\nby each group: %s\nafter:\n%s", byXDELEX, byGroup, strings.Join(commands, "\n"))
			}
			states[round] = byXDELEX
		}
		added, left = added+n, left+queues[0].count("XLEN", queues[0].k.Stream)
	}
	calls := b.s.Calls(t)
	if added-left < 20 || calls["xdelex"] < 20 || calls["xinfo|groups"] < 20 || reclaimed < 10 {
		t.Errorf("%d entries were freed, XDELEX ran %d times, XINFO GROUPS %d times, %d entries were reclaimed: "+
			"want at least 20, 20, 20 and 10", added-left, calls["xdelex"], calls["xinfo|groups"], reclaimed)
	}

	b.s.Stop()
	b.s.Start() // executes the append-only file, as a replica executes what it is sent
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		err := b.try("PING").Error()
		return err == nil, fmt.Sprint("PING: ", err)
	})
	for round, state := range states {
		redistest.Want(t, "after the restart", b.queue(fmt.Sprint("new", round)).contents("g0", "g1", "g2"), state)
	}
}

// contents returns the entry IDs of the stream, then those that each group holds (at most 100). A group that does not
// exist has an empty list.
func (b *testQueue) contents(groups ...string) string {
	b.Helper()
	requests := rueidis.Commands{b.c.B().Arbitrary("XRANGE", b.k.Stream, "-", "+").Build()}
	for _, group := range groups {
		requests = append(requests, b.c.B().Arbitrary("XPENDING", b.k.Stream, group, "-", "+", "100").Build())
	}
	var lists []string
	for _, reply := range b.c.DoMulti(b.ctx, requests...) {
		rows, err := reply.ToArray()
		if err != nil && !strings.HasPrefix(err.Error(), "NOGROUP") {
			b.Fatal(err)
		}
		list := ""
		for _, row := range rows {
			list += " " + redistest.Must(redistest.Must(row.ToArray())[0].ToString())
		}
		lists = append(lists, list)
	}
	return strings.Join(lists, " |")
}
