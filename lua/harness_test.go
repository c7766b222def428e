package lua

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
)

// testQueue is one queue on one server.
type testQueue struct {
	*testing.T
	ctx context.Context
	s   *redistest.Server
	c   rueidis.Client
	k   Keys
	g   Globals

	fcall bool // published scripts are called as functions
}

// newTestQueue returns a queue with a prefix of its own, and one connection.
func newTestQueue(t *testing.T, s *redistest.Server) *testQueue {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	prefix := s.Prefix(t)
	client := s.Client(t, func(o *rueidis.ClientOption) {
		o.ForceSingleClient, o.PipelineMultiplex = true, -1
		// Only ctx limits a call. The default of 10 s is too short for a large call in the in-process server while other
		// programs use the processors.
		o.ConnWriteTimeout = time.Minute
	})
	return &testQueue{T: t, ctx: ctx, s: s, k: NewKeys(prefix, "q"), g: NewGlobals(prefix), c: client}
}

func (b *testQueue) inProcess() bool { return strings.Contains(b.s.Name(), "in-process") }

// queue returns another queue on the same server.
func (b *testQueue) queue(name string) *testQueue {
	other := *b
	other.k = NewKeys(strings.TrimSuffix(b.g.Queues, ":queues"), name)
	return &other
}

// try runs a command that may fail.
func (b *testQueue) try(words ...string) rueidis.RedisResult {
	return b.c.Do(b.ctx, b.c.B().Arbitrary(words[0]).Args(words[1:]...).Build())
}

// do runs a command that must not fail.
func (b *testQueue) do(words ...string) rueidis.RedisMessage {
	b.Helper()
	m, err := b.try(words...).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		b.Fatalf("%.200q: %v", words, err)
	}
	return m
}

// count runs a command that returns one number.
func (b *testQueue) count(words ...string) int {
	b.Helper()
	m := b.do(words...)
	n, err := m.AsInt64()
	if err != nil {
		b.Fatalf("%q: %v", words, err)
	}
	return int(n)
}

// texts runs a command that returns a list of strings.
func (b *testQueue) texts(words ...string) []string {
	b.Helper()
	m := b.do(words...)
	list, err := m.AsStrSlice()
	if err != nil {
		b.Fatalf("%q: %v", words, err)
	}
	return list
}

// text runs a command that returns one string.
func (b *testQueue) text(words ...string) string {
	b.Helper()
	m := b.do(words...)
	s, err := m.ToString()
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// hash returns the fields of a hash.
func (b *testQueue) hash(key string) map[string]string {
	b.Helper()
	m := b.do("HGETALL", key)
	h, err := m.AsStrMap()
	if err != nil {
		b.Fatal(err)
	}
	return h
}

// now returns the server's clock in ms.
func (b *testQueue) now() int64 {
	b.Helper()
	t := b.texts("TIME")
	s, _ := strconv.ParseInt(t[0], 10, 64)
	us, _ := strconv.ParseInt(t[1], 10, 64)
	return s*1000 + us/1000
}

// ms returns a number of ms, or a Unix time in ms, as text.
func ms(n int64) string { return strconv.FormatInt(n, 10) }

// entries returns the entries of a stream, parsed.
func (b *testQueue) entries(key string) []Entry {
	b.Helper()
	var out []Entry
	for _, e := range b.raw(key) {
		out = append(out, ParseEntry(e.ID, e.FieldValues))
	}
	return out
}

// letters reads the dead letters.
func (b *testQueue) letters() []Letter {
	b.Helper()
	var out []Letter
	for _, e := range b.raw(b.k.Dead) {
		out = append(out, ParseLetter(e.ID, e.FieldValues))
	}
	return out
}

// raw returns the entries of a stream with their field lists as they are stored.
func (b *testQueue) raw(key string) []rueidis.XRangeSlice {
	b.Helper()
	m := b.do("XRANGE", key, "-", "+")
	list, err := m.AsXRangeSlices()
	if err != nil {
		b.Fatal(err)
	}
	return list
}

// dueOf returns the score of a member of the schedule.
func (b *testQueue) dueOf(member string) float64 {
	b.Helper()
	m := b.do("ZSCORE", b.k.Due, member)
	f, err := m.AsFloat64()
	if err != nil {
		b.Fatalf("due time of %q: %v", member, err)
	}
	return f
}

// makeDue sets the due times of all scheduled messages to Unix ms 1, 2, 3 and so on, in their present order.
func (b *testQueue) makeDue() {
	b.Helper()
	var commands [][]string
	for i, member := range b.texts("ZRANGE", b.k.Due, "0", "-1") {
		commands = append(commands, []string{"ZADD", b.k.Due, "XX", strconv.Itoa(i + 1), member})
	}
	b.all(commands)
}

// enqueue enqueues messages in one call without a token.
func (b *testQueue) enqueue(items ...Item) []Verdict {
	b.Helper()
	return b.enqueueAs(Token{}, items...)
}

func (b *testQueue) enqueueAs(token Token, items ...Item) []Verdict {
	b.Helper()
	receipts, err := Enqueue(b.ctx, b.c, b.k, token, items, Durability{})
	if err != nil {
		b.Fatal(err)
	}
	verdicts := make([]Verdict, len(receipts))
	for i, r := range receipts {
		verdicts[i] = r.Verdict
	}
	return verdicts
}

// drain moves due members once: at most limit of them, and about 1 MiB.
func (b *testQueue) drain(limit int) Drained {
	b.Helper()
	d, err := Drain(b.ctx, b.c, b.k, limit, 1<<20)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// groups creates consumer groups that begin at the first entry of the stream.
func (b *testQueue) groups(names ...string) {
	b.Helper()
	for _, name := range names {
		if _, err := EnsureGroup(b.ctx, b.c, b.k, name); err != nil {
			b.Fatal(err)
		}
	}
}

// read delivers up to n entries to a consumer.
func (b *testQueue) read(group, consumer string, n int) []Entry {
	b.Helper()
	reply, err := b.try("XREADGROUP", "GROUP", group, consumer, "COUNT", strconv.Itoa(n), "STREAMS", b.k.Stream,
		">").AsXReadSlices()
	if rueidis.IsRedisNil(err) {
		return nil
	}
	if err != nil {
		b.Fatal(err)
	}
	var out []Entry
	for _, e := range reply[b.k.Stream] {
		out = append(out, ParseEntry(e.ID, e.FieldValues))
	}
	return out
}

// deliver enqueues messages that are due now, and reads them in every group. It returns the entries as the last group
// got them.
func (b *testQueue) deliver(groups []string, ids ...string) []Entry {
	b.Helper()
	b.groups(groups...)
	for _, id := range ids {
		b.enqueue(Item{ID: id, When: After(0), Payload: []byte("payload of " + id)})
	}
	var out []Entry
	for _, group := range groups {
		out = b.read(group, "c1", len(ids))
		if len(out) != len(ids) {
			b.Fatalf("%s was given %d of %d entries", group, len(out), len(ids))
		}
	}
	return out
}

// pending returns how many entries a group holds.
func (b *testQueue) pending(group string) int {
	b.Helper()
	m := b.do("XPENDING", b.k.Stream, group)
	list, err := m.ToArray()
	if err != nil {
		b.Fatal(err)
	}
	n, _ := list[0].AsInt64()
	return int(n)
}

// pendingEntry returns the values of XPENDING for a pending entry: the number of its deliveries, the consumer that
// holds it, and its idle time in ms.
func (b *testQueue) pendingEntry(group, entry string) (deliveries int64, owner string, idle int64) {
	b.Helper()
	m := b.do("XPENDING", b.k.Stream, group, entry, entry, "1")
	list, _ := m.ToArray()
	if len(list) == 0 {
		b.Fatalf("%s is not pending in %s", entry, group)
	}
	one, _ := list[0].ToArray()
	owner, _ = one[1].ToString()
	idle, _ = one[2].AsInt64()
	deliveries, _ = one[3].AsInt64()
	return
}

// abandon makes a pending entry idle for an hour without counting a delivery.
func (b *testQueue) abandon(group, consumer string, entries ...string) {
	b.Helper()
	for _, e := range entries {
		n, _, _ := b.pendingEntry(group, e)
		b.do("XCLAIM", b.k.Stream, group, consumer, "0", e, "IDLE", "3600000", "RETRYCOUNT", ms(n), "JUSTID")
	}
}

// policy is the retry policy of most tests.
var policy = Attempts{Max: 3, Delays: []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second}}

// fail settles one pending entry by script retry with an action, which may also be to release it or to dead-letter it.
// It returns the outcome.
func (b *testQueue) fail(group, entry string, action Action, reason, text string) Outcome {
	b.Helper()
	out, err := Retry(b.ctx, b.c, b.k, group, policy,
		[]Failure{{Held: Held{Entry: entry}, Action: action, Delay: -1, Reason: reason, Error: text}})
	if err != nil {
		b.Fatal(err)
	}
	return out[0]
}

// reclaim takes back the entries of a group that have been idle for minIdle.
func (b *testQueue) reclaim(group string, minIdle time.Duration) Reclaimed {
	b.Helper()
	r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: group, Attempts: policy, MinIdle: minIdle, Limit: 100,
		MaxBytes: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// state returns a summary such as "due=1 payload=1 meta=0 stream=2 dead=0 g=1": how many elements each key has, and how
// many entries each of the groups holds.
func (b *testQueue) state(groups ...string) string {
	b.Helper()
	asked := [][]string{{"ZCARD", b.k.Due}, {"HLEN", b.k.Payload}, {"HLEN", b.k.Meta}, {"XLEN", b.k.Stream},
		{"XLEN", b.k.Dead}}
	for _, g := range groups {
		asked = append(asked, []string{"XPENDING", b.k.Stream, g})
	}
	var words []string
	for i, m := range b.all(asked) {
		name := fmt.Sprint([]string{"due", "payload", "meta", "stream", "dead"}[min(i, 4)])
		if i > 4 {
			name = groups[i-5]
			list, err := m.ToArray()
			if err != nil {
				b.Fatal(err)
			}
			m = list[0]
		}
		n, err := m.AsInt64()
		if err != nil {
			b.Fatalf("%q: %v", asked[i], err)
		}
		words = append(words, fmt.Sprintf("%s=%d", name, n))
	}
	return strings.Join(words, " ")
}

// wantState compares state with a text that the test derives from its own steps.
func (b *testQueue) wantState(want string, groups ...string) {
	b.Helper()
	if got := b.state(groups...); got != want {
		b.Fatalf("stored is %s, want %s", got, want)
	}
}

// token returns the entry ID of the wake token; "" if there is none.
func (b *testQueue) token() string {
	b.Helper()
	if list := b.raw(b.k.Wake); len(list) > 0 {
		return list[len(list)-1].ID
	}
	return ""
}

// wantList fails the test if the two lists differ.
func wantList[T comparable](b testing.TB, what string, got []T, want ...T) {
	b.Helper()
	if !slices.Equal(got, want) {
		b.Fatalf("%s are %v, want %v", what, got, want)
	}
}

// ids returns the message IDs of entries.
func ids(entries []Entry) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.ID
	}
	return out
}

// fields returns the list of fields that names and values in turn describe.
func fields(pairs ...string) []FieldValue {
	var out []FieldValue
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, FieldValue{Field: pairs[i], Value: pairs[i+1]})
	}
	return out
}
