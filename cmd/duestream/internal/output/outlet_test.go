package output_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

// Whatever is written to an outlet, and wherever a write ends, no control sequence comes out, as text or as JSON. JSON
// keeps its value: a decoder gets the text that went in.
func FuzzHarmless(f *testing.F) {
	f.Add(clitest.Hostile, true, 3)
	f.Add("plain \x1b[31mred\x1b[0m é 😀", false, 1)
	f.Fuzz(func(t *testing.T, text string, inJSON bool, cut int) {
		var out bytes.Buffer
		a := &output.Output{JSON: inJSON, Color: "never"}
		o := a.Outlet(&out)
		whole := text
		if inJSON {
			var line bytes.Buffer
			_ = output.Encoder(&line).Encode(text)
			whole = line.String()
		}
		cut = min(max(0, cut), len(whole))
		_, _ = o.Write([]byte(whole[:cut]))
		_, _ = o.Write([]byte(whole[cut:]))
		_ = o.End()
		if bad := clitest.Orders(out.String()); len(bad) > 0 {
			t.Errorf("%q gives %q", whole, bad)
		}
		var back string
		if inJSON && (json.Unmarshal(out.Bytes(), &back) != nil || back != strings.ToValidUTF8(text, "\ufffd") &&
			utf8.ValidString(text)) {
			t.Errorf("%q became %q", text, back)
		}
	})
}
