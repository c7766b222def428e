package model

import (
	"cmp"
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

	"github.com/duestream/duestream/lua"
)

const (
	never   = 1e15 // a due time from here on is never reached
	anyText = "…"  // stands for an error text that the protocol does not define
)

type fields = map[string]string

// The fields of a dead letter that describe the letter itself and the failed attempt. A redrive drops them, and the
// old expiry too.
var ofTheLetter = []string{
	lua.FieldID, lua.FieldPayload, lua.FieldAttempt, lua.FieldDue, lua.FieldGroup, lua.FieldReason, lua.FieldDead, lua.FieldEntry,
	lua.FieldError, lua.FieldMeta, lua.FieldRaw, lua.FieldExpires, lua.FieldFirstDue,
	lua.FieldSnoozes, lua.FieldCrashes,
}

// lettersOwn matches field names that a message cannot use in a dead letter. Such a field is stored with one more
// prefix "message:", and gets its own name back later.
var lettersOwn = regexp.MustCompile(`^(message:)*(group|entry|reason|dead_ms|meta|raw)$`)

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

func inMessage(name string) string {
	if lettersOwn.MatchString(name) {
		return strings.TrimPrefix(name, "message:")
	}
	return name
}

var count = regexp.MustCompile(`^[1-9][0-9]{0,14}$`)

// NewMessage parses a stored member, and records what is wrong with it.
func NewMessage(member string, due float64, payload, meta string) Message {
	m := Message{Due: due, Payload: payload, Meta: fields{}, Raw: meta}
	var object map[string]*string // pointers, because null is not a string
	if meta != "" && (!utf8.ValidString(meta) || json.Unmarshal([]byte(meta), &object) != nil || object == nil) {
		m.Broken = anyText
		return m
	}
	for name, value := range object {
		if value == nil || name == lua.FieldPayload || name == lua.FieldDue {
			m.Broken = anyText
			continue
		}
		m.Meta[name] = *value
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

// fields returns the fields of the entry that carries a message.
func (m Message) fields() fields {
	f := fields{lua.FieldAttempt: "1"}
	maps.Copy(f, m.Meta)
	f[lua.FieldPayload], f[lua.FieldDue] = m.Payload, m.dueMs()
	return f
}

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

// limitOf returns the limit of the message, or that of the policy if it has none. 0 means no limit.
func limitOf(e *Entry, name string, policy int64) int64 {
	if text := e.Fields[name]; text == "0" || count.MatchString(text) {
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	return policy
}

// countIn adds to the counter in a field. A value that is not a number counts as 0.
func countIn(f fields, name string, more int) int64 {
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

// keep adds a field to meta, which must be UTF-8. Any other value is stored in base64, under a name that says so.
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

// compareIDs compares entry IDs, which are two numbers. "" is before every other ID.
func compareIDs(a, b string) int {
	aMs, aSeq, _ := strings.Cut(a, "-")
	bMs, bSeq, _ := strings.Cut(b, "-")
	number := func(s string) uint64 {
		n, _ := strconv.ParseUint(s, 10, 64)
		return n
	}
	return cmp.Or(cmp.Compare(number(aMs), number(bMs)), cmp.Compare(number(aSeq), number(bSeq)))
}

func less(a, b string) bool { return compareIDs(a, b) < 0 }

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
