package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// hostile attacks a terminal: it clears it, sets its title and turns the direction of writing, with 7-bit and with
// 8-bit codes.
const hostile = "x\x1b[2J\x1b]0;title\x07\r\b\x7f\u009b31m\u202egnp\u2066\u2028\xff\x9b2J"

// orders returns the places of a text with characters that a terminal obeys or that mislead a reader.
func orders(text string) (found []string) {
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		if r != '\n' && r != '\t' && (term.IsOrder(r) || r == utf8.RuneError && size == 1) {
			found = append(found, text[max(0, i-10):i+size])
		}
	}
	return found
}

// The bug: a reason given to FCALL printed escape sequences in the lists of dead letters. Whatever a foreign client
// writes anywhere, no command prints a control sequence, neither as text nor as JSON nor in an error.
func TestNoTextFromRedisGivesATerminalOrders(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	do := func(args ...string) {
		t.Helper()
		if err := c.redis().Do(t.Context(), c.redis().B().Arbitrary(args...).Build()).Error(); err != nil {
			t.Fatal(args, err)
		}
	}
	do("HSET", c.prefix+":queues", "q", "1", hostile, "1")
	do("XGROUP", "CREATE", c.key("q", "stream"), hostile, "0", "MKSTREAM")
	do("XADD", c.key("q", "stream"), "1-1", "id", hostile, "payload", hostile, "attempt", "1", "h:"+hostile, hostile,
		"error", hostile, "for", hostile)
	do("XREADGROUP", "GROUP", hostile, hostile, "COUNT", "1", "STREAMS", c.key("q", "stream"), ">")
	do("XADD", c.key("q", "dead"), "1-1", "id", hostile, "payload", hostile, "group", hostile, "reason", hostile, "error",
		hostile, "attempt", hostile,
		"h:"+hostile, hostile, hostile, hostile, "dead_ms", "1", "entry", hostile)
	do("ZADD", c.key("q", "due"), "4102444800000", hostile)
	do("HSET", c.key("q", "payload"), hostile, hostile)
	do("HSET", c.key("q", "meta"), hostile, `{"h:`+"\u009b"+`":"`+"\u202e"+`"}`)
	do("HSET", c.key("q", "policy"), "max_attempts", hostile)
	do("ZADD", c.prefix+":bridges", "1", hostile)
	for _, line := range []string{
		"stats", "stats q", "peek q --payload", "queue show", "queue show q", "consumers q", "dead list q", "dead list q --summary", "dead show q 1-1", "find x",
		"health", "top --once --interval 100ms", "doctor --quick", "export q", "dead redrive q --all --dry-run", "dead purge q --all --dry-run", "functions show",
		"show q x", "dead show q 2-2", "cancel q x", "pending q x",
	} {
		var three sync.WaitGroup
		for _, with := range []string{"", " --json", " --color always"} {
			if with == " --json" && line == "export q" {
				continue
			}
			three.Go(func() {
				r := c.run(strings.Fields(line + with)...)
				for _, text := range []string{r.out, r.err} {
					if with == " --color always" {
						text = controls.ReplaceAllString(text, "")
					}
					if bad := orders(text); len(bad) > 0 {
						t.Errorf("%s%s prints %q", line, with, bad)
					}
				}
			})
		}
		three.Wait()
	}
}

func FuzzHarmless(f *testing.F) {
	f.Add(hostile, true, 3)
	f.Add("plain \x1b[31mred\x1b[0m é 😀", false, 1)
	f.Fuzz(func(t *testing.T, text string, inJSON bool, cut int) {
		var out bytes.Buffer
		a := &printer{json: inJSON, color: "never"}
		o := a.outlet(&out)
		whole := text
		if inJSON {
			var line bytes.Buffer
			_ = encoder(&line).Encode(text)
			whole = line.String()
		}
		cut = min(max(0, cut), len(whole))
		_, _ = o.Write([]byte(whole[:cut]))
		_, _ = o.Write([]byte(whole[cut:]))
		_ = o.End()
		if bad := orders(out.String()); len(bad) > 0 {
			t.Errorf("%q gives %q", whole, bad)
		}
		var back string
		if inJSON && (json.Unmarshal(out.Bytes(), &back) != nil || back != strings.ToValidUTF8(text, "\ufffd") &&
			utf8.ValidString(text)) {
			t.Errorf("%q became %q", text, back)
		}
	})
}
