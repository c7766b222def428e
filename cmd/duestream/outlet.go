package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// outlet is standard output or standard error: all that this command prints passes through one. Texts from Redis are foreign (IDs, headers,
// errors, reasons, names), and a terminal takes some of their characters for orders: an outlet lets none of them through, whoever
// prints. And it remembers that something could not be written: a command whose output is lost is not done.
type outlet struct {
	raw    io.Writer
	json   func() bool  // what is printed is JSON
	styles func() paint // whether it may be coloured

	mu   sync.Mutex
	rest []byte // the beginning of a character whose end was not written yet
	err  error  // the first
}

func (a *app) outlet(raw io.Writer) *outlet {
	o := &outlet{raw: raw, json: func() bool { return a.json }}
	o.styles = func() paint { return a.paint(raw) }
	return o
}

// Write implements io.Writer.
func (o *outlet) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := p
	if len(o.rest) > 0 {
		text, o.rest = append(o.rest, p...), nil
	}
	if cut := incomplete(text); cut > 0 {
		o.rest = append([]byte(nil), text[len(text)-cut:]...)
		text = text[:len(text)-cut]
	}
	if err := o.write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (o *outlet) write(text []byte) error {
	if !isHarmless(text) {
		text = []byte(harmless(string(text), o.json(), bool(o.styles())))
	}
	_, err := o.raw.Write(text)
	if err != nil && o.err == nil {
		o.err = err
	}
	return err
}

// end writes what is left, and returns the first error of all writes.
func (o *outlet) end() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if rest := o.rest; len(rest) > 0 {
		o.rest = nil
		_ = o.write(rest)
	}
	return o.err
}

// failed returns the first error of all writes, for what prints again and again.
func failed(stream io.Writer) error {
	o, ok := stream.(*outlet)
	if !ok {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// unfiltered returns the stream behind an outlet: for bytes that are wanted as they are, and for our own control sequences.
func unfiltered(stream any) any {
	if o, ok := stream.(*outlet); ok {
		return o.raw
	}
	return stream
}

// fileOf returns the file behind a stream, if it is one.
func fileOf(stream any) (*os.File, bool) {
	f, ok := unfiltered(stream).(*os.File)
	return f, ok
}

// incomplete returns how many bytes at the end of a text are the beginning of a character.
func incomplete(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if b := text[len(text)-n]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(text[len(text)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// isHarmless is the quick answer for nearly all texts; false says that harmless must look at each character.
func isHarmless(text []byte) bool {
	for _, b := range text {
		if (b < ' ' || b > '~') && b != '\n' && b != '\t' {
			return false
		}
	}
	return true
}

// harmless returns a text without characters that a terminal, or the eye behind it, takes for orders: control characters (C0, DEL, C1),
// those that turn the direction of writing or stand for nothing, and what is not UTF-8. Each becomes what stands for it in Go, like \x1b;
// in JSON, where they can only be parts of strings, the escape that means the same. Colours of ours stay where styles says so.
func harmless(text string, inJSON, styles bool) string {
	var b strings.Builder
	b.Grow(len(text) + 16)
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '\n' || r == '\t' || r != utf8.RuneError && !isOrder(r) || r == utf8.RuneError && size > 1:
			b.WriteString(text[i : i+size])
		case styles && r == '\x1b' && ourStyle(text[i:]) > 0:
			size = ourStyle(text[i:])
			b.WriteString(text[i : i+size])
		case r == utf8.RuneError && inJSON:
			b.WriteString("\ufffd")
		case r == utf8.RuneError:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case inJSON:
			b.WriteString(jsonEscape(r))
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// isOrder says whether a character is seen as something else than itself: control characters, formatting characters (directions of
// writing, invisible ones), and the separators of lines and paragraphs.
func isOrder(r rune) bool {
	return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r) && r != zeroWidthJoiner || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Co, r)
}

// zeroWidthJoiner is in many emoji, and orders nothing.
const zeroWidthJoiner = '\u200d'

func jsonEscape(r rune) string {
	if r > 0xffff {
		high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// ourStyle returns the length of a sequence that paint writes, at the beginning of a text; 0 = there is none.
func ourStyle(text string) int {
	for _, s := range []style{"0", strong, faint, bad, alert} {
		if sequence := "\x1b[" + string(s) + "m"; strings.HasPrefix(text, sequence) {
			return len(sequence)
		}
	}
	return 0
}

// note prints a line about what is going on, which is no result: on standard error, with --json as {"note":"…"}.
func (a *app) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !a.json {
		fmt.Fprintln(a.err, text)
		return
	}
	line, err := plainJSON(struct {
		Note string `json:"note"`
	}{text})
	if err != nil {
		panic(err) // a string always encodes
	}
	_, _ = a.err.Write(line)
}

// reported is an error as JSON.
type reported struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
	Hint  string `json:"hint,omitempty"`
}

func (a *app) reportJSON(r reported) {
	_ = json.NewEncoder(a.err).Encode(r)
}
