package term

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Outlet is standard output or standard error. Everything that this command prints passes through an outlet. Texts from
// Redis (IDs, headers, errors, reasons, names) may hold characters that a terminal obeys instead of showing them. An
// outlet escapes those characters. It also remembers failed writes, because a command whose output is lost must fail.
type Outlet struct {
	raw    io.Writer
	json   func() bool  // reports whether the output is JSON
	styles func() Paint // whether colours are allowed

	mu      sync.Mutex
	partial []byte // beginning of a character whose other bytes come with the next write
	err     error  // first write error
}

// NewOutlet returns the outlet to a stream. Each write asks the functions whether the output is JSON and may be
// coloured.
func NewOutlet(raw io.Writer, json func() bool, styles func() Paint) *Outlet {
	return &Outlet{raw: raw, json: json, styles: styles}
}

// Write implements io.Writer.
func (o *Outlet) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := p
	if len(o.partial) > 0 {
		text, o.partial = append(o.partial, p...), nil
	}
	if cut := incomplete(text); cut > 0 {
		o.partial = append([]byte(nil), text[len(text)-cut:]...)
		text = text[:len(text)-cut]
	}
	if err := o.write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (o *Outlet) write(text []byte) error {
	if !isHarmless(text) {
		text = []byte(harmless(string(text), o.json(), bool(o.styles())))
	}
	_, err := o.raw.Write(text)
	if err != nil && o.err == nil {
		o.err = err
	}
	return err
}

// End writes the bytes of an incomplete character, and returns the first error of all writes.
func (o *Outlet) End() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if partial := o.partial; len(partial) > 0 {
		o.partial = nil
		_ = o.write(partial)
	}
	return o.err
}

// Failed returns the first error of all writes to a stream. A loop that prints calls it to notice lost output.
func Failed(stream io.Writer) error {
	o, ok := stream.(*Outlet)
	if !ok {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// incomplete returns how many bytes at the end of a text are an unfinished character.
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

// isHarmless is a quick check that nearly all texts pass. Other texts go through harmless, character by character.
func isHarmless(text []byte) bool {
	for _, b := range text {
		if (b < ' ' || b > '~') && b != '\n' && b != '\t' {
			return false
		}
	}
	return true
}

// harmless escapes characters that a terminal obeys or that mislead a reader: control characters (C0, DEL, C1),
// characters that change the direction of writing or are invisible, and bytes that are not UTF-8. Each becomes its Go
// escape, like \x1b. In JSON, where such a character can only be inside a string, it becomes its JSON escape. If styles
// is set, the colours of Paint stay.
func harmless(text string, inJSON, styles bool) string {
	var b strings.Builder
	b.Grow(len(text) + 16)
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		notUTF8 := r == utf8.RuneError && size == 1
		switch {
		case r == '\n' || r == '\t' || !notUTF8 && !IsControl(r):
			b.WriteString(text[i : i+size])
		case styles && r == '\x1b' && ourStyle(text[i:]) > 0:
			size = ourStyle(text[i:])
			b.WriteString(text[i : i+size])
		case notUTF8 && inJSON:
			b.WriteString("\ufffd")
		case notUTF8:
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

// IsControl reports whether a terminal may act on a character instead of showing it: control characters, format
// characters (directions of writing, invisible characters), line and paragraph separators, and private characters.
func IsControl(r rune) bool {
	if r == zeroWidthJoiner {
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co)
}

// zeroWidthJoiner occurs in many emoji, and is harmless.
const zeroWidthJoiner = '\u200d'

func jsonEscape(r rune) string {
	if r > 0xffff {
		high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// ourStyle returns the length of the style sequence at the beginning of text, or 0 if Paint writes no such sequence.
func ourStyle(text string) int {
	for _, s := range []Style{"0", Strong, Faint, Bad, Alert} {
		if sequence := "\x1b[" + string(s) + "m"; strings.HasPrefix(text, sequence) {
			return len(sequence)
		}
	}
	return 0
}
