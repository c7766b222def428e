package conformance

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// step is an event for a watcher: a command with its reply, a line of the worker, or the worker's end.
type step func(w *watcher)

const wk = "worker one"

func sends(text string, reply value) step {
	return func(w *watcher) {
		s := &sent{program: wk, at: time.Now(), args: strings.Fields(text)}
		w.asked(s)
		w.told(s, reply)
	}
}

func list(of ...value) value    { return value{kind: '*', list: of} }
func bulk(text string) value    { return value{kind: '$', text: text} }
func integer(text string) value { return value{kind: ':', text: text} }

const stream1 = "p:{q}:stream"

// isGiven gives an entry to the worker. Fields have the form "id=a work=slow 2000".
func isGiven(entry string, fields ...string) step {
	var flat []value
	for _, f := range fields {
		name, v, _ := strings.Cut(f, "=")
		flat = append(flat, bulk(name), bulk(v))
	}
	return sends("XREADGROUP GROUP g one COUNT 1 BLOCK 2000 STREAMS "+stream1+" >",
		list(list(bulk(stream1), list(list(bulk(entry), list(flat...))))))
}

func said(b begun) step {
	return func(w *watcher) {
		b.at = time.Now()
		if b.Headers == nil {
			b.Headers = map[string]string{}
		}
		w.begins(wk, b)
	}
}

func TestAWatcherNamesTheRuleThatACommandBreaks(t *testing.T) {
	got := isGiven("1-1", "id=a", "attempt=1")
	long := isGiven("1-1", "id=a", "attempt=1", "h:work=slow 5000")
	longBegun := said(begun{ID: "a", Attempt: 1, Headers: map[string]string{"work": "slow 5000"}})
	begunA := said(begun{ID: "a", Attempt: 1})
	ack := sends("XACK "+stream1+" g 1-1", integer("1"))
	term, end := func(w *watcher) { w.stops(wk) }, func(w *watcher) { w.ended(wk) }
	for name, tc := range map[string]struct {
		rule  string // "" = none
		steps []step
	}{
		"a message is done":                  {"", []step{sends("XGROUP CREATE "+stream1+" g 0 MKSTREAM", bulk("OK")), got, begunA, ack, term, end}},
		"begun after the acknowledgement":    {"", []step{got, ack, begunA}}, // their order is unknown
		"a long one is extended":             {"", []step{got, begunA, sends("XCLAIM "+stream1+" g one 0 1-1 JUSTID", list(bulk("1-1")))}},
		"what was lost need not be finished": {"", []step{got, begunA, sends("XCLAIM "+stream1+" g one 0 1-1 JUSTID", list()), term, end}},
		"its own, of which it was told by XPENDING": {"", []step{
			sends("XPENDING "+stream1+" g - + 9 one", list(list(bulk("1-1"), bulk("one"), integer("1"), integer("1")))),
			sends("XRANGE "+stream1+" - +", list(list(bulk("1-1"), list(bulk("id"), bulk("a"))))), begunA, ack,
		}},
		"a retry by a function":        {"", []step{got, begunA, sends("FCALL duestream_retry 6 "+stream1+" d p m x w g 10 100 1-1 a retry 1 max_attempts no", list(integer("1"))), term, end}},
		"for another group, skipped":   {"", []step{isGiven("1-1", "id=a", "for=h"), ack}},
		"for is empty":                 {"", []step{isGiven("1-1", "id=a", "for="), begunA, ack}},
		"a wake token, a registration": {"", []step{sends("HSETNX p:queues q 1", integer("1")), sends("XADD p:wake MAXLEN 1 * queues 1", bulk("1-1"))}},

		"NOACK":                       {"acknowledged-reads", []step{sends("XREADGROUP GROUP g one NOACK COUNT 1 STREAMS "+stream1+" >", list())}},
		"CLAIM":                       {"no-claims", []step{sends("XREADGROUP GROUP g one CLAIM 100 COUNT 1 STREAMS "+stream1+" >", list())}},
		"another group":               {"own-name", []step{sends("XREADGROUP GROUP h one COUNT 1 STREAMS "+stream1+" >", list())}},
		"another consumer":            {"own-name", []step{sends("XREADGROUP GROUP g two COUNT 1 STREAMS "+stream1+" >", list())}},
		"acknowledges for another":    {"own-name", []step{got, sends("XACK "+stream1+" h 1-1", integer("1"))}},
		"XDEL":                        {"keeps-streams", []step{sends("XDEL "+stream1+" 1-1", integer("1"))}},
		"XTRIM":                       {"keeps-streams", []step{sends("XTRIM "+stream1+" MAXLEN 0", integer("1"))}},
		"XADD":                        {"keeps-streams", []step{sends("XADD "+stream1+" * id a", bulk("1-1"))}},
		"SETID":                       {"keeps-groups", []step{sends("XGROUP SETID "+stream1+" g $", bulk("OK"))}},
		"DESTROY":                     {"keeps-groups", []step{sends("XGROUP DESTROY "+stream1+" g", integer("1"))}},
		"DELCONSUMER that holds some": {"keeps-consumers", []step{sends("XGROUP DELCONSUMER "+stream1+" g one", integer("2"))}},
		"DELCONSUMER that holds none": {"", []step{sends("XGROUP DELCONSUMER "+stream1+" g one", integer("0"))}},
		"$":                           {"group-at-zero", []step{sends("XGROUP CREATE "+stream1+" g $ MKSTREAM", bulk("OK"))}},
		"EXPIRE":                      {"keeps-keys", []step{sends("EXPIRE "+stream1+" 60", integer("1"))}},
		"DEL of the second key":       {"keeps-keys", []step{sends("DEL other p:{q}:meta", integer("1"))}},
		"FLUSHALL":                    {"keeps-keys", []step{sends("FLUSHALL", bulk("OK"))}},
		"CONFIG SET":                  {"keeps-server", []step{sends("CONFIG SET appendonly no", bulk("OK"))}},
		"HSET of the registry":        {"keeps-registry", []step{sends("HSET p:queues q 1", integer("1"))}},
		"HSET of settings":            {"keeps-registry", []step{sends("HSET p:{q}:policy visibility_ms 1", integer("1"))}},
		"XAUTOCLAIM":                  {"no-claims", []step{sends("XAUTOCLAIM "+stream1+" g one 0 0", list())}},
		"XCLAIM without JUSTID":       {"no-claims", []step{got, sends("XCLAIM "+stream1+" g one 0 1-1", list())}},
		"XCLAIM of another's":         {"no-claims", []step{sends("XCLAIM "+stream1+" g one 0 1-1 JUSTID", list())}},
		"XCLAIM for another":          {"no-claims", []step{got, sends("XCLAIM "+stream1+" g two 0 1-1 JUSTID", list())}},
		"a retry by plain commands":   {"no-plain-retries", []step{sends("ZADD p:{q}:due 1 a", integer("1"))}},
		"a dead letter by XADD":       {"no-plain-retries", []step{sends("XADD p:{q}:dead * id a", bulk("1-1"))}},

		"never begun":                  {"acks-after-work", []step{got, ack}},
		"half-way":                     {"acks-after-work", []step{long, longBegun, ack}},
		"before it began":              {"acks-after-work", []step{long, ack, longBegun}},
		"half-way by a function":       {"acks-after-work", []step{long, longBegun, sends("FCALL duestream_ack 1 "+stream1+" g 1-1 a", list(integer("1")))}},
		"a failure":                    {"acks-no-failure", []step{isGiven("1-1", "id=a", "attempt=3", "h:work=fail 4"), ack}},
		"what it was not given":        {"acks-its-own", []step{ack}},
		"what it was not given, begun": {"begins-what-it-got", []step{begunA}},
		"begun twice":                  {"begins-what-it-got", []step{got, begunA, begunA}},
		"for another group":            {"skips-others", []step{isGiven("1-1", "id=a", "for=h"), begunA}},
		"for is empty, not begun":      {"acks-after-work", []step{isGiven("1-1", "id=a", "for="), ack}},
		"another attempt":              {"as-given", []step{isGiven("1-1", "id=a", "attempt=2"), begunA}},
		"another payload":              {"as-given", []step{isGiven("1-1", "id=a", "payload=b"), begunA}},
		"other headers":                {"as-given", []step{isGiven("1-1", "id=a", "h:b=c"), begunA}},
		"stopped in the middle":        {"finishes", []step{long, longBegun, term, end}},
	} {
		w := newWatcher(Worker, Complete, "p")
		w.starts(wk, "g", "one")
		for _, s := range tc.steps {
			s(w)
		}
		w.final()
		w.stalls.end()
		rule := ""
		if w.first != nil {
			rule = w.first.Name
		}
		if rule != tc.rule {
			t.Errorf("%s: broke rule %q; want %q (%v)", name, rule, tc.rule, w.first)
		}
	}
}

// A tap reports the commands of one program, each with its reply, also in a pipeline and in a transaction. It reports
// a reply before the program can act on it. It cuts the network of that program only.
func TestATapTellsWhatAProgramSendsAndIsTold(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	w := newWatcher(Worker, Good, server.Prefix(t))
	defer w.stalls.end()
	w.starts("it", "g", "one")
	tap, err := newTap(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Addr())
	}, func(s *sent) { s.program = "it"; w.asked(s) }, w.told)
	if err != nil {
		t.Fatal(err)
	}
	defer tap.end()
	talk := func(commands ...string) net.Conn {
		conn, err := net.Dial("tcp", tap.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		wire := &wire{from: bufio.NewReader(conn)}
		for _, c := range commands {
			if _, err := conn.Write(encode(strings.Fields(c))); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range commands {
			if _, err := wire.reply(); err != nil {
				t.Fatal(c, err)
			}
		}
		return conn
	}
	key := w.prefix + ":{q}:stream"
	conn := talk("HELLO 3", "XGROUP CREATE "+key+" g 0 MKSTREAM", "multi", "XADD "+key+" 1-1 id a", "XACK "+key+" g 0-0", "EXEC",
		"XREADGROUP GROUP g one COUNT 1 STREAMS "+key+" >", "XPENDING "+key+" g")
	all := w.commands("it")
	want := []string{"", "", "OK", "1-1", "0", "", "", ""}
	for i, s := range all {
		if !s.answered || want[i] != "" && s.reply.text != want[i] || s.inMulti != (i == 3 || i == 4) {
			t.Errorf("%s: %+v", s.text(), s)
		}
	}
	if len(all) != len(want) || !w.holds(all[0], key, "1-1") {
		t.Errorf("%d commands; it holds the entry: %v", len(all), w.holds(all[0], key, "1-1"))
	}

	tap.away(true)
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that was broken had a reply", n)
	}
	if c, err := net.Dial("tcp", tap.addr); err == nil {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the network is away, and there is a connection")
		}
		c.Close()
	}
	tap.away(false)
	talk("PING")
}
