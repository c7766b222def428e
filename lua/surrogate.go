package lua

import (
	"bytes"
	"strconv"
	"unicode"
	"unicode/utf16"
)

// HasHalfCharacter reports whether a JSON text has the escape of a surrogate (\ud800 to \udfff) without its other half.
// Go's decoder silently replaces such an escape by U+FFFD, and the decoder of the scripts refuses it.
func HasHalfCharacter(text []byte) bool {
	for {
		_, escape, found := bytes.Cut(text, []byte(`\`))
		if !found || len(escape) == 0 {
			return false
		}
		unit, rest, isUnicode := codeUnit(escape)
		if !isUnicode {
			text = escape[1:]
			continue
		}
		text = rest
		if !utf16.IsSurrogate(unit) {
			continue
		}
		escape, found = bytes.CutPrefix(text, []byte(`\`))
		second, rest, isUnicode := codeUnit(escape)
		if !found || !isUnicode || utf16.DecodeRune(unit, second) == unicode.ReplacementChar {
			return true
		}
		text = rest
	}
}

// codeUnit reads the u and the four hexadecimal digits of an escape, without its backslash.
func codeUnit(escape []byte) (unit rune, rest []byte, ok bool) {
	const length = len("u0000")
	if len(escape) < length || escape[0] != 'u' {
		return 0, nil, false
	}
	n, err := strconv.ParseUint(string(escape[1:length]), 16, 16)
	return rune(n), escape[length:], err == nil
}
