package conformance

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/resp"
)

// In each case the last command breaks the rule, and the commands before it break none. A rule holds in a transaction
// as well.
func TestAWatcherNamesTheRuleThatACommandBreaks(t *testing.T) {
	const payload, due = "HSET p:{q}:payload a x", "ZADD p:{q}:due 1 a"
	for _, tc := range []struct {
		kind     Kind
		rule     string // that the last command breaks; "" = none
		commands []string
	}{
		{Worker, "", []string{"XREADGROUP GROUP CLAIM justid COUNT 1 STREAMS p:{q}:stream >",
			"XCLAIM p:{q}:stream g one 0 1-1 JUSTID"}},
		{Worker, "", []string{"XGROUP DELCONSUMER p:{q}:stream g one",
			"HSETNX p:queues q 1", "XADD p:wake MAXLEN 1 * queues 1"}},
		{Worker, "keeps-keys", []string{"DEL other p:{q}:meta"}},
		{Worker, "keeps-keys", []string{"EXPIRE p:{q}:stream 60"}},
		{Worker, "keeps-keys", []string{"FLUSHALL"}},
		{Worker, "keeps-streams", []string{"XTRIM p:{q}:stream MAXLEN 0"}},
		{Worker, "", []string{"XACKDEL p:{q}:stream keepref ACKED IDS 1 1-1", "XACKDEL p:{q}:stream g ids 2 1-1 1-2 acked",
			"XNACK p:{q}:stream FORCE FATAL IDS 1 1-1"}},
		{Worker, "keeps-streams", []string{"XACKDEL p:{q}:stream acked IDS 1 1-1"}},
		{Worker, "keeps-streams", []string{"XACKDEL p:{q}:stream g KEEPREF IDS 1 1-1"}},
		{Worker, "keeps-streams", []string{"XACKDEL p:{q}:stream g ACKED IDS 1 1-1 DELREF"}},
		{Worker, "keeps-streams", []string{"XACKDEL p:{q}:stream g IDS 1 ACKED"}},
		{Worker, "keeps-streams", []string{"XDELEX p:{q}:stream ACKED IDS 1 1-1"}},
		{Producer, "keeps-streams", []string{"XACKDEL p:{q}:stream g ACKED IDS 1 1-1"}},
		{Worker, "no-claims", []string{"XNACK p:{q}:stream g FAIL IDS 1 1-1 RETRYCOUNT 0"}},
		{Worker, "keeps-groups", []string{"XGROUP SETID p:{q}:stream g $"}},
		{Worker, "keeps-groups", []string{"XGROUP DESTROY p:{q}:stream g"}},
		{Worker, "keeps-server", []string{"CONFIG GET maxmemory", "CONFIG SET maxmemory 0"}},
		{Worker, "keeps-registry", []string{"HSET p:queues q 1"}},
		{Worker, "keeps-registry", []string{"HSETNX p:queues q 4"}},
		{Worker, "no-claims", []string{"XREADGROUP GROUP g one CLAIM 100 COUNT 1 STREAMS p:{q}:stream >"}},
		{Worker, "no-claims", []string{"XAUTOCLAIM p:{q}:stream g one 0 0"}},
		{Worker, "no-claims", []string{"XCLAIM p:{q}:stream g justid 0 1-1"}},
		{Worker, "no-plain-retries", []string{"XADD p:{q}:dead * id a"}},

		{Producer, "", []string{"MULTI", payload, due, "XADD p:{q}:wake MAXLEN 1 * due_ms 1", "EXEC",
			"MULTI", payload, due, "EXEC"}},
		{Producer, "writes-whole", []string{"MULTI", due, "EXEC", payload}},
		{Producer, "writes-whole", []string{"MULTI", due, payload, "EXEC"}},
		{Producer, "takes-nothing-out", []string{"ZPOPMIN p:{q}:due"}},
		{Producer, "takes-nothing-out", []string{"XDEL p:{q}:dead 1-1"}},
		{Producer, "takes-nothing-out", []string{"ZADD p:bridges 1 b"}},
		{Producer, "keeps-registry", []string{"MULTI", "HSET p:defaults visibility_ms 1", "EXEC"}},
	} {
		w := newWatcher(tc.kind, Complete, "p")
		multi := false
		for _, c := range tc.commands {
			s := &sent{program: "one", conn: 1, at: time.Now(), args: strings.Fields(c)}
			multi = !s.is("EXEC") && multi
			s.inMulti = multi
			multi = multi || s.is("MULTI")
			w.sawCommand(s)
		}
		rule := ""
		if w.first != nil {
			rule = w.first.Name
		}
		if rule != tc.rule {
			t.Errorf("%s: broke rule %q; want %q (%v)", tc.commands, rule, tc.rule, w.first)
		}
	}
}

// A tap reports the commands of one program, each with its reply, also in a pipeline and in a transaction. It reports a
// reply before the program can act on it. It cuts the network of that program only.
func TestATapReportsEachCommandAndReply(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	w := newWatcher(Worker, Good, server.Prefix(t))
	tap, err := newTap(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Addr())
	}, func(s *sent) { s.program = "it"; w.sawCommand(s) }, w.sawReply)
	if err != nil {
		t.Fatal(err)
	}
	defer tap.end()
	// talk sends commands through the tap as a pipeline, and returns the connection when all replies have come.
	talk := func(commands ...string) net.Conn {
		conn, err := net.Dial("tcp", tap.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		replies := resp.NewReader(conn)
		for _, c := range commands {
			if _, err := conn.Write(resp.Command(strings.Fields(c)...)); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range commands {
			if _, err := replies.Reply(); err != nil {
				t.Fatal(c, err)
			}
		}
		return conn
	}
	key := w.prefix + ":{q}:stream"
	conn := talk("HELLO 3", "XGROUP CREATE "+key+" g 0 MKSTREAM",
		"multi", "XADD "+key+" 1-1 id a", "XACK "+key+" g 0-0", "EXEC",
		"XREADGROUP GROUP g one COUNT 1 STREAMS "+key+" >", "XPENDING "+key+" g")
	all := w.commands()
	want := []string{"", "", "OK", "1-1", "0", "", "", ""} // replies in the order of the commands; "": any
	for i, s := range all {
		// The commands between MULTI and EXEC have the indices 3 and 4.
		if !s.answered || want[i] != "" && s.reply.Text != want[i] || s.inMulti != (i == 3 || i == 4) {
			t.Errorf("%s: %+v", s.text(), s)
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d commands; want %d", len(all), len(want))
	}

	tap.away(true)
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that was cut had a reply", n)
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
