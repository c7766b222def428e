package gateway

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// receipt.text writes the same bytes as encoding/json, or returns false, so that encoding/json writes the receipt.
func TestReceiptsLookAsIfJSONHadWrittenThem(t *testing.T) {
	type plain receipt
	due := time.UnixMilli(1_800_000_000_120)
	handWritten := 0 // receipts that text encoded itself
	for _, id := range []string{"", "a", "key-00ff", "with space", "<&>", `"`, `\`, "\n", "\x7f", "é", "\u2028", "\xff",
		strings.Repeat("x", 300)} {
		for _, at := range []time.Time{{}, due, due.UTC(), due.Truncate(time.Second), due.In(time.FixedZone("", -12600)),
			due.Add(time.Nanosecond), due.AddDate(7999, 0, 0)} {
			for flags := range 8 {
				r := receipt{ID: id, Due: at, Ready: flags&1 > 0, Replaced: flags&2 > 0, Duplicate: flags&4 > 0}
				text, ok := r.text()
				if !ok {
					continue
				}
				handWritten++
				var want bytes.Buffer
				e := json.NewEncoder(&want)
				e.SetEscapeHTML(false)
				if err := e.Encode(plain(r)); err != nil || want.String() != string(text) {
					t.Errorf("%s instead of %s (%v)", text, want.String(), err)
				}
			}
		}
	}
	if handWritten == 0 {
		t.Error("text encoded no receipt itself")
	}
}
