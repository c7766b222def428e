package conformance

import (
	"bufio"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/resp"
)

// The network faults of a tap do what they say. When a reply is lost, the server has executed the whole command and the
// program gets nothing. A lost command never reaches the server. A held command or reply arrives later.
func TestALostReplyIsLostAndTheCommandIsNot(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	key := s.Prefix(t) + ":{q}:due"
	dial := func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr()) }
	tap, err := newTap(dial, func(*sent) {}, func(*sent, resp.Value) {})
	if err != nil {
		t.Fatal(err)
	}
	defer tap.end()
	// said sends commands through the tap on a new connection, and returns the first line of the reply, or "".
	said := func(commands ...string) string {
		t.Helper()
		conn, err := net.Dial("tcp", tap.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		for _, c := range commands {
			if _, err := io.WriteString(conn, c+"\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		line, _ := bufio.NewReader(conn).ReadString('\n')
		return line
	}
	for _, tc := range []struct {
		fault   faultKind
		member  string
		members string // number of members that the server then has
		said    string
	}{{breakBeforeReply, "behind", "1", ""}, {breakBeforeCommand, "before", "0", ""}} {
		f := tap.inject(tc.fault, 1, nil, storesMessage)
		if got := said("ZADD " + key + " 1 " + tc.member); got != tc.said {
			t.Errorf("%s: the program was told %q", tc.member, got)
		}
		<-f.happened
		if got := s.Do(t, "ZCOUNT", key, "1", "1"); got != tc.members {
			t.Errorf("%s: the server has %s members; want %s", tc.member, got, tc.members)
		}
		s.Do(t, "DEL", key)
	}
	for what, member := range map[faultKind]string{holdCommand: "command", holdReply: "reply"} {
		release := make(chan struct{})
		f := tap.inject(what, 1, release, storesMessage)
		go func() {
			<-f.happened
			close(release)
		}()
		if got := said("ZADD " + key + " 1 " + member); got != ":1\r\n" {
			t.Errorf("held %s: the program was told %q", member, got)
		}
	}
	s.Do(t, "DEL", key)
}
