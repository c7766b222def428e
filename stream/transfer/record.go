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

// RecordKind is the kind of a Record.
type RecordKind string

// Kinds of a Record.
const (
	RecordScheduled RecordKind = "scheduled" // waits for its due time; includes retries and redriven letters
	RecordReady     RecordKind = "ready"     // an entry that one group has not acknowledged; without groups, any entry
	RecordDead      RecordKind = "dead"      // a dead letter
	// RecordRecurrence is a recurrence: its name is in ID, its spec in Payload, its plan in Plan.
	RecordRecurrence RecordKind = "recurrence"
)

// Record is one item of an export, with all data that Redis holds of it. If the named fields could not restore it
// exactly, the fields that end in _base64 hold the raw data instead.
type Record struct {
	Kind        RecordKind        `json:"kind"`
	ID          string            `json:"id,omitempty"`
	Due         int64             `json:"due_ms,omitempty"`
	Payload     view.Payload      `json:"payload"` // a string, {"base64": "…"} when it is not UTF-8, null when it was lost
	Headers     map[string]string `json:"headers,omitempty"`
	Attempt     int               `json:"attempt,omitempty"` // absent = 1
	For         string            `json:"for,omitempty"`     // scheduled, ready: the only group that gets the message
	Entry       string            `json:"entry,omitempty"`   // retry, ready, dead: ID of the stream entry
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     int64             `json:"expires_ms,omitempty"`
	Error       string            `json:"error,omitempty"`
	Letter      string            `json:"letter,omitempty"` // dead: its name; scheduled: ID of the redriven dead letter
	Group       string            `json:"group,omitempty"`  // only for dead, like Reason and Dead
	Reason      string            `json:"reason,omitempty"`
	Dead        int64             `json:"dead_ms,omitempty"`
	Extra       map[string]string `json:"extra,omitempty"` // unknown fields
	Plan        string            `json:"plan,omitempty"`  // recurrence: its plan; "" = planning starts anew

	Member []byte   `json:"member_base64,omitempty"` // scheduled: the member of the schedule
	Meta   []byte   `json:"meta_base64,omitempty"`   // scheduled: its meta
	Fields [][]byte `json:"fields_base64,omitempty"` // dead: fields and values in turn
}

// Bounds of a record's data besides its payload.
const (
	maxDue        = 1<<53 - 1
	maxMetaBytes  = 512 << 10
	maxMetaFields = 1000
	maxFields     = 4000
	maxPlan       = 16 << 10
)

var (
	recordEntry  = regexp.MustCompile(`^[0-9]{1,20}-[0-9]{1,20}$`)
	recordLetter = regexp.MustCompile(`^([1-9][0-9]{0,2}/)?[0-9]{1,20}-[0-9]{1,20}$`)
)

// Check returns ErrInvalid for a record that Import cannot write. It does not touch Redis.
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
	case RecordRecurrence:
		errs = append(errs, lua.CheckRecurrence(r.ID))
		errs = append(errs, r.checkPlan())
	default:
		errs = append(errs, lua.Invalid("kind", string(r.Kind), "must be scheduled, ready, dead or recurrence"))
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
	if r.MaxAttempts != 0 {
		errs = append(errs, lua.CheckMaxAttempts(r.MaxAttempts))
	}
	needsEntry := r.Kind == RecordReady
	if (needsEntry || r.Entry != "") && !recordEntry.MatchString(r.Entry) {
		errs = append(errs, lua.Invalid("entry", r.Entry, "must be <milliseconds>-<sequence>"))
	}
	if r.Letter != "" && (!recordEntry.MatchString(r.Letter) || r.Entry != "") {
		errs = append(errs, lua.Invalid("letter", r.Letter,
			"must be <milliseconds>-<sequence>, and without an entry"))
	}
	if r.Attempt != 0 && lua.CheckMaxAttempts(r.Attempt) != nil {
		errs = append(errs, lua.Invalid("attempt", strconv.Itoa(r.Attempt),
			"must be between 1 and %d", lua.MaxAttemptsLimit))
	}
	if r.Expires < 0 {
		errs = append(errs, lua.Invalid("expires_ms", strconv.FormatInt(r.Expires, 10), "must not be negative"))
	}
	if len(r.Error) > lua.MaxErrorBytes {
		errs = append(errs, lua.Invalid("error", r.Error, "must be at most %d bytes", lua.MaxErrorBytes))
	}
	return errors.Join(errs...)
}

// messageFields and letterFields are the fields of a message and of a dead letter for which a Record has a field of its
// own. Other fields are in Headers and Extra.
var (
	messageFields = []string{lua.FieldID, lua.FieldPayload, lua.FieldAttempt, lua.FieldDue, lua.FieldMaxAttempts,
		lua.FieldExpires, lua.FieldFor, lua.FieldError}
	letterFields = []string{lua.FieldID, lua.FieldPayload, lua.FieldAttempt, lua.FieldDue, lua.FieldMaxAttempts,
		lua.FieldExpires, lua.FieldDead, lua.FieldGroup, lua.FieldReason, lua.FieldEntry, lua.FieldError}
)

// checkNames refuses extra fields for which the record has a field of its own, and more extra fields than an entry
// takes.
func (r Record) checkNames() error {
	bytes, named := 0, messageFields
	if r.Kind == RecordDead {
		named = letterFields
	}
	for name, value := range r.Extra {
		bytes += len(name) + len(value)
		if slices.Contains(named, name) || strings.HasPrefix(name, lua.HeaderPrefix) {
			return lua.Invalid("extra", name, "has a place of its own")
		}
	}
	if bytes > maxMetaBytes/2 || len(r.Extra) > maxMetaFields-lua.MaxHeaders-len(messageFields) {
		return lua.Invalid("extra", fmt.Sprint(len(r.Extra)), "is too much")
	}
	return nil
}

// list returns the record's values of the named fields, then its headers and its extra fields, each sorted by name.
func (r Record) list(named []string) (all []lua.FieldValue) {
	add := func(name, value string) { all = append(all, lua.FieldValue{Field: name, Value: value}) }
	values := map[string]string{lua.FieldID: r.ID, lua.FieldPayload: string(r.Payload), lua.FieldFor: r.For,
		lua.FieldGroup: r.Group, lua.FieldReason: r.Reason, lua.FieldEntry: r.Entry, lua.FieldError: r.Error}
	for name, n := range map[string]int64{lua.FieldAttempt: int64(r.Attempt), lua.FieldDue: r.Due, lua.FieldExpires: r.Expires,
		lua.FieldMaxAttempts: int64(r.MaxAttempts), lua.FieldDead: r.Dead} {
		if n != 0 {
			values[name] = strconv.FormatInt(n, 10)
		}
	}
	for _, name := range named {
		if value := values[name]; value != "" || name == lua.FieldPayload && r.Payload != nil {
			add(name, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		add(lua.HeaderPrefix+name, r.Headers[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.Extra)) {
		add(name, r.Extra[name])
	}
	return all
}

// fieldMap returns fields by name.
func fieldMap(list []lua.FieldValue) map[string]string {
	all := make(map[string]string, len(list))
	for _, f := range list {
		all[f.Field] = f.Value
	}
	return all
}

// member returns the record in the form of the schedule: the member, and its meta.
func (r Record) member() (member, meta string) {
	if r.Member != nil {
		return string(r.Member), string(r.Meta)
	}
	name := lua.Member{ID: r.ID, Group: r.For, Of: r.Entry}
	switch {
	case r.Letter != "":
		name.Kind, name.Of = lua.MemberRedriven, r.Letter
	case r.Kind == RecordReady:
		name.Kind = lua.MemberImported
	case r.Entry != "":
		name.Kind = lua.MemberRetry
	}
	named := []string{lua.FieldMaxAttempts, lua.FieldExpires, lua.FieldError, lua.FieldFor}
	if name.Kind != lua.MemberFirst {
		r.Attempt = max(1, r.Attempt)
		named = append(named, lua.FieldID, lua.FieldAttempt)
	} else if r.Attempt > 1 {
		named = append(named, lua.FieldAttempt)
	}
	fields := fieldMap(r.list(named))
	if len(fields) == 0 {
		return name.String(), ""
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // a map of strings always encodes
	}
	return name.String(), string(text)
}

// messageID returns the ID of the message.
func (r Record) messageID() string {
	if r.Member == nil {
		return r.ID
	}
	return lua.ParseMember(string(r.Member)).ID
}

// scheduledRecord converts a member of the schedule to a record.
func scheduledRecord(found lua.Exported) Record {
	r := Record{Kind: RecordScheduled, Due: dueOf(found.Score), Payload: found.Payload}
	e, ok := lua.DecodeMeta(found.Member, found.Meta)
	raw := r // the record to return if the named fields could not restore the member and its meta exactly
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
	case lua.MemberImported: // it was ready at its origin
		r.Kind, r.Entry = RecordReady, name.Of
	}
	if e.ID == found.Member { // the meta has no ID, so DecodeMeta has set the member
		e.ID = name.ID
	}
	r.fill(e)
	member, meta := r.member()
	if r.Check() != nil || member != found.Member || !sameMeta(meta, found.Meta) {
		return raw
	}
	return r
}

// dueOf returns the due time of a score, rounded up like drain does.
func dueOf(score string) int64 {
	f, err := strconv.ParseFloat(score, 64)
	if err != nil || math.IsNaN(f) {
		return 0
	}
	f, _ = lua.DueScore(f)
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

// fill sets the fields of a record that an entry has, too.
func (r *Record) fill(e lua.Entry) {
	r.ID, r.Headers, r.MaxAttempts, r.For, r.Error, r.Extra = e.ID, e.Headers, e.MaxAttempts, e.For, e.Error, e.Extra
	r.Attempt = e.Attempt
	if e.Attempt == 1 {
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

// readyRecord converts an entry that a group still needs to a record; group is "" if the stream has no group. ok is
// false for an entry whose contents could not be delivered a second time.
func readyRecord(entryID string, fields []lua.FieldValue, group string) (r Record, ok bool) {
	kept := make([]lua.FieldValue, len(fields))
	for i, f := range fields {
		kept[i] = f
		if f.Field != lua.FieldPayload && !utf8.ValidString(f.Value) { // a retry stores such a field in base64
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
	r = Record{Kind: RecordReady, Payload: e.Payload, Entry: entryID}
	r.Due = unixMilli(e.Due)
	if e.Due.IsZero() {
		r.Due = unixMilli(lua.EntryTime(entryID))
	}
	r.fill(e)
	if group != "" {
		r.For = group
	}
	for _, f := range kept { // an entry with a wrong number is malformed for the group that gets it
		wrong := f.Field == lua.FieldAttempt && f.Value != strconv.Itoa(e.Attempt) ||
			f.Field == lua.FieldMaxAttempts && (e.MaxAttempts == 0 || f.Value != strconv.Itoa(e.MaxAttempts)) ||
			f.Field == lua.FieldExpires && f.Value != strconv.FormatInt(r.Expires, 10)
		if wrong {
			return r, false
		}
	}
	return r, r.Check() == nil
}

// fields returns the record in the form of a stream of dead letters.
func (r Record) fields() (all []lua.FieldValue) {
	if len(r.Fields) == 0 {
		return r.list(letterFields)
	}
	for pair := range slices.Chunk(r.Fields, 2) {
		all = append(all, lua.FieldValue{Field: string(pair[0]), Value: string(pair[1])})
	}
	return all
}

// deadRecord converts a dead letter to a record.
func deadRecord(partition int, entryID string, found []lua.FieldValue) Record {
	l := lua.ParseLetter(entryID, found)
	r := Record{Kind: RecordDead, Letter: deadletter.LetterName(partition, entryID), Payload: l.Payload}
	raw := r // the record to return if the named fields could not restore the letter exactly
	for _, f := range found {
		raw.Fields = append(raw.Fields, []byte(f.Field), []byte(f.Value))
	}
	raw.Payload = nil
	have := fieldMap(found)
	for _, f := range found {
		if !utf8.ValidString(f.Field) || f.Field != lua.FieldPayload && !utf8.ValidString(f.Value) {
			return raw
		}
	}
	r.fill(l.Entry)
	if _, given := have[lua.FieldID]; !given {
		r.ID = ""
	}
	if _, given := have[lua.FieldAttempt]; given {
		r.Attempt = l.Attempt
	}
	r.Due, r.Dead, r.Group, r.Reason, r.Entry = unixMilli(l.Due), unixMilli(l.Dead), l.Group, l.Reason, l.FailedEntry
	if r.Check() != nil || len(have) != len(found) || !maps.Equal(have, fieldMap(r.fields())) {
		return raw
	}
	return r
}
