package crashpoint

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// fate is a possible end of a message for a group once the system is at rest.
type fate int

const (
	gone      fate = 1 << iota // neither delivered again nor dead
	delivered                  // delivered at least once from now on
	dead
)

func (f fate) String() string {
	var words []string
	for i, word := range []string{"gone", "delivered", "dead"} {
		if f&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	return strings.Join(words, " or ")
}

// debt has the allowed fates of a message for a group: unless the call under test succeeded, and once it did. The
// address of a message that died before any delivery has the group "".
type debt struct {
	unless, once fate
	most         int // highest attempt of a delivery; 0 = 2, because one delivery may have been abandoned before
}

// interruptedMost is debt.most of an entry that the script reclaim takes. If a command is refused between XAUTOCLAIM or
// XCLAIM and XACK, the entry stays with the reclaimer's consumer, and the server has counted the claim as another
// delivery. The next pass cannot tell this delivery from one to a worker, and adds it to the attempts. So the bound is
// exact; TestEveryScriptStepFails checks that each scenario with this bound reaches it.
const interruptedMost = 3

type address struct{ group, id string }

func (a address) String() string { return a.group + "/" + a.id }

// scene is the only queue of its prefix, on which a script is interrupted.
type scene struct {
	testing.TB
	ctx    context.Context
	c      rueidis.Client
	k      lua.Keys
	g      lua.Globals
	note   string // key under which the preamble notes the refused command
	groups []string
	owed   map[address]debt
	ids    map[string]string  // entry → message ID, of the entries that hold read
	got    map[address]int    // number of deliveries
	top    map[address]int    // highest attempt of a delivery
	wrong  map[address]string // deliveries that differ from the sent message
}

func newScene(t testing.TB, server *redistest.Server, c rueidis.Client) *scene {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	prefix := server.Prefix(t)
	return &scene{
		TB: t, ctx: ctx, c: c, k: lua.NewKeys(prefix, "q"), g: lua.NewGlobals(prefix), note: prefix + ":note",
		owed: map[address]debt{}, ids: map[string]string{}, got: map[address]int{}, top: map[address]int{},
		wrong: map[address]string{},
	}
}

func (s *scene) do(words ...string) rueidis.RedisMessage {
	s.Helper()
	m, err := s.c.Do(s.ctx, s.c.B().Arbitrary(words[0]).Args(words[1:]...).Build()).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		s.Fatalf("%.200q: %v", words, err)
	}
	return m
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scene) number(words ...string) int64 {
	m := s.do(words...)
	n, _ := m.AsInt64()
	return n
}

// owe sets the allowed fates of a message for a group, see debt.
func (s *scene) owe(group, id string, unless, once fate) {
	s.owed[address{group, id}] = debt{unless: unless, once: once}
}

func (s *scene) group(names ...string) {
	s.groups = append(s.groups, names...)
	for _, name := range names {
		_, err := lua.EnsureGroup(s.ctx, s.c, s.k, name)
		s.must(err)
	}
}

func body(id string) string { return "payload of " + id }

// item returns a message whose content follows from its ID.
func item(id string, when lua.When) lua.Item {
	return lua.Item{ID: id, When: when, Payload: []byte(body(id)), Meta: lua.EncodeMeta(map[string]string{"of": id}, 0,
		time.Time{})}
}

// bare is the ID of a message without payload and headers, headerless of one with a payload only.
const bare, headerless = "bare", "headerless"

const hour = lua.When("+3600000") // in one hour

const (
	year2100    = "4102444800000"                             // Unix ms of 2100-01-01, a due time that no test reaches
	lastEntryID = "18446744073709551615-18446744073709551615" // a stream whose last entry has this ID refuses every XADD
)

// leaseOf returns the member that notes a lease of one second on an entry of group a: its length in ms, entry, group.
func leaseOf(entry string) string { return "1000" + lua.Separator + entry + lua.Separator + "a" }

func (s *scene) send(items ...lua.Item) {
	s.Helper()
	receipts, err := lua.Enqueue(s.ctx, s.c, s.k, lua.Token{}, items, lua.Durability{})
	s.must(err)
	for i, r := range receipts {
		if r.Verdict != lua.Scheduled && r.Verdict != lua.Ready {
			s.Fatalf("%s: verdict %d", items[i].ID, r.Verdict)
		}
	}
}

// hold reads everything with a consumer, and returns what it holds by message ID.
func (s *scene) hold(group, consumer string) map[string]lua.Held {
	s.Helper()
	held := map[string]lua.Held{}
	for _, e := range s.read(group, consumer) {
		held[e.ID] = lua.Held{Entry: e.EntryID, ID: e.ID}
		s.ids[e.EntryID] = e.ID
	}
	return held
}

// read reads everything that is ready for a group with XREADGROUP.
func (s *scene) read(group, consumer string) []lua.Entry {
	s.Helper()
	reply, err := s.c.Do(s.ctx, s.c.B().Xreadgroup().Group(group,
		consumer).Count(1000).Streams().Key(s.k.Stream).Id(">").Build()).AsXReadSlices()
	if err != nil && !rueidis.IsRedisNil(err) {
		s.Fatal(err)
	}
	var out []lua.Entry
	for _, e := range reply[s.k.Stream] {
		out = append(out, lua.ParseEntry(e.ID, e.FieldValues))
	}
	return out
}

var attempts = lua.Attempts{Max: 10, Delays: []time.Duration{0}}

// reclaims returns a call of reclaim for group a. minIdle is the least idle time of the entries that it takes.
func (s *scene) reclaims(attempts lua.Attempts, minIdle time.Duration) func(rueidis.Client) error {
	args := lua.ReclaimArgs{Group: "a", Attempts: attempts, Limit: 100, MaxBytes: 1 << 20, MinIdle: minIdle,
		Shortest: minIdle}
	return func(c rueidis.Client) error {
		_, err := lua.Reclaim(s.ctx, c, s.k, args)
		return err
	}
}

// drain lets everything that is due become ready.
func (s *scene) drain() {
	s.Helper()
	for {
		d, err := lua.Drain(s.ctx, s.c, s.k, 100, 1<<20)
		s.must(err)
		if d.Refusal != "" {
			s.Fatal(d.Refusal)
		}
		if d.Wait != 0 {
			return
		}
	}
}

// settle brings the system to rest by hand: it drains, delivers, acknowledges and reclaims. When nothing else is
// left, messages that are scheduled for later become due.
func (s *scene) settle() {
	s.Helper()
	for round := 0; ; round++ {
		if round == 50 {
			s.Fatalf("not at rest after %d rounds: %s", round, s.snapshot())
		}
		s.drain()
		moved := 0
		for _, group := range s.groups {
			moved += s.deliver(group)
			r, err := lua.Reclaim(s.ctx, s.c, s.k, lua.ReclaimArgs{Group: group, Attempts: attempts, Limit: 100,
				MaxBytes: 1 << 20})
			s.must(err)
			moved += r.Retried + r.Dead + r.Skipped
		}
		moved += s.passTurns()
		if moved > 0 {
			continue
		}
		if s.number("ZCARD", s.k.Due) == 0 {
			break
		}
		members, err := s.c.Do(s.ctx, s.c.B().Zrange().Key(s.k.Due).Min("0").Max("-1").Build()).AsStrSlice()
		s.must(err)
		for i, member := range members {
			s.do("ZADD", s.k.Due, "XX", strconv.Itoa(i+1), member)
		}
	}
	s.tidy()
}

// deliver reads everything that is ready for a group, compares it with the sent messages, and acknowledges it. It
// returns the number of entries.
func (s *scene) deliver(group string) int {
	entries := s.read(group, "settle")
	var held []lua.Held
	for _, e := range entries {
		held = append(held, lua.Held{Entry: e.EntryID})
		if e.For != "" && e.For != group {
			continue
		}
		at := address{group, e.ID}
		s.got[at]++
		s.top[at] = max(s.top[at], e.Attempt)
		most := s.owed[at].most
		if most == 0 {
			most = 2
		}
		payload, header := body(e.ID), e.ID
		switch e.ID {
		case bare:
			payload, header = "", ""
		case headerless:
			header = ""
		}
		if strings.HasSuffix(e.ID, lua.RunSuffix) {
			payload, header = body("run"), "run"
		}
		if string(e.Payload) != payload || e.Headers["of"] != header || e.Headers["left"] != "" {
			s.wrong[at] = fmt.Sprintf("payload %q, headers %v", e.Payload, e.Headers)
		} else if e.Attempt > most {
			s.wrong[at] = fmt.Sprintf("attempt %d, at most %d were made", e.Attempt, most)
		}
	}
	if len(held) > 0 {
		_, err := lua.Ack(s.ctx, s.c, s.k, group, held)
		s.must(err)
	}
	return len(held)
}

// tidy does at once what a bridge does over a minute: it deletes payloads and metas without members. It also lets all
// dedup windows end, and deletes them.
func (s *scene) tidy() {
	for _, hash := range []string{s.k.Payload, s.k.Meta} {
		found, err := lua.SweepOrphans(s.ctx, s.c, s.k.Due, hash, "", 1000, nil)
		s.must(err)
		var watched []lua.Watched
		for _, one := range found.Found {
			watched = append(watched, lua.Watched{Orphan: one, Ripe: true})
		}
		_, err = lua.SweepOrphans(s.ctx, s.c, s.k.Due, hash, "", 1000, watched)
		s.must(err)
	}
	windows, err := s.c.Do(s.ctx, s.c.B().Zrange().Key(s.k.Seen).Min("0").Max("-1").Withscores().Build()).AsZScores()
	s.must(err)
	for _, w := range windows {
		if w.Score > float64(time.Now().Add(2*time.Hour).UnixMilli()) {
			s.Errorf("the window of %q never ends", w.Member)
		}
		s.do("ZADD", s.k.Seen, "XX", "1", w.Member)
	}
	for i := 0; i < 10 && s.number("XLEN", s.k.Stream)+s.number("ZCARD", s.k.Seen) > 0; i++ {
		_, err := lua.Trim(s.ctx, s.c, s.k, "", 1000, 1<<20)
		s.must(err)
	}
}

// broken lists violated debts, and describes stored data that is left over. done means that the call under test
// succeeded in the end.
func (s *scene) broken(done bool) (debts []string, left string) {
	fates := map[address]fate{}
	for at := range s.got {
		fates[at] |= delivered
	}
	letters, err := s.c.Do(s.ctx, s.c.B().Xrange().Key(s.k.Dead).Start("-").End("+").Build()).AsXRangeSlices()
	s.must(err)
	for _, found := range letters {
		l := lua.ParseLetter(found.ID, found.FieldValues)
		if l.Reason == lua.ReasonBodyLost && s.ids[l.FailedEntry] != "" {
			l.ID = s.ids[l.FailedEntry] // its finder may have known only the entry
		}
		fates[address{l.Group, l.ID}] |= dead
	}
	for at, d := range s.owed {
		may, is := d.unless, fates[at]
		if done {
			may = d.once
		}
		if is == 0 {
			is = gone
		}
		if is&^may != 0 {
			debts = append(debts, fmt.Sprintf("%s is %s, and must be %s", at, is, may))
		}
	}
	for at, is := range fates {
		if _, known := s.owed[at]; !known {
			debts = append(debts, fmt.Sprintf("%s is %s, and was never sent", at, is))
		}
	}
	for at, how := range s.wrong {
		debts = append(debts, fmt.Sprintf("%s was delivered with %s", at, how))
	}
	slices.Sort(debts)
	for what, n := range map[string]int64{
		"scheduled members": s.number("ZCARD", s.k.Due), "payloads": s.number("HLEN", s.k.Payload), "metas": s.number("HLEN",
			s.k.Meta),
		"windows": s.number("ZCARD", s.k.Seen), "entries": s.number("XLEN", s.k.Stream),
		"turns": s.number("ZCARD", s.k.Turns),
	} {
		if n != 0 && !(what == "entries" && len(s.groups) == 0) {
			left += fmt.Sprintf("%d %s left. ", n, what)
		}
	}
	return debts, left
}

// snapshot returns everything stored under the scene's prefix as text, without idle times and the like.
func (s *scene) snapshot() string {
	var b strings.Builder
	exists := false
	hashes := []string{s.k.Payload, s.k.Meta, s.k.Policy, s.k.Recurring, s.k.Planned, s.g.Queues, s.g.Defaults}
	zsets := []string{s.k.Due, s.k.Seen, s.k.Turns, s.g.Bridges}
	streams := []string{s.k.Stream, s.k.Dead, s.k.Wake, s.g.Wake}
	var all rueidis.Commands
	for _, key := range hashes {
		all = append(all, s.c.B().Hgetall().Key(key).Build())
	}
	for _, key := range zsets {
		all = append(all, s.c.B().Zrange().Key(key).Min("0").Max("-1").Withscores().Build())
	}
	for _, key := range streams {
		all = append(all, s.c.B().Xrange().Key(key).Start("-").End("+").Build())
	}
	for i, reply := range s.c.DoMulti(s.ctx, append(all, s.c.B().Exists().Key(s.k.Stream).Build())...) {
		switch at := i - len(hashes); {
		case at < 0:
			m, err := reply.AsStrMap()
			s.must(err)
			fmt.Fprintf(&b, "%s %q\n", hashes[i], m)
		case at < len(zsets):
			m, err := reply.AsZScores()
			s.must(err)
			fmt.Fprintf(&b, "%s %q\n", zsets[at], fmt.Sprint(m))
		case at < len(zsets)+len(streams):
			m, err := reply.AsXRangeSlices()
			s.must(err)
			fmt.Fprintf(&b, "%s %q\n", streams[at-len(zsets)], fmt.Sprint(m))
		default:
			n, err := reply.AsInt64()
			s.must(err)
			exists = n == 1
		}
	}
	if exists {
		m := s.do("XINFO", "GROUPS", s.k.Stream)
		list, _ := m.ToArray()
		for _, one := range list {
			info, _ := one.AsMap()
			named := info["name"]
			group, _ := named.ToString()
			last := info["last-delivered-id"]
			id, _ := last.ToString()
			fmt.Fprintf(&b, "%s last %s", group, id)
			pending := s.do("XPENDING", s.k.Stream, group, "-", "+", "1000")
			rows, _ := pending.ToArray()
			for _, row := range rows {
				cells, _ := row.ToArray()
				entry, _ := cells[0].ToString()
				consumer, _ := cells[1].ToString()
				count, _ := cells[3].AsInt64()
				fmt.Fprintf(&b, " %s@%s*%d", entry, consumer, count)
			}
			members := s.do("XINFO", "CONSUMERS", s.k.Stream, group)
			consumers, _ := members.ToArray()
			for _, one := range consumers {
				info, _ := one.AsMap()
				named := info["name"]
				name, _ := named.ToString()
				fmt.Fprintf(&b, " %s", name)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}
