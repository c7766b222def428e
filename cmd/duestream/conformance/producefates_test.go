package conformance

import (
	"bufio"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// The fates of the network cases work: for a lost reply, the server has executed the whole command and the program
// gets nothing; a lost command never reaches the server; a held command or reply arrives later.
func TestALostReplyIsLostAndTheCommandIsNot(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	key := s.Prefix(t) + ":{q}:due"
	dial := func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr()) }
	tap, err := newTap(dial, func(*sent) {}, func(*sent, value) {})
	if err != nil {
		t.Fatal(err)
	}
	defer tap.end()
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
		what   doom
		member string
		there  string
		said   string
	}{{breakBehind, "behind", "1", ""}, {breakBefore, "before", "0", ""}} {
		f := tap.doom(tc.what, 1, nil, decides)
		if got := said("ZADD " + key + " 1 " + tc.member); got != tc.said {
			t.Errorf("%s: the program was told %q", tc.member, got)
		}
		<-f.met
		if got := s.Do(t, "ZCOUNT", key, "1", "1"); got != tc.there {
			t.Errorf("%s: the server has %s members; want %s", tc.member, got, tc.there)
		}
		s.Do(t, "DEL", key)
	}
	for what, member := range map[doom]string{holdCommand: "command", holdReply: "reply"} {
		release := make(chan struct{})
		f := tap.doom(what, 1, release, decides)
		go func() {
			<-f.met
			close(release)
		}()
		if got := said("ZADD " + key + " 1 " + member); got != ":1\r\n" {
			t.Errorf("held %s: the program was told %q", member, got)
		}
	}
	s.Do(t, "DEL", key)
}
