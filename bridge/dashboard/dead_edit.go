package dashboard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file edits the payload and the headers of a dead letter, and redrives it. The first post of the form shows the
// difference, and the second one makes the change.

// maxEdited is the size of the largest payload that the page edits.
const maxEdited = 1 << 20

// Values of the field encoding.
const (
	editText   = "text"
	editBase64 = "base64" // of a payload that a browser's text field would change
)

// editView is the data of the page.
type editView struct {
	Queue    string
	Letter   admin.Letter
	Back     string
	Payload  string // in the encoding
	Encoding string
	Headers  string // a line for each, or a JSON object
	Groups   []string
	TooLarge bool
	Preview  *editPreview // nil = show the form
}

// Title returns the title of the page.
func (v editView) Title() string { return "Edit dead letter " + visible(cut(v.Letter.ID, 60)) }

// editPreview is the difference that the viewer is about to send.
type editPreview struct {
	Payload, Headers []diffLine
	OldBytes         int
	NewBytes         int
}

// isText reports whether a text field of a browser keeps a payload as it is. It changes carriage returns and NUL.
func isText(p []byte) bool {
	return utf8.Valid(p) && !bytes.ContainsFunc(p, func(r rune) bool {
		return r != '\n' && r != '\t' && unicode.IsControl(r)
	})
}

// encodePayload returns a payload for the form.
func encodePayload(p []byte) (text, encoding string) {
	if isText(p) {
		return string(p), editText
	}
	return base64.StdEncoding.EncodeToString(p), editBase64
}

func showEdit(q *request) (any, error) {
	if err := lua.CheckQueue(q.queue()); err != nil {
		return nil, err
	}
	leave, err := q.takePayload()
	if err != nil {
		return nil, err
	}
	defer leave()
	l, err := q.letter(q.query.Get("letter"))
	if err != nil {
		return nil, err
	}
	v := editView{Queue: q.queue(), Letter: l, Back: q.backToLetters(), TooLarge: len(l.Payload) > maxEdited}
	v.Letter.Payload = nil // a page that waits to be rendered must hold little
	if v.Groups, err = q.groupsOf(q.queue()); err != nil {
		return nil, err
	}
	if v.TooLarge {
		return v, nil
	}
	v.Payload, v.Encoding = encodePayload(l.Payload)
	v.Headers = headerText(l.Headers)
	if q.query.Has("payload") { // the form again
		v.Payload, v.Headers = lineFeeds(q.query.Get("payload")), lineFeeds(q.query.Get("headers"))
	}
	v.Preview, _ = q.preview.(*editPreview)
	return v, nil
}

// lineFeeds undoes what browsers do to the line breaks of a text field. No payload that is shown as text has a carriage
// return.
func lineFeeds(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// edited returns the payload and headers that the form names for a letter.
func (q *request) edited(l admin.Letter) (payload []byte, headers map[string]string, err error) {
	_, encoding := encodePayload(l.Payload)
	payload = []byte(lineFeeds(q.query.Get("payload")))
	var wrong error
	if encoding == editBase64 {
		text := withoutSpace(string(payload))
		if payload, wrong = base64.StdEncoding.DecodeString(text); wrong != nil {
			wrong = lua.Invalid("payload", cut(text, 40), "must be base64")
		}
	}
	if wrong == nil {
		wrong = checkEdited(l.Payload, payload)
	}
	if headers, err = parseHeaders(lineFeeds(q.query.Get("headers"))); err == nil {
		err = lua.CheckHeaders(headers)
	}
	return payload, headers, errors.Join(inField("payload", wrong), inField("headers", err))
}

// checkEdited checks a new payload. If the old one was a JSON object or array, the new one must be JSON, too. Another
// JSON value, such as 42, may as well be plain text.
func checkEdited(old, new []byte) error {
	if len(new) > maxEdited {
		return tooLarge("payload", len(new), "must be at most %d bytes here", maxEdited)
	}
	if err := lua.CheckPayload(new); err != nil {
		return err
	}
	isTree := json.Valid(old) && bytes.ContainsAny(bytes.TrimSpace(old)[:1], "{[")
	if !isTree || json.Valid(new) {
		return nil
	}
	return &lua.InvalidError{Field: "payload", Value: "the text", // not quoted: its fields stand in the form
		Rule: "must be JSON, because it was: " + jsonProblem(new)}
}

// jsonProblem tells where a text stops being JSON.
func jsonProblem(text []byte) string {
	var value json.RawMessage
	d := json.NewDecoder(bytes.NewReader(text))
	err := d.Decode(&value)
	at, problem := len(text), "the text ends too early"
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		at, problem = int(syntax.Offset)-1, syntax.Error() // the offset is behind the wrong character
	case err == nil:
		at, problem = int(d.InputOffset()), "there is more text after the value"
	}
	before := text[:min(max(at, 0), len(text))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return fmt.Sprintf("line %d, column %d: %s", line, column, problem)
}

// again is the preview that shows the form once more.
var again = (*editPreview)(nil)

func redriveEdited(q *request) (done, error) {
	leave, err := q.takePayload()
	if err != nil {
		return done{}, err
	}
	defer leave()
	l, err := q.letter(q.query.Get("letter"))
	if err != nil {
		return done{}, err
	}
	if len(l.Payload) > maxEdited { // the page offers no form, and the difference would take very much memory
		return done{}, tooLarge("payload", len(l.Payload),
			"of the dead letter must be at most %d bytes to be edited here", maxEdited)
	}
	step := q.query.Get("step")
	var payload []byte
	var headers map[string]string
	var wrong error
	var preview *editPreview
	err = q.work(len(l.Payload)+len(q.query.Get("payload")), func() {
		payload, headers, wrong = q.edited(l)
		if wrong == nil && step != "again" && step != "send" {
			preview = newEditPreview(l, payload, headers)
		}
	})
	if err != nil {
		return done{}, err
	}
	o, wrongOptions := q.redriveOptions()
	if err := errors.Join(wrong, wrongOptions); err != nil {
		return done{}, err
	}
	switch step {
	case "again":
		return done{preview: again}, nil
	case "send":
	default:
		return done{preview: preview}, nil
	}
	if !bytes.Equal(payload, l.Payload) || l.Payload == nil {
		o.Payload = &payload
	}
	if !maps.Equal(headers, l.Headers) || l.Unreadable() {
		o.Headers = &headers
	}
	defer q.book.change(q.queue())
	result, err := q.op.DeadLetters().Redrive(q.ctx, q.queue(), []string{l.Letter}, o)
	if err != nil {
		return done{}, err
	}
	page := q.backToLetters()
	if result.Scheduled == 1 && lua.CheckID(l.ID) == nil { // the list has the letter no more
		page = "message?" + url.Values{"queue": {q.queue()}, "id": {l.ID}}.Encode()
	}
	return done{notice: redriveWords(result, o), page: page}, nil
}

func newEditPreview(l admin.Letter, payload []byte, headers map[string]string) *editPreview {
	p := &editPreview{OldBytes: len(l.Payload), NewBytes: len(payload)}
	if !bytes.Equal(l.Payload, payload) {
		old, new := forDifference(string(l.Payload)), forDifference(string(payload))
		if old == new { // only the blanks of JSON differ
			old, new = visible(string(l.Payload)), visible(string(payload))
		}
		p.Payload = difference(old, new)
	}
	p.Headers = difference(headerLines(l.Headers), headerLines(headers))
	return p
}

// headerLines returns headers with one header a line, sorted by name.
func headerLines(headers map[string]string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		lines = append(lines, fmt.Sprintf("%q: %q", name, headers[name]))
	}
	return strings.Join(lines, "\n")
}
