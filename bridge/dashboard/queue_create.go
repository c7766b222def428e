package dashboard

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/written"
	"github.com/duestream/duestream/lua"
)

// This file holds the tab that creates a message, or repeats one.

// Kinds of payloads in the form.
const (
	payloadText   = "text"
	payloadJSON   = "json"
	payloadBase64 = "base64"
	payloadSame   = "same" // that of the message which is repeated
)

// maxPrefilled is the size up to which the form shows the payload of the repeated message.
const maxPrefilled = 256 << 10

// createView is the data of the tab.
type createView struct {
	From     string // ID of the message that is repeated; "" = none
	FromSize int64  // of its payload
	Zone     string
	Headers  string // hint
}

func showCreate(q *request, _ queueState) (any, error) {
	v := createView{From: q.query.Get("from"), Zone: q.formZone().String()}
	if q.query.Has("kind") || v.From == "" { // the viewer has filled the form
		return v, nil
	}
	place, err := q.placeOf(v.From)
	if err != nil {
		q.problem = inField("from", err)
		return v, nil
	}
	if place.Payload == nil {
		err := conflict("the payload of message %s is lost, so type one", visible(v.From))
		q.problem = inField("from", err)
	}
	v.FromSize = int64(len(place.Payload))
	q.query.Set("kind", kindOf(place.Payload))
	switch q.query.Get("kind") {
	case payloadText, payloadJSON:
		q.query.Set("payload", string(place.Payload))
	case payloadBase64:
		q.query.Set("payload", base64.StdEncoding.EncodeToString(place.Payload))
	}
	q.query.Set("headers", headerText(place.Headers))
	q.query.Set("key", place.Key)
	if place.MaxAttempts > 0 {
		q.query.Set("max_attempts", strconv.Itoa(place.MaxAttempts))
	}
	return v, nil
}

// placeOf returns the first place that holds a message of the queue, with its payload if a place has it.
func (q *request) placeOf(id string) (admin.Sighting, error) {
	if err := lua.CheckID(id); err != nil {
		return admin.Sighting{}, err
	}
	leave, err := q.takeFind()
	if err != nil {
		return admin.Sighting{}, err
	}
	defer leave()
	s, err := q.findMessage(q.ctx, inQueue(q.queue()), id)
	switch {
	case err != nil:
		return admin.Sighting{}, err
	case len(s.finding.Places) == 0 && s.stopped:
		return admin.Sighting{}, fmt.Errorf("search for message %s: %w", visible(id), context.DeadlineExceeded)
	case len(s.finding.Places) == 0:
		return admin.Sighting{}, fmt.Errorf("message %s: %w", visible(id), admin.ErrNotFound)
	}
	for _, p := range s.finding.Places {
		if p.Payload != nil { // else it is lost in this place
			return p, nil
		}
	}
	return s.finding.Places[0], nil
}

// kindOf returns how the form shows a payload, so that it comes back unchanged. Browsers change the ends of lines in a
// text, so a text with carriage returns is shown as base64.
func kindOf(payload []byte) string {
	if len(payload) > maxPrefilled {
		return payloadSame
	}
	isPlain := utf8.Valid(payload) && !bytes.ContainsFunc(payload, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r == 0x7f
	})
	switch {
	case !isPlain:
		return payloadBase64
	case json.Valid(payload):
		return payloadJSON
	}
	return payloadText
}

// headerText returns headers as the form shows them: a line for each or, if a line cannot express them, a JSON object.
func headerText(headers map[string]string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		lines = append(lines, name+": "+headers[name])
	}
	text := strings.Join(lines, "\n")
	if again, err := parseHeaders(text); err == nil && maps.Equal(again, headers) {
		return text
	}
	object, err := json.MarshalIndent(headers, "", " ")
	if err != nil { // a map of strings has a JSON form
		return ""
	}
	return string(object)
}

// withoutSpace returns a text without its white space.
func withoutSpace(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
}

// tooLarge returns an *InvalidError for a value of so many bytes, without the value.
func tooLarge(field string, size int, rule string, args ...any) error {
	return &lua.InvalidError{Field: field, Value: fmt.Sprintf("of %d bytes", size), Rule: fmt.Sprintf(rule, args...)}
}

// maxHeaderText is the greatest number of bytes of headers that parseHeaders reads. JSON writes one byte of a header as
// six bytes at most.
const maxHeaderText = 8 * lua.MaxHeaderBytes

// parseHeaders reads lines of the form "name: value", or a JSON object of strings.
func parseHeaders(text string) (map[string]string, error) {
	if len(text) > maxHeaderText {
		return nil, tooLarge("headers", len(text), "must be at most %d bytes", maxHeaderText)
	}
	headers := map[string]string{}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		if err := json.Unmarshal([]byte(text), &headers); err != nil {
			return nil, fmt.Errorf("must be an object of strings: %w", err)
		}
		return headers, nil
	}
	for line := range strings.Lines(strings.ReplaceAll(text, "\r\n", "\n")) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, value, hasColon := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if _, twice := headers[name]; !hasColon || name == "" || twice {
			return nil, lua.Invalid("headers", strings.TrimSpace(line), "must be a line with a new name: value")
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, nil
}

// createMessage is the action of the form.
func createMessage(q *request) (done, error) {
	q.query.Set("tab", "create")
	m, err := q.typedMessage()
	if err != nil {
		return done{}, err
	}
	if err := q.checkExpires(m); err != nil {
		return done{}, err
	}
	receipt, err := q.client().Send(q.ctx, q.queue(), m)
	if err != nil {
		return done{}, q.explainRefusal(m.ID, byFields(err))
	}
	q.about(slog.String("id", receipt.ID))
	text := fmt.Sprintf("Message %s is scheduled.", visible(receipt.ID))
	switch {
	case receipt.Ready:
		text = fmt.Sprintf("Message %s is ready.", visible(receipt.ID))
	case receipt.Replaced:
		text = fmt.Sprintf("Message %s replaced the scheduled one.", visible(receipt.ID))
	}
	page, err := href("message", "queue", q.queue(), "id", receipt.ID)
	return done{notice: text, page: page}, err
}

// typedMessage reads the form. The error has all its faults.
func (q *request) typedMessage() (bridge.NewMessage, error) {
	f := formReader{q: q}
	m := bridge.NewMessage{
		ID: q.query.Get("id"), Key: q.query.Get("key"), Delay: f.duration("in"), At: f.time("at"),
		Spread: f.duration("spread"), ExpiresIn: f.duration("expires_in"), Expires: f.time("expires_at"),
		Dedup: f.duration("dedup"), Replace: lua.Dedup(q.query.Get("replace")),
		MaxAttempts: f.count("max_attempts"), RetryFor: f.duration("retry_for"), MaxSnoozes: f.count("max_snoozes"),
		MaxCrashes: f.count("max_crashes"), HandlerTimeout: f.duration("handler_timeout"),
	}
	var err error
	m.Payload, err = q.typedPayload()
	f.note("payload", q.query.Get("kind"), err)
	m.Headers, err = parseHeaders(q.query.Get("headers"))
	f.note("headers", "", err)
	if text := f.text("retry_delays"); text != "" {
		m.RetryDelays, err = written.ParseDelays(text)
		f.note("retry_delays", text, err)
	}
	if f.text("in") != "" && f.text("at") != "" {
		f.note("at", f.text("at"), errors.New("must be empty if a delay is given"))
	}
	if m.ID == "" && m.Dedup > 0 {
		f.note("dedup", f.text("dedup"), errors.New("needs an ID"))
	}
	return m, errors.Join(f.errs...)
}

// typedPayload returns the payload of the form.
func (q *request) typedPayload() ([]byte, error) {
	text := strings.ReplaceAll(q.query.Get("payload"), "\r\n", "\n") // browsers send the ends of lines like this
	switch q.query.Get("kind") {
	case payloadText, "":
		return []byte(text), nil
	case payloadJSON:
		var value json.RawMessage // only checked: decoded values would take a hundred times the memory
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				return nil, fmt.Errorf("is not JSON: %w at byte %d", err, syntax.Offset)
			}
			return nil, fmt.Errorf("is not JSON: %w", err)
		}
		return []byte(text), nil
	case payloadBase64:
		payload, err := base64.StdEncoding.DecodeString(withoutSpace(text))
		if err != nil {
			return nil, fmt.Errorf("is not base64: %w", err)
		}
		return payload, nil
	case payloadSame:
		place, err := q.placeOf(q.query.Get("from"))
		if err == nil && place.Payload == nil {
			err = errors.New("of the message is lost: type one")
		}
		return place.Payload, err
	}
	return nil, errors.New("must be text, json, base64 or same")
}

// formReader reads fields of the form, and collects their faults. An empty field is zero.
type formReader struct {
	q    *request
	errs []error
}

// note adds a fault of a field, unless err is nil.
func (f *formReader) note(field, value string, err error) {
	var invalid *bridge.InvalidError
	if err != nil && !errors.As(err, &invalid) && !errors.Is(err, admin.ErrNotFound) && !lua.Temporary(err) {
		err = lua.Invalid(field, value, "%s", err.Error())
	}
	if err != nil {
		f.errs = append(f.errs, inField(field, err))
	}
}

func (f *formReader) text(field string) string { return strings.TrimSpace(f.q.query.Get(field)) }

func (f *formReader) duration(field string) time.Duration {
	text := f.text(field)
	if text == "" {
		return 0
	}
	d, err := written.ParseDuration(text)
	if err == nil {
		err = lua.CheckDelay(field, d)
	}
	f.note(field, text, err)
	return d
}

func (f *formReader) time(field string) time.Time {
	text := f.text(field)
	if text == "" {
		return time.Time{}
	}
	t, err := f.q.parseLocal(f.q.query, field, text)
	f.note(field, text, err)
	return t
}

func (f *formReader) count(field string) int {
	text := f.text(field)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > lua.MaxAttemptsLimit {
		f.note(field, text, fmt.Errorf("must be a whole number from 1 to %d", lua.MaxAttemptsLimit))
	}
	return n
}

// checkExpires refuses a message that would expire before it is due, in the case that needs the clock of the server.
func (q *request) checkExpires(m bridge.NewMessage) error {
	if m.Expires.IsZero() || !m.At.IsZero() {
		return nil
	}
	now, err := q.op.Time(q.ctx, q.queue())
	if err != nil {
		return err
	}
	if due := now.Add(m.Delay + m.Spread); !m.Expires.After(due) {
		return inField("expires_at", lua.Invalid("expires_at", q.query.Get("expires_at"),
			"must be after the due time %s", due.In(q.formZone()).Format(time.DateTime)))
	}
	return nil
}

// byFields puts an error of the producer beside the field of the form.
func byFields(err error) error {
	var invalid *bridge.InvalidError
	if !errors.As(err, &invalid) {
		return err
	}
	field := strings.TrimSuffix(strings.ReplaceAll(invalid.Field, " ", "_"), "_ms")
	switch {
	case strings.HasPrefix(field, "header"):
		field = "headers"
	case strings.HasPrefix(field, "delay"):
		field = "in"
	case field == "expires":
		field = "expires_at"
	}
	return inField(field, invalid)
}

// explainRefusal adds the end of the ID's dedup window to a refusal because of it.
func (q *request) explainRefusal(id string, err error) error {
	if !errors.Is(err, bridge.ErrDuplicate) || id == "" {
		return err
	}
	until, failed := q.op.Remembered(q.ctx, q.queue(), id)
	if failed == nil && !until.IsZero() {
		err = fmt.Errorf("%w; the ID is remembered until %s", err, until.In(q.zone()).Format("2006-01-02 15:04:05 MST"))
	}
	return inField("id", err)
}
