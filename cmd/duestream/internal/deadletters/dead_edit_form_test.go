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

func TestEditorForm(t *testing.T) {
	writes := func(text string) func(context.Context, string) error {
		return func(_ context.Context, file string) error { return os.WriteFile(file, []byte(text), 0o600) }
	}
	replaces := func(old, new string) func(context.Context, string) error {
		return func(_ context.Context, file string) error {
			text, err := os.ReadFile(file)
			if err == nil && !strings.Contains(string(text), old) {
				err = fmt.Errorf("no %q in %s", old, text)
			}
			return errors.Join(err, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), old, new)), 0o600))
		}
	}
	for name, c := range map[string]struct {
		payload admin.Payload
		editor  func(context.Context, string) error
		want    string // the new payload; "" = unchanged
		headers string // the new headers; "" = unchanged
		err     string
	}{
		"JSON": {admin.Payload(`{"a":1.50,"b":"<x>"}`), replaces("\"a\": 1.50", "\"a\": 2.50"),
			`{"a":2.50,"b":"<x>"}`, "", ""},
		"text":        {admin.Payload("a <b>\n"), replaces("a <b>", "c"), "c\n", "", ""},
		"spaced JSON": {admin.Payload(`{ "a":1}`), replaces(`{ \"a\":1}`, `{ \"a\":2}`), `{ "a":2}`, "", ""},
		"bytes":       {admin.Payload("\xff\x00"), replaces("/wA=", "/wE="), "\xff\x01", "", ""},
		"headers":     {admin.Payload("x"), replaces(`"k": "v"`, `"k": "w"`), "", "map[k:w]", ""},
		"nothing":     {admin.Payload("x"), replaces("x", "x"), "", "", "nothing was changed"},
		"no JSON":     {admin.Payload("x"), writes("{"), "", "", "the text is kept in "},
		"unknown":     {admin.Payload("x"), writes(`{"payloud":"x"}`), "", "", "unknown field"},
		"too much":    {admin.Payload("x"), writes(`{"payload":"x","headers":{"":"x"}}`), "", "", "header name"},
		"editor gives up": {admin.Payload("x"), func(context.Context, string) error {
			return errors.New("exit status 1")
		}, "", "", "the editor failed"},
		"lost":    {nil, writes(`{"payload":"y","headers":{"k":"v"}}`), "y", "", ""},
		"emptied": {admin.Payload("x"), writes(`{"payload":"","headers":{}}`), "", "map[]", ""},
	} {
		got, err := editLetter(t.Context(), admin.Letter{Payload: c.payload, Headers: map[string]string{"k": "v"}}, c.editor)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if changed := c.want != "" || name == "emptied"; err == nil &&
			((got.payload != nil) != changed || changed && string(*got.payload) != c.want) {
			t.Errorf("%s: payload %v", name, got.payload)
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
