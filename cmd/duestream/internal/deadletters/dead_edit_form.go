package deadletters

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/message"
	"github.com/duestream/duestream/internal/ndjson"
)

// change holds the new payload and headers of a dead letter. A nil field keeps the old value.
type change struct {
	payload *[]byte
	headers *map[string]string
}

// editForm is a dead letter as an editor shows it. A payload that is a compact JSON object or list is shown as JSON,
// any other payload as text.
type editForm struct {
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadBase64 *ndjson.Base64    `json:"payload_base64,omitempty"`
	Headers       map[string]string `json:"headers"`
}

func formOf(l admin.Letter) ([]byte, error) {
	form := editForm{Headers: l.Headers}
	if form.Headers == nil {
		form.Headers = map[string]string{}
	}
	switch {
	case l.Payload == nil:
	case !utf8.Valid(l.Payload):
		form.PayloadBase64 = (*ndjson.Base64)(&l.Payload)
	case isCompactJSON(l.Payload):
		form.Payload = json.RawMessage(l.Payload)
	default:
		text, err := plainJSON(string(l.Payload))
		if err != nil {
			return nil, err
		}
		form.Payload = text
	}
	text, err := plainJSON(form)
	if err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	err = json.Indent(&indented, text, "", "  ")
	return indented.Bytes(), err
}

// isCompactJSON reports whether a payload is a JSON object or list without white space.
func isCompactJSON(payload []byte) bool {
	if !bytes.HasPrefix(payload, []byte("{")) && !bytes.HasPrefix(payload, []byte("[")) {
		return false
	}
	var compact bytes.Buffer
	return json.Compact(&compact, payload) == nil && bytes.Equal(compact.Bytes(), payload)
}

// plainJSON encodes without HTML escapes.
func plainJSON(value any) ([]byte, error) {
	var b bytes.Buffer
	err := output.Encoder(&b).Encode(value)
	return b.Bytes(), err
}

// readForm reads a text of formOf after the user changed it. It checks all limits, because the user's text can still
// be saved at this point.
func readForm(text []byte) (change, error) {
	var form editForm
	if err := ndjson.Decode(text, &form); err != nil {
		return change{}, err
	}
	var c change
	if form.Payload != nil || form.PayloadBase64 != nil {
		payload, err := message.Payload(form.Payload, form.PayloadBase64)
		if err != nil {
			return change{}, err
		}
		if payload == nil {
			payload = []byte{}
		}
		c.payload = &payload
	}
	if form.Headers == nil {
		form.Headers = map[string]string{}
	}
	c.headers = &form.Headers
	if c.payload == nil {
		return c, admin.CheckHeaders(form.Headers)
	}
	return c, errors.Join(admin.CheckPayload(*c.payload), admin.CheckHeaders(form.Headers))
}

// editLetter lets the user change a letter in an editor. If the result is refused, the text stays in a file that the
// error names.
func editLetter(ctx context.Context, l admin.Letter, editor func(context.Context, string) error) (change, error) {
	before, err := formOf(l)
	if err != nil {
		return change{}, err
	}
	file, err := os.CreateTemp("", "duestream-*.json")
	if err != nil {
		return change{}, err
	}
	name := file.Name()
	_, err = file.Write(before)
	if err := errors.Join(err, file.Close()); err != nil {
		return change{}, err
	}
	if err := editor(ctx, name); err != nil {
		os.Remove(name)
		return change{}, fmt.Errorf("nothing was changed: the editor failed: %w", err)
	}
	after, err := os.ReadFile(name)
	if err != nil {
		return change{}, err
	}
	c, err := readForm(after)
	if err != nil {
		return change{}, usage.Errorf("nothing was changed, the text is kept in %s: %w", name, err)
	}
	os.Remove(name)
	if c.payload != nil && l.Payload != nil && bytes.Equal(*c.payload, l.Payload) {
		c.payload = nil
	}
	if old, err := readForm(before); err == nil && maps.Equal(*c.headers, *old.headers) {
		c.headers = nil
	}
	if c == (change{}) {
		return c, usage.Errorf("nothing was changed: `duestream dead redrive` schedules a letter as it is")
	}
	return c, nil
}

// openEditor opens a file in $VISUAL, else $EDITOR, else vi.
func openEditor(ctx context.Context, a *cli.App, file string) error {
	words := strings.Fields(cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi"))
	cmd := exec.CommandContext(ctx, words[0], slices.Concat(words[1:], []string{file})...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.In, term.Unfiltered(a.Out).(io.Writer), term.Unfiltered(a.Err).(io.Writer)
	return cmd.Run()
}
