package transfer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
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
	"github.com/duestream/duestream/stream/deadletter"
)

// RecordKind says what a Record is.
type RecordKind string

// Kinds of a Record.
const (
	RecordScheduled RecordKind = "scheduled" // waits for its due time, a retry or a redriven letter included
	RecordReady     RecordKind = "ready"     // an entry that one group, or none yet, has not acknowledged
	RecordDead      RecordKind = "dead"      // a dead letter
)

// Record is a message as an export has it: all that Redis holds of it. What would not come back the same from the named fields
// stands in those that end in _base64 instead, as Redis has it.
type Record struct {
	Kind        RecordKind        `json:"kind"`
	ID          string            `json:"id,omitempty"`
	Due         int64             `json:"due_ms,omitempty"`
	Payload     view.Payload      `json:"payload"` // a string, {"base64": "…"} when it is not UTF-8, null when it was lost
	Headers     map[string]string `json:"headers,omitempty"`
	Attempt     int               `json:"attempt,omitempty"` // absent = 1
	For         string            `json:"for,omitempty"`     // scheduled, ready: the only group it is for
	Entry       string            `json:"entry,omitempty"`   // of a retry, ready or dead: the stream entry
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     int64             `json:"expires_ms,omitempty"`
	Error       string            `json:"error,omitempty"`
	Letter      string            `json:"letter,omitempty"` // dead: its name; scheduled: ID of the dead letter that was redriven
	Group       string            `json:"group,omitempty"`  // dead only, as the three below
	Reason      string            `json:"reason,omitempty"`
	Dead        int64             `json:"dead_ms,omitempty"`
	Extra       map[string]string `json:"extra,omitempty"` // fields nobody knows

	Member []byte   `json:"member_base64,omitempty"` // scheduled: the member of the schedule
	Meta   []byte   `json:"meta_base64,omitempty"`   // scheduled: its meta
	Fields [][]byte `json:"fields_base64,omitempty"` // dead: fields and values in turn
}

// Bounds of what a record may hold besides its payload.
const (
	maxDue        = 1<<53 - 1
	maxMetaBytes  = 512 << 10
	maxMetaFields = 1000
	maxFields     = 4000
)

var (
	recordEntry  = regexp.MustCompile(`^[0-9]{1,20}-[0-9]{1,20}$`)
	recordLetter = regexp.MustCompile(`^([1-9][0-9]{0,2}/)?[0-9]{1,20}-[0-9]{1,20}$`)
)

// Check refuses what Import cannot write. It does not touch Redis. ErrInvalid.
func (r Record) Check() error {
	errs := []error{lua.CheckPayload(r.Payload)}
	switch r.Kind {
	case RecordScheduled, RecordReady:
		errs = append(errs, r.checkMessage())
	case RecordDead:
		if !recordLetter.MatchString(r.Letter) {
			errs = append(errs, lua.Invalid("letter", r.Letter, "must be the name of a dead letter"))
		}
		if len(r.Fields)%2 != 0 || len(r.Fields) > maxFields {
			errs = append(errs, lua.Invalid("fields_base64", fmt.Sprint(len(r.Fields)),
				"must be fields and values in turn, at most %d", maxFields))
		}
		if len(r.Fields) == 0 {
			errs = append(errs, r.checkNames())
		}
	default:
		errs = append(errs, lua.Invalid("kind", string(r.Kind), "must be scheduled, ready or dead"))
	}
	return errors.Join(errs...)
}

func (r Record) checkMessage() error {
	if r.Due < 0 || r.Due > maxDue {
		return lua.Invalid("due_ms", fmt.Sprint(r.Due), "must be between 0 and %d", int64(maxDue))
	}
	if r.Member != nil {
		if len(r.Member) == 0 || len(r.Meta) > maxMetaBytes {
			return lua.Invalid("member_base64", string(r.Member), "must not be empty, nor have more than %d bytes of meta",
				maxMetaBytes)
		}
		return nil
	}
	errs := []error{lua.CheckID(r.ID), lua.CheckHeaders(r.Headers), r.checkNames()}
	if r.For != "" {
		errs = append(errs, lua.CheckGroup(r.For))
	}
	if r.Entry != "" && !recordEntry.MatchString(r.Entry) || r.Entry == "" && r.Kind == RecordReady {
		errs = append(errs, lua.Invalid("entry", r.Entry, "must be <milliseconds>-<sequence>"))
	}
	if r.Letter != "" && (!recordEntry.MatchString(r.Letter) || r.Entry != "") {
		errs = append(errs, lua.Invalid("letter", r.Letter, "must be <milliseconds>-<sequence>, and without an entry"))
	}
	if r.Attempt != 0 && lua.CheckMaxAttempts(r.Attempt) != nil {
		errs = append(errs, lua.Invalid("attempt", fmt.Sprint(r.Attempt), "must be between 1 and %d", lua.MaxAttemptsLimit))
	}
	if r.MaxAttempts != 0 {
		errs = append(errs, lua.CheckMaxAttempts(r.MaxAttempts))
	}
	if r.Expires < 0 {
		errs = append(errs, lua.Invalid("expires_ms", fmt.Sprint(r.Expires), "must not be negative"))
	}
	if len(r.Error) > lua.MaxErrorBytes {
		errs = append(errs, lua.Invalid("error", r.Error, "must be at most %d bytes", lua.MaxErrorBytes))
	}
	return errors.Join(errs...)
}

// recordFields are the fields that a record has a name for.
var recordFields = []string{
	lua.FieldID, lua.FieldPayload, lua.FieldAttempt, lua.FieldDue, lua.FieldMaxAttempts, lua.FieldExpires, lua.FieldFor,
	lua.FieldError,
}

// ofLetters are those that only dead letters have.
var ofLetters = []string{lua.FieldGroup, lua.FieldReason, lua.FieldDead, lua.FieldEntry}

// checkNames refuses extra fields that have a name of their own, and more of them than an entry takes.
func (r Record) checkNames() error {
	bytes := 0
	for name, value := range r.Extra {
		bytes += len(name) + len(value)
		if slices.Contains(recordFields, name) && (r.Kind != RecordDead || name != lua.FieldFor) || r.Kind == RecordDead &&
			slices.Contains(ofLetters, name) ||
			strings.HasPrefix(name, lua.HeaderPrefix) {
			return lua.Invalid("extra", name, "has a place of its own")
		}
	}
	if bytes > maxMetaBytes/2 || len(r.Extra) > maxMetaFields-lua.MaxHeaders-len(recordFields) {
		return lua.Invalid("extra", fmt.Sprint(len(r.Extra)), "is too much")
	}
	return nil
}

// member is the record as the schedule keeps it: the member, and its meta.
func (r Record) member() (member, meta string) {
	if r.Member != nil {
		return string(r.Member), string(r.Meta)
	}
	fields := maps.Clone(r.Extra)
	if fields == nil {
		fields = map[string]string{}
	}
	for name, value := range r.Headers {
		fields[lua.HeaderPrefix+name] = value
	}
	set := func(name, value string, is bool) {
		if is {
			fields[name] = value
		}
	}
	set(lua.FieldMaxAttempts, strconv.Itoa(r.MaxAttempts), r.MaxAttempts != 0)
	set(lua.FieldExpires, strconv.FormatInt(r.Expires, 10), r.Expires != 0)
	set(lua.FieldError, r.Error, r.Error != "")
	set(lua.FieldFor, r.For, r.For != "")
	name := lua.Member{ID: r.ID, Group: r.For, Of: r.Entry}
	switch {
	case r.Letter != "":
		name.Kind, name.Of = lua.MemberRedriven, r.Letter
	case r.Kind == RecordReady:
		name.Kind = lua.MemberImported
	case r.Entry != "":
		name.Kind = lua.MemberRetry
	}
	again := name.Kind != lua.MemberFirst
	set(lua.FieldID, r.ID, again)
	set(lua.FieldAttempt, strconv.Itoa(max(1, r.Attempt)), again || r.Attempt > 1)
	member = name.String()
	if len(fields) == 0 {
		return member, ""
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // a map of strings always encodes
	}
	return member, string(text)
}

// messageID is the ID of the message, which says its partition.
func (r Record) messageID() string {
	if r.Member == nil {
		return r.ID
	}
	return lua.ParseMember(string(r.Member)).ID
}

// scheduledRecord is what the schedule holds under one member.
func scheduledRecord(found lua.Exported) Record {
	r := Record{Kind: RecordScheduled, Due: dueOf(found.Score), Payload: found.Payload}
	e, ok := lua.DecodeMeta(found.Member, found.Meta)
	raw := r
	raw.Member = []byte(found.Member)
	if found.Meta != "" {
		raw.Meta = []byte(found.Meta)
	}
	if !ok || !utf8.ValidString(found.Member) {
		return raw
	}
	name := lua.ParseMember(found.Member)
	switch name.Kind {
	case lua.MemberRetry:
		r.Entry = name.Of
	case lua.MemberRedriven:
		r.Letter = name.Of
	case lua.MemberImported: // what it was where it came from
		r.Kind, r.Entry = RecordReady, name.Of
	}
	if e.ID == found.Member {
		e.ID = name.ID
	}
	r.fill(e)
	member, meta := r.member()
	if r.Check() != nil || member != found.Member || !sameMeta(meta, found.Meta) {
		return raw
	}
	return r
}

// dueOf is a score as drain understands it: rounded up.
func dueOf(score string) int64 {
	f, err := strconv.ParseFloat(score, 64)
	if err != nil || math.IsNaN(f) {
		return 0
	}
	return int64(math.Ceil(min(max(f, 0), maxDue)))
}

// sameMeta reports whether two metas hold the same fields.
func sameMeta(a, b string) bool {
	if a == b {
		return true
	}
	var x, y map[string]string
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && maps.Equal(x, y)
}

func (r *Record) fill(e lua.Entry) {
	r.ID, r.Headers, r.MaxAttempts, r.For, r.Error, r.Extra = e.ID, e.Headers, e.MaxAttempts, e.For, e.Error, e.Extra
	if r.Attempt = e.Attempt; e.Attempt == 1 {
		r.Attempt = 0
	}
	r.Expires = unixMilli(e.Expires)
}

func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// readyRecord is an entry that a group still needs; without a group, one that no group exists for. ok is false for one that could
// not be delivered a second time, because of what it holds.
func readyRecord(entryID string, fields []lua.FieldValue, group string) (r Record, ok bool) {
	kept := make([]lua.FieldValue, len(fields))
	for i, f := range fields {
		if kept[i] = f; f.Field != lua.FieldPayload && !utf8.ValidString(f.Value) { // as a retry keeps it
			kept[i] = lua.FieldValue{Field: "b64:" + f.Field, Value: base64.StdEncoding.EncodeToString([]byte(f.Value))}
		}
		if !utf8.ValidString(f.Field) {
			return r, false
		}
	}
	e := lua.ParseEntry(entryID, kept)
	if e.Payload == nil {
		e.Payload = []byte{}
	}
	for _, name := range ofLetters { // a foreign entry may use these names; ParseEntry takes them for those of a letter
		for _, f := range kept {
			if f.Field == name {
				if e.Extra == nil {
					e.Extra = map[string]string{}
				}
				e.Extra[name] = f.Value
			}
		}
	}
	r = Record{Kind: RecordReady, Payload: e.Payload, Entry: entryID}
	if r.Due = unixMilli(e.Due); e.Due.IsZero() {
		r.Due = unixMilli(lua.EntryTime(entryID))
	}
	r.fill(e)
	if group != "" {
		r.For = group
	}
	for _, f := range kept { // what cannot be read is a malformed message for whoever holds it
		wrong := f.Field == lua.FieldAttempt && f.Value != strconv.Itoa(e.Attempt) ||
			f.Field == lua.FieldMaxAttempts && (e.MaxAttempts == 0 || f.Value != strconv.Itoa(e.MaxAttempts)) ||
			f.Field == lua.FieldExpires && f.Value != strconv.FormatInt(r.Expires, 10)
		if wrong {
			return r, false
		}
	}
	return r, r.Check() == nil
}

// fields is the record as a stream of dead letters has it.
func (r Record) fields() []lua.FieldValue {
	var all []lua.FieldValue
	add := func(name, value string, is bool) {
		if is {
			all = append(all, lua.FieldValue{Field: name, Value: value})
		}
	}
	if len(r.Fields) > 0 {
		for i := 0; i+1 < len(r.Fields); i += 2 {
			add(string(r.Fields[i]), string(r.Fields[i+1]), true)
		}
		return all
	}
	add(lua.FieldID, r.ID, r.ID != "")
	add(lua.FieldPayload, string(r.Payload), r.Payload != nil)
	for _, n := range []struct {
		name  string
		value int64
	}{{lua.FieldAttempt, int64(r.Attempt)}, {lua.FieldDue, r.Due}, {lua.FieldMaxAttempts, int64(r.MaxAttempts)},
		{lua.FieldExpires, r.Expires}, {lua.FieldDead, r.Dead}} {
		add(n.name, strconv.FormatInt(n.value, 10), n.value != 0)
	}
	for _, n := range [][2]string{{lua.FieldGroup, r.Group}, {lua.FieldReason, r.Reason}, {lua.FieldEntry, r.Entry},
		{lua.FieldError, r.Error}} {
		add(n[0], n[1], n[1] != "")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		add(lua.HeaderPrefix+name, r.Headers[name], true)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Extra)) {
		add(name, r.Extra[name], true)
	}
	return all
}

// deadRecord is a dead letter.
func deadRecord(partition int, entryID string, found []lua.FieldValue) Record {
	e := lua.ParseEntry(entryID, found)
	r := Record{Kind: RecordDead, Letter: deadletter.LetterName(partition, entryID), Payload: e.Payload}
	raw := r
	for _, f := range found {
		raw.Fields = append(raw.Fields, []byte(f.Field), []byte(f.Value))
	}
	raw.Payload = nil
	have := map[string]string{}
	for _, f := range found {
		if _, twice := have[f.Field]; twice || !utf8.ValidString(f.Field) || f.Field != lua.FieldPayload &&
			!utf8.ValidString(f.Value) {
			return raw
		}
		have[f.Field] = f.Value
	}
	r.fill(e)
	if _, says := have[lua.FieldID]; !says {
		r.ID = ""
	}
	if _, says := have[lua.FieldAttempt]; says {
		r.Attempt = e.Attempt
	}
	if f, says := have[lua.FieldFor]; says { // a foreign field: letters are for no one
		r.For = ""
		r.Extra = maps.Clone(r.Extra)
		if r.Extra == nil {
			r.Extra = map[string]string{}
		}
		r.Extra[lua.FieldFor] = f
	}
	r.Due, r.Dead, r.Group, r.Reason, r.Entry = unixMilli(e.Due), unixMilli(e.Dead), e.Group, e.Reason, e.Entry
	again := map[string]string{}
	for _, f := range r.fields() {
		again[f.Field] = f.Value
	}
	if r.Check() != nil || !maps.Equal(have, again) {
		return raw
	}
	return r
}
