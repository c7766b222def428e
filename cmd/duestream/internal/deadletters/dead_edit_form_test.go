package deadletters

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
)

// editLetter shows a letter to an editor as JSON: a payload that is JSON as JSON, other text as text, and bytes in
// base64. Each case edits that form, and says which payload and headers result, or which error.
func TestEditorForm(t *testing.T) {
	// writes is an editor that replaces the form by a text.
	writes := func(text string) func(context.Context, string) error {
		return func(_ context.Context, file string) error { return os.WriteFile(file, []byte(text), 0o600) }
	}
	// replaces is an editor that replaces a part of the form, which must be there.
	replaces := func(old, new string) func(context.Context, string) error {
		return func(_ context.Context, file string) error {
			text, err := os.ReadFile(file)
			if err == nil && !strings.Contains(string(text), old) {
				err = fmt.Errorf("no %q in %s", old, text)
			}
			return errors.Join(err, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), old, new)), 0o600))
		}
	}
	const unchanged = "unchanged"
	for name, c := range map[string]struct {
		payload admin.Payload
		editor  func(context.Context, string) error
		want    string // the new payload, or unchanged; nothing if an error is expected
		headers string // the new headers; "" = unchanged
		err     string
	}{
		"JSON": {admin.Payload(`{"a":1.50,"b":"<x>"}`), replaces("\"a\": 1.50", "\"a\": 2.50"),
			`{"a":2.50,"b":"<x>"}`, "", ""},
		"text":              {admin.Payload("a <b>\n"), replaces("a <b>", "c"), "c\n", "", ""},
		"spaced JSON":       {admin.Payload(`{ "a":1}`), replaces(`{ \"a\":1}`, `{ \"a\":2}`), `{ "a":2}`, "", ""},
		"bytes":             {admin.Payload("\xff\x00"), replaces("/wA=", "/wE="), "\xff\x01", "", ""},
		"headers":           {admin.Payload("x"), replaces(`"k": "v"`, `"k": "w"`), unchanged, "map[k:w]", ""},
		"nothing":           {admin.Payload("x"), replaces("x", "x"), "", "", "nothing was changed"},
		"no JSON":           {admin.Payload("x"), writes("{"), "", "", "the text is kept in "},
		"unknown":           {admin.Payload("x"), writes(`{"payloud":"x"}`), "", "", "unknown field"},
		"empty header name": {admin.Payload("x"), writes(`{"payload":"x","headers":{"":"x"}}`), "", "", "header name"},
		"editor gives up": {admin.Payload("x"), func(context.Context, string) error {
			return errors.New("exit status 1")
		}, "", "", "the editor failed"},
		"no payload before": {nil, writes(`{"payload":"y","headers":{"k":"v"}}`), "y", "", ""},
		"emptied":           {admin.Payload("x"), writes(`{"payload":"","headers":{}}`), "", "map[]", ""},
	} {
		got, err := editLetter(t.Context(), admin.Letter{Payload: c.payload, Headers: map[string]string{"k": "v"}}, c.editor)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		payload := unchanged
		if got.payload != nil {
			payload = string(*got.payload)
		}
		if err == nil && payload != c.want {
			t.Errorf("%s: payload %q", name, payload)
		}
		if (got.headers != nil) != (c.headers != "") || got.headers != nil && fmt.Sprint(*got.headers) != c.headers {
			t.Errorf("%s: headers %v", name, got.headers)
		}
		if _, kept, ok := strings.Cut(fmt.Sprint(err), "kept in "); ok {
			file, _, _ := strings.Cut(kept, ":")
			os.Remove(file)
		}
	}
}
