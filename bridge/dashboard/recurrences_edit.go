package dashboard

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/written"
	"github.com/duestream/duestream/lua"
)

// This file adds and edits a recurrence. The first post of the form shows the next occurrences and what changes, and
// the second one saves.

// previewedRuns is the number of occurrences that the preview shows.
const previewedRuns = 5

// recurrenceForm is the data of the page.
type recurrenceForm struct {
	Queue, Name string // of the recurrence that is edited; Name "" = a new one
	Queues      []string
	Zone        string // of the fields start and end
	Owner       string // of the stored recurrence
	Problem     string // of the stored recurrence, which is then not planned
	MaySave     bool
	Version     string // of the stored recurrence; "" = a new one
	Encoding    string // of the payload
	TooLarge    bool   // the payload cannot be edited here
	Preview     *recurrencePreview
	Fields      []jobField // all fields, for the form of the preview
}

// Title returns the title of the page.
func (f recurrenceForm) Title() string {
	if f.Name == "" {
		return "Add a recurrence"
	}
	return "Edit recurrence " + visible(cut(f.Name, 60))
}

// recurrencePreview is the recurrence that the viewer is about to save.
type recurrencePreview struct {
	Words   string
	Next    []time.Time
	Changes []diffLine // nil = nothing changes
	Added   bool
	Queue   string
	Name    string
}

// recurrenceFields are the fields of the form that describe a recurrence.
var recurrenceFields = []string{"queue", "name", "cron", "zone", "every", "phase", "payload", "encoding", "headers",
	"start", "end", zoneField, "count", "jitter", "missed", "overlap", "paused", "owner"}

func showRecurrenceForm(q *request) (any, error) {
	f := recurrenceForm{Queue: q.queue(), Name: q.query.Get("edit"), Zone: q.formZone().String(), Encoding: editText}
	if f.Name != "" {
		leave, err := q.takePayload()
		if err != nil {
			return nil, err
		}
		s, err := q.op.Recurrence(q.ctx, f.Queue, f.Name)
		leave()
		if err != nil {
			return nil, err
		}
		f.MaySave = q.may(access.Operate, f.Queue)
		f.Owner, f.Version, f.Problem = s.Spec.Owner, s.Version, s.Problem
		f.TooLarge = len(s.Spec.Payload) > maxEdited
		if !q.query.Has("encoding") { // the form is new
			q.fillRecurrence(s.Spec)
		} else {
			f.Version = q.query.Get("version") // of the time when the viewer opened the form
		}
		f.Encoding = q.query.Get("encoding")
	} else {
		queues, err := q.op.Queues(q.ctx)
		if err != nil {
			return nil, err
		}
		f.Queues = slices.DeleteFunc(queues, func(queue string) bool { return !q.may(access.Operate, queue) })
		f.MaySave = len(f.Queues) > 0 || q.may(access.Operate, f.Queue)
		if !q.query.Has("encoding") {
			q.query.Set("zone", f.Zone)
		}
	}
	for _, name := range []string{"payload", "headers"} {
		q.query.Set(name, lineFeeds(q.query.Get(name)))
	}
	f.Preview, _ = q.preview.(*recurrencePreview)
	for _, name := range recurrenceFields {
		f.Fields = append(f.Fields, jobField{name, q.query.Get(name)})
	}
	return f, nil
}

// fillRecurrence fills the fields of the form from a stored spec.
func (q *request) fillRecurrence(s bridge.Recurrence) {
	set := func(name, value string) { q.query.Set(name, value) }
	age := func(name string, d time.Duration) {
		if d > 0 {
			set(name, written.Duration(d))
		}
	}
	at := func(name string, t time.Time) { set(name, q.localTime(t)) }
	set("name", s.Name)
	set("cron", s.Cron)
	set("zone", s.Zone)
	age("every", s.Every)
	age("phase", s.Phase)
	age("jitter", s.Jitter)
	at("start", s.Start)
	at("end", s.End)
	if s.Count > 0 {
		set("count", strconv.Itoa(s.Count))
	}
	set("missed", string(s.Missed))
	set("overlap", string(s.Overlap))
	if s.Paused {
		set("paused", "1")
	}
	set("owner", s.Owner)
	payload, encoding := encodePayload(s.Payload)
	set("payload", payload)
	set("encoding", encoding)
	set("headers", headerText(s.Headers))
}

// localTime returns a time as a field of the form shows it; "" for the zero time.
func (q *request) localTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.In(q.formZone()).Format(localLayout)
}

// keepExact restores each stored time whose text in the form is unchanged. A field of the form has no milliseconds, and
// cannot tell apart the two hours of the same name when the clocks go back.
func (q *request) keepExact(s *bridge.Recurrence, stored bridge.Recurrence) {
	if q.localTime(s.Start) == q.localTime(stored.Start) {
		s.Start = stored.Start
	}
	if q.localTime(s.End) == q.localTime(stored.End) {
		s.End = stored.End
	}
}

// typedRecurrence returns the recurrence that the form names. The error has all its faults.
func (q *request) typedRecurrence() (s bridge.Recurrence, err error) {
	var errs []error
	duration := func(name string) time.Duration {
		d, err := q.formDuration(name)
		errs = append(errs, err)
		return d
	}
	at := func(name string) (t time.Time) {
		text := strings.TrimSpace(q.query.Get(name))
		if text == "" {
			return t
		}
		t, err := q.parseLocal(q.query, name, text)
		errs = append(errs, inField(name, err))
		return t
	}
	text := func(name string) string { return strings.TrimSpace(q.query.Get(name)) }
	s = bridge.Recurrence{
		Queue: q.queue(), Name: q.query.Get("name"), Cron: text("cron"), Zone: text("zone"), Every: duration("every"),
		Phase: duration("phase"), Start: at("start"), End: at("end"), Jitter: duration("jitter"),
		Missed: admin.Missed(text("missed")), Overlap: admin.Overlap(text("overlap")), Paused: text("paused") != "",
		Owner: text("owner"),
	}
	if s.Cron == "" && s.Every > 0 {
		s.Zone = "" // the form has the field also for intervals, which have no zone
	}
	if count := text("count"); count != "" {
		if s.Count, err = strconv.Atoi(count); err != nil {
			errs = append(errs, inField("count", lua.Invalid("count", count, "must be a whole number; empty = no limit")))
		}
	}
	s.Payload = []byte(lineFeeds(q.query.Get("payload")))
	if q.query.Get("encoding") == editBase64 {
		if s.Payload, err = base64.StdEncoding.DecodeString(withoutSpace(string(s.Payload))); err != nil {
			errs = append(errs, inField("payload", lua.Invalid("payload", cut(q.query.Get("payload"), 40), "must be base64")))
		}
	}
	if s.Headers, err = parseHeaders(lineFeeds(q.query.Get("headers"))); err != nil {
		errs = append(errs, inField("headers", err))
	}
	if len(s.Headers) == 0 {
		s.Headers = nil
	}
	_, err = s.Compile()
	return s, errors.Join(append(errs, err)...)
}

// errRecurrenceChanged: the recurrence differs from the one that the viewer has seen.
var errRecurrenceChanged = fmt.Errorf(
	"%w: somebody has changed the recurrence meanwhile. Open the form again to see how", errConflict)

// saveRecurrence shows what the form changes, and with step "save" saves it.
func saveRecurrence(q *request) (done, error) {
	s, err := q.typedRecurrence()
	if err != nil {
		return done{}, err
	}
	leave, err := q.takePayload()
	if err != nil {
		return done{}, err
	}
	defer leave()
	before, err := q.op.Recurrence(q.ctx, s.Queue, s.Name)
	isNew := errors.Is(err, bridge.ErrNoRecurrence)
	if err != nil && !isNew {
		return done{}, err
	}
	switch edits := q.query.Get("edit"); {
	case edits == "" && !isNew:
		return done{}, inField("name", lua.Invalid("name", s.Name, "must be new: the queue has a recurrence of this name"))
	case edits != "" && edits != s.Name:
		return done{}, inField("name", lua.Invalid("name", s.Name, "must stay %q: add another recurrence instead", edits))
	case edits != "" && isNew:
		return done{}, fmt.Errorf("%w: somebody has removed the recurrence meanwhile", errConflict)
	case edits != "" && before.Version != q.query.Get("version"):
		return done{}, errRecurrenceChanged
	}
	if !isNew {
		q.keepExact(&s, before.Spec)
	}
	switch q.query.Get("step") {
	case "again":
		return done{preview: (*recurrencePreview)(nil)}, nil
	case "save":
	default:
		var preview *recurrencePreview
		err := q.work(len(before.Spec.Payload)+len(s.Payload), func() { preview = newRecurrencePreview(before, s, isNew) })
		return done{preview: preview}, err
	}
	var change bridge.RecurrenceChange
	if isNew {
		change, err = q.op.Recur(q.ctx, s)
	} else {
		change, err = q.op.ReplaceRecurrence(q.ctx, s, before.Version)
	}
	switch {
	case errors.Is(err, bridge.ErrChanged), !isNew && errors.Is(err, bridge.ErrNoRecurrence):
		return done{}, errRecurrenceChanged
	case err != nil:
		return done{}, err
	}
	notice := s.Name + " is unchanged."
	switch {
	case change.Added:
		notice = s.Name + " was added."
	case change.Changed:
		notice = s.Name + " was changed."
		if change.TakenBack > 0 {
			notice += " " + plural(change.TakenBack, "planned message was cancelled, and is planned again.",
				"planned messages were cancelled, and are planned again.")
		}
	}
	return done{notice: notice, page: recurrenceAddress("recurrence", s.Queue, s.Name)}, nil
}

func newRecurrencePreview(before bridge.RecurrenceState, s bridge.Recurrence, isNew bool) *recurrencePreview {
	runs := previewedRuns
	if s.Count > 0 {
		runs = min(runs, max(0, s.Count-before.Used))
	}
	p := &recurrencePreview{Words: cmp.Or(s.Words(), s.Cron), Next: nextRuns(s, time.Now(), runs), Added: isNew,
		Queue: s.Queue, Name: s.Name}
	old := ""
	if !isNew {
		old = specLines(before.Spec)
	}
	p.Changes = difference(old, specLines(s))
	return p
}

// specLines returns a spec with one field a line, for the difference of two specs.
func specLines(s bridge.Recurrence) string {
	s = s.WithDefaults()
	var lines []string
	add := func(name, value string) {
		if value != "" && value != "0s" && value != "0" {
			lines = append(lines, name+": "+visible(value))
		}
	}
	at := func(name string, t time.Time) {
		if !t.IsZero() {
			add(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	add("cron", s.Cron)
	add("zone", s.Zone)
	add("every", written.Duration(s.Every))
	add("phase", written.Duration(s.Phase))
	at("start", s.Start)
	at("end", s.End)
	add("count", strconv.Itoa(s.Count))
	add("jitter", written.Duration(s.Jitter))
	add("missed", string(s.Missed))
	add("overlap", string(s.Overlap))
	if s.Paused {
		add("paused", "yes")
	}
	add("owner", s.Owner)
	if len(s.Headers) > 0 {
		lines = append(lines, "headers:", headerLines(s.Headers))
	}
	if len(s.Payload) > 0 {
		lines = append(lines, "payload:", forDifference(string(s.Payload)))
	}
	return strings.Join(lines, "\n")
}
