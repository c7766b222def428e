package doctor

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/duestream/duestream/lua"
)

// Limits of an entry, the same as those in lua/lib/entry.lua.
const (
	metaMost   = 512 << 10
	fieldsMost = 1000
)

// isPlain reports whether a member is certainly a valid message ID: it is not empty, not a retry's, and ASCII.
func isPlain(member string) bool {
	return member != "" && !strings.ContainsFunc(member, func(r rune) bool { return r == 0x1f || r >= 0x80 })
}

// malformed returns what is wrong with a member of the schedule and its meta by the rules of the drain script, or "" if
// nothing is wrong. meta is nil if the member has no meta.
func malformed(member string, meta *string) string {
	id, fields := member, map[string]string{}
	if meta != nil {
		var wrong string
		if fields, wrong = parseMeta(*meta); wrong != "" {
			return wrong
		}
		if own, ok := fields[lua.FieldID]; ok {
			id = own
		}
	}
	switch {
	case id == "" || strings.Contains(id, lua.Separator):
		return "no message ID: an empty member, or a retry without its meta"
	case !utf8.ValidString(id):
		return "the message ID is not UTF-8"
	}
	for _, name := range []string{lua.FieldAttempt, lua.FieldMaxAttempts, lua.FieldExpires} {
		if value, ok := fields[name]; ok && !isCount(value) {
			return name + " is not a positive whole number"
		}
	}
	return ""
}

// parseMeta returns the fields of a meta, or what is wrong with the meta.
func parseMeta(meta string) (fields map[string]string, wrong string) {
	var raw map[string]any
	switch {
	case len(meta) > metaMost:
		return nil, "meta is larger than 512 KiB"
	case !utf8.ValidString(meta):
		return nil, "meta is not UTF-8"
	case strings.Contains(meta, "\x00"):
		return nil, "meta holds a NUL byte"
	}
	text, ok := asLua(meta)
	if !ok || json.Unmarshal([]byte(text), &raw) != nil || raw == nil {
		return nil, "meta is not a JSON object"
	}
	fields = make(map[string]string, len(raw))
	for name, value := range raw {
		text, ok := value.(string)
		switch {
		case !ok:
			return nil, "meta field " + shown(name) + " is not a string"
		case name == lua.FieldPayload || name == lua.FieldDue:
			return nil, "meta may not hold " + name
		}
		fields[name] = text
	}
	inEntry := len(fields) + 4 // the entry always has id, payload, attempt and due_ms
	for _, name := range []string{lua.FieldID, lua.FieldAttempt} {
		if _, ok := fields[name]; ok {
			inEntry--
		}
	}
	if inEntry > fieldsMost {
		return nil, "more than 1000 fields"
	}
	return fields, ""
}

// asLua rewrites JSON so that Go's decoder accepts the same texts as the scripts' decoder. The scripts' decoder
// accepts control characters inside strings, so asLua escapes them. The scripts' decoder refuses half a surrogate
// pair; then ok is false.
func asLua(meta string) (text string, ok bool) {
	var b strings.Builder
	inside := false
	for i := 0; i < len(meta); i++ {
		switch c := meta[i]; {
		case c == '"':
			inside = !inside
			b.WriteByte(c)
		case inside && c < ' ':
			fmt.Fprintf(&b, `\u%04x`, c)
		case inside && c == '\\' && i+1 < len(meta):
			length := 2
			if code, escaped := escape(meta[i:]); escaped {
				length = 6
				if utf16.IsSurrogate(code) {
					low, _ := escape(meta[i+length:])
					if utf16.DecodeRune(code, low) == utf8.RuneError {
						return "", false
					}
					length = 12
				}
			}
			b.WriteString(meta[i : i+length])
			i += length - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}

// escape reads the escape at the beginning of a text: \u and four hexadecimal digits.
func escape(text string) (rune, bool) {
	if len(text) < 6 || text[:2] != `\u` {
		return 0, false
	}
	n, err := strconv.ParseUint(text[2:6], 16, 16)
	return rune(n), err == nil
}

// isCount reports whether a text is a positive whole number of at most 15 digits.
func isCount(text string) bool {
	return text != "" && len(text) <= 15 && text[0] != '0' && strings.Trim(text, "0123456789") == ""
}

// metaField returns a field of a valid meta.
func metaField(meta, name string) string {
	fields, _ := parseMeta(meta)
	return fields[name]
}
