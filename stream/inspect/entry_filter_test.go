package inspect

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
)

// pieces is a connection on which a text arrives in pieces of random size.
type pieces struct {
	net.Conn
	text string
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), 1+rand.IntN(9))], p.text)
	p.text = p.text[n:]
	return n, nil
}

func resp(text string) string { return strings.ReplaceAll(text, " ", "\r\n") + "\r\n" }

func TestFilterKeepsTheEntriesOfTheMessageAndPassesOnAllElse(t *testing.T) {
	t.Parallel()
	entry := func(n, id string) string { return "*2 $3 " + n + "-0 *4 $2 id $2 " + id + " $7 payload $3 x\ny" }
	for _, c := range []struct{ name, in, out string }{
		{"a page", "*3 " + entry("1", "no") + " " + entry("2", "me") + " " + entry("3", "no"),
			"*2 " + entry("2", "me") + " *2 $3 3-0 *4 $8 " + summaryField + " $5 3_<size> $5 first $3 1-0"},
		{"nothing of it is the message's", "*1 " + entry("1", "no"), "*1 *2 $3 1-0 *4 $8 " + summaryField +
			" $4 1_<size> $5 first $3 1-0"},
		{"an empty page", "*0", "*0"},
		{"a status", "+OK", "+OK"}, {"an error", "-ERR no", "-ERR no"}, {"a number", ":12", ":12"}, {"null", "_", "_"},
		{"old null", "*-1", "*-1"},
		{"no bulk", "$-1", "$-1"}, {"bulk", "$2 me", "$2 me"}, {"empty bulk", "$0 ", "$0 "},
		{"HELLO", "%2 $6 server $5 redis $7 modules *1 %1 $4 name $2 me", "%2 $6 server $5 redis $7 modules *1 %1 $4 name $2 me"},
		{"HELLO of RESP2", "*4 $6 server $5 redis $7 modules *0", "*4 $6 server $5 redis $7 modules *0"},
		{"slots", "*1 *3 :0 :16383 *2 $4 host :6379", "*1 *3 :0 :16383 *2 $4 host :6379"},
		{"pairs that are no entries", "*2 *2 $1 a $2 me *2 $1 b $1 c", "*2 *2 $1 a $2 me *2 $1 b $1 c"},
		{"a push before the reply", ">2 $1 a $1 b +OK", ">2 $1 a $1 b +OK"},
		{"an attribute", "|1 $1 a $1 b :1", "|1 $1 a $1 b :1"},
		{"an attribute in a list", "*2 |1 $1 a $1 b :1 :2", "*2 |1 $1 a $1 b :1 :2"},
	} {
		for range 20 {
			in := resp(c.in)
			s := &filterConn{Conn: &pieces{text: in + in + "+END\r\n"}, filter: entryFilter{id: []byte("me")}}
			out, err := io.ReadAll(s)
			want := resp(c.out)
			want = strings.ReplaceAll(want, "_<size>", fmt.Sprint(" ", len(in))) // after the number of entries
			if string(out) != want+want+"+END\r\n" || err != nil {
				t.Fatalf("%s: %v\ngot  %q\nwant %q", c.name, err, out, want+want+"+END\r\n")
			}
		}
	}
}

func TestFilterRefusesWhatIsNoReply(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"*x\r\n", "$1x\r\na\r\n", "\n", "*\r\n", "$99999999999999999999\r\n",
		strings.Repeat("a", 70_000)} {
		s := &filterConn{Conn: &pieces{text: text}, filter: entryFilter{id: []byte("me")}}
		if _, err := io.ReadAll(s); !errors.Is(err, errNotRESP) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	s := &filterConn{Conn: &pieces{text: "*2\r\n+a\r\n"}, filter: entryFilter{id: []byte("me")}}
	if out, err := io.ReadAll(s); len(out) > 0 || err != nil { // the connection ended
		t.Errorf("%q, %v", out, err)
	}
}
