package model

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

const (
	never   = 1e15 // a due time from here on is never reached
	anyText = "…"  // stands for an error text that the protocol does not define
)

type fields = map[string]string

// ofTheLetter has the fields of a dead letter that a redrive drops or sets anew: those that describe the letter itself
// and the failed attempt, and the old expiry.
var ofTheLetter = []string{
	lua.FieldID, lua.FieldPayload, lua.FieldAttempt, lua.FieldDue, lua.FieldGroup, lua.FieldReason, lua.FieldDead, lua.FieldEntry,
	lua.FieldError, lua.FieldMeta, lua.FieldRaw, lua.FieldExpires, lua.FieldFirstDue,
	lua.FieldSnoozes, lua.FieldCrashes,
}

// lettersOwn matches field names that a message cannot use in a dead letter. Such a field is stored with one more
// prefix "message:", and gets its own name back later.
var lettersOwn = regexp.MustCompile(`^(message:)*(group|entry|reason|dead_ms|meta|raw)$`)

// inLetter returns the fields of a message as they are stored in a dead letter.
func inLetter(message fields) fields {
	letter := fields{}
	for name, value := range message {
		if lettersOwn.MatchString(name) {
			name = "message:" + name
		}
		letter[name] = value
	}
	return letter
}

// inMessage returns the name of a dead letter's field in a message.
func inMessage(name string) string {
	if lettersOwn.MatchString(name) {
		return strings.TrimPrefix(name, "message:")
	}
	return name
}

// count matches the text of a whole number from 1 to 15 digits.
var count = regexp.MustCompile(`^[1-9][0-9]{0,14}$`)

// NewMessage parses a stored member, and records what is wrong with it.
func NewMessage(member string, due float64, payload, meta string) Message {
	m := Message{Due: due, Payload: payload, Meta: fields{}, Raw: meta}
	if meta != "" {
		object, readable := readMeta(meta)
		if !readable {
			m.Broken = anyText
			return m
		}
		m.Meta = object
	}
	id, ok := m.Meta[lua.FieldID]
	if !ok {
		id, m.Meta[lua.FieldID] = member, member
	}
	for _, name := range []string{lua.FieldAttempt, lua.FieldMaxAttempts, lua.FieldExpires} {
		if value, ok := m.Meta[name]; ok && !count.MatchString(value) {
			m.Broken = anyText
		}
	}
	if key, ok := m.Meta[lua.FieldKey]; !usableID(id) || ok && !usableKey(key) {
		m.Broken = anyText
	}
	return m
}

// readMeta reads a JSON object of strings with Go's decoder, token by token. The scripts' decoder accepts control
// characters inside strings, so they are escaped first. Of two fields with one name, the last one counts.
func readMeta(meta string) (fields map[string]string, ok bool) {
	if len(meta) > 512<<10 || !utf8.ValidString(meta) || strings.Contains(meta, "\x00") || halfCharacter(meta) {
		return nil, false
	}
	meta = escapeControls(meta)
	dec := json.NewDecoder(strings.NewReader(meta))
	dec.UseNumber() // no number loses digits
	if open, _ := dec.Token(); open != json.Delim('{') || !json.Valid([]byte(meta)) {
		return nil, false
	}
	fields, odd := map[string]string{}, map[string]bool{}
	for dec.More() {
		name, _ := dec.Token()
		var value any
		if dec.Decode(&value) != nil {
			return nil, false
		}
		text, isText := value.(string)
		fields[name.(string)], odd[name.(string)] = text, !isText
	}
	for name, isOdd := range odd {
		if isOdd || name == lua.FieldPayload || name == lua.FieldDue {
			return nil, false
		}
	}
	return fields, true
}

// halfCharacter reports whether a text has an escape of a surrogate (half of a character) without its other half.
func halfCharacter(text string) bool {
	for i := strings.IndexByte(text, '\\'); i >= 0 && i+1 < len(text); {
		step := 2
		if unit := escapedUnit(text[i:]); unit >= 0xdc00 && unit < 0xe000 {
			return true
		} else if unit >= 0xd800 && unit < 0xdc00 {
			if low := escapedUnit(text[i+6:]); low < 0xdc00 || low >= 0xe000 {
				return true
			}
			step = 12
		}
		next := strings.IndexByte(text[i+step:], '\\')
		if next < 0 {
			return false
		}
		i += step + next
	}
	return false
}

// escapedUnit returns the number of a \u escape at the beginning of text, or -1.
func escapedUnit(text string) int64 {
	if len(text) < 6 || text[:2] != `\u` {
		return -1
	}
	n, err := strconv.ParseUint(text[2:6], 16, 16)
	if err != nil {
		return -1
	}
	return int64(n)
}

// escapeControls escapes the control characters inside the strings of a JSON text.
func escapeControls(text string) string {
	var out strings.Builder
	inside, escaped := false, false
	for _, c := range []byte(text) {
		switch {
		case escaped: // not changed: a control character behind a backslash is invalid in any case
			escaped = false
		case inside && c < ' ':
			fmt.Fprintf(&out, `\u%04x`, c)
			continue
		case inside && c == '\\':
			escaped = true
		case c == '"':
			inside = !inside
		}
		out.WriteByte(c)
	}
	return out.String()
}

// fields returns the fields of the entry that carries a message.
func (m Message) fields() fields {
	f := fields{lua.FieldAttempt: "1"}
	maps.Copy(f, m.Meta)
	f[lua.FieldPayload], f[lua.FieldDue] = m.Payload, m.dueMs()
	return f
}

// dueMs returns the due time of a message as its entry has it: in whole ms, and not negative.
func (m Message) dueMs() string { return decimal(int64(math.Ceil(max(0, m.Due)))) }

func (m Message) expired(now int64) bool {
	expires, err := strconv.ParseInt(m.Meta[lua.FieldExpires], 10, 64)
	return err == nil && expires <= now
}

func (e *Entry) messageID() string {
	if id, ok := e.Fields[lua.FieldID]; ok {
		return id
	}
	return e.ID
}

// canBeCarried reports whether a retry can carry the fields of an entry: names must be UTF-8, values must be short, and
// a value that is not UTF-8 needs its name for base64.
func (e *Entry) canBeCarried() bool {
	for name, value := range e.Fields {
		_, taken := e.Fields["b64:"+name]
		long := name != lua.FieldPayload && len(value) > 64<<10
		if !utf8.ValidString(name) || long || taken && !utf8.ValidString(value) {
			return false
		}
	}
	return true
}

func (e *Entry) size() int {
	n := 0
	for name, value := range e.Fields {
		n += len(name) + len(value)
	}
	return n
}

// attemptsOf returns which attempt an entry is and how many are allowed. It returns false if these fields are
// invalid.
func attemptsOf(e *Entry, policy lua.Attempts) (attempt, limit int, ok bool) {
	attempt, limit = 1, policy.Max
	for name, n := range map[string]*int{lua.FieldAttempt: &attempt, lua.FieldMaxAttempts: &limit} {
		if text, there := e.Fields[name]; there {
			if !count.MatchString(text) {
				return 0, 0, false
			}
			*n, _ = strconv.Atoi(text)
		}
	}
	return attempt, limit, true
}

// limitOf returns the limit in a field of the entry, or that of the policy if the entry has none. 0 means no limit.
func limitOf(e *Entry, name string, policy int64) int64 {
	if text := e.Fields[name]; text == "0" || count.MatchString(text) {
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	return policy
}

// raise adds to the counter in a field, and returns its new value. A value that is not a number counts as 0.
func raise(f fields, name string, more int) int64 {
	n := int64(0)
	if count.MatchString(f[name]) {
		n, _ = strconv.ParseInt(f[name], 10, 64)
	}
	f[name] = decimal(n + int64(more))
	return n + int64(more)
}

// delaysOf returns the delays of the message, or those of the policy if it has none.
func delaysOf(e *Entry, policy lua.Attempts) []time.Duration {
	if own := lua.Delays(e.Fields[lua.FieldRetryDelays]); own != "" && lua.CheckDelays(own) == nil {
		return own.List()
	}
	return policy.Delays
}

// firstDue returns when an entry's message was due first. If that is not stored, it is the time when the entry was
// added.
func firstDue(e *Entry) int64 {
	for _, name := range []string{lua.FieldFirstDue, lua.FieldDue} {
		if text := e.Fields[name]; count.MatchString(text) {
			n, _ := strconv.ParseInt(text, 10, 64)
			return n
		}
	}
	added, _, _ := strings.Cut(e.ID, "-")
	n, _ := strconv.ParseInt(added, 10, 64)
	return n
}

func usableID(id string) bool {
	return id != "" && utf8.ValidString(id) && !strings.Contains(id, lua.Separator)
}

// keep adds a field to meta. A value that is not UTF-8 is stored in base64, under the name with the prefix "b64:".
func keep(f fields, name, value string) {
	if utf8.ValidString(value) {
		f[name] = value
	} else {
		f["b64:"+name] = base64.StdEncoding.EncodeToString([]byte(value))
	}
}

// when returns a point in time from its form for the scripts: '+ms' from now, or Unix ms.
func when(w lua.When, now int64) int64 {
	text, relative := strings.CutPrefix(string(w), "+")
	ms, _ := strconv.ParseInt(text, 10, 64)
	if relative {
		return now + ms
	}
	return ms
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// less reports whether an entry ID comes before another. "" comes before every other ID.
func less(a, b string) bool { return view.CompareEntries(a, b) < 0 }

func show(f fields) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		out = append(out, fmt.Sprintf("%s=%q", name, f[name]))
	}
	return strings.Join(out, " ")
}

// atoi returns 0 for text that is not a number.
func atoi(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
