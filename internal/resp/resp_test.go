package resp

import (
	"reflect"
	"strings"
	"testing"
)

// Reply reads a value of every kind of RESP2 and RESP3, and not one byte more. Raw returns the bytes that it read. A
// value that is cut off or malformed is an error.
func TestReplyReadsEveryKind(t *testing.T) {
	for text, want := range map[string]Value{
		"+OK\r\n":           {Kind: '+', Text: "OK"},
		"-ERR no\r\n":       {Kind: '-', Text: "ERR no"},
		"!5\r\nE \r\nF\r\n": {Kind: '!', Text: "E \r\nF"},
		":-7\r\n":           {Kind: ':', Text: "-7"},
		",1.5\r\n":          {Kind: ',', Text: "1.5"},
		"#t\r\n":            {Kind: '#', Text: "t"},
		"_\r\n":             {Kind: '_', Null: true},
		"$-1\r\n":           {Kind: '$', Null: true},
		"*-1\r\n":           {Kind: '*', Null: true},
		"$0\r\n\r\n":        {Kind: '$'},
		"$4\r\n\r\n$1\r\n":  {Kind: '$', Text: "\r\n$1"},
		"=5\r\ntxt:a\r\n":   {Kind: '=', Text: "txt:a"},
		"*0\r\n":            {Kind: '*'},
		"*2\r\n:1\r\n*1\r\n+a\r\n": {Kind: '*',
			List: []Value{{Kind: ':', Text: "1"}, {Kind: '*', List: []Value{{Kind: '+', Text: "a"}}}}},
		"%1\r\n+a\r\n:1\r\n":              {Kind: '%', List: []Value{{Kind: '+', Text: "a"}, {Kind: ':', Text: "1"}}},
		"|1\r\n+ttl\r\n:9\r\n$1\r\nx\r\n": {Kind: '$', Text: "x"},
		">2\r\n+invalidate\r\n$1\r\nk\r\n": {Kind: '>',
			List: []Value{{Kind: '+', Text: "invalidate"}, {Kind: '$', Text: "k"}}},
	} {
		r := NewReader(strings.NewReader(text + "+next\r\n"))
		v, err := r.Reply()
		if err != nil || !reflect.DeepEqual(v, want) || string(r.Raw()) != text {
			t.Errorf("%q: %+v, %v, from %q; want %+v", text, v, err, r.Raw(), want)
		}
		if v, err := r.Reply(); err != nil || v.Text != "next" {
			t.Errorf("the value after %q: %+v, %v, want next", text, v, err)
		}
	}
	for _, bad := range []string{"", "\r\n", "?1\r\n", "$x\r\n", "$5\r\nab\r\n", "*2\r\n:1\r\n", "$999999999999\r\n"} {
		if v, err := NewReader(strings.NewReader(bad)).Reply(); err == nil {
			t.Errorf("%q: %+v", bad, v)
		}
	}
}

// Command reads the commands that the function Command writes, an empty line, and a command in one line without
// lengths.
func TestCommandReadsWhatCommandWrites(t *testing.T) {
	commands := [][]string{{"PING"}, {"SET", "k", "*1\r\n$4\r\nPING\r\n"}, {"SET", "", "\xff"}}
	var text []byte
	for _, args := range commands {
		text = append(text, Command(args...)...)
	}
	r := NewReader(strings.NewReader(string(text) + "\r\nget  k\r\n"))
	for _, want := range append(commands, nil, []string{"get", "k"}) {
		if args, err := r.Command(); err != nil || strings.Join(args, "|") != strings.Join(want, "|") {
			t.Errorf("%q, %v; want %q", args, err, want)
		}
	}
	for _, bad := range []string{"", "*1\r\n", "*1\r\n:1\r\n", "*1\r\n$-1\r\n", "*x\r\n", "*1\r\n$9\r\na\r\n"} {
		if args, err := NewReader(strings.NewReader(bad)).Command(); err == nil {
			t.Errorf("%q: %q", bad, args)
		}
	}
}
