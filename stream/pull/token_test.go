package pull

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Each delivery must have exactly one token: a text that Read accepts must be the text that Token writes. Otherwise a
// caller could settle a delivery under a second name.
func FuzzToken(f *testing.F) {
	m := &stream.Message{Queue: "q", Partition: 3, Group: "grün g", EntryID: "17-0", ID: "order-42",
		Extra: map[string]string{lua.FieldKey: "customer 7"}}
	f.Add(string(tokenOf(m)))
	// The last bits of the base64 text have no meaning, so "Q" and "R" at its end stand for the same bytes.
	twice := strings.TrimSuffix(string(tokenOf(m)), "Q") + "R"
	spaced := base64.RawURLEncoding.EncodeToString([]byte(`{"q":"q", "g":"g","e":"1-0","i":"x"}`))
	unknown := base64.RawURLEncoding.EncodeToString([]byte(`{"q":"q","g":"g","e":"1-0","i":"x","z":1}`))
	for _, text := range []string{twice, spaced, unknown} {
		f.Add(text)
	}
	for _, text := range []string{"", "e30", "bnVsbA", "\x00", strings.Repeat("A", 10<<10), "eyJxIjoiLi4vYSJ9"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		named, err := Token(text).Read()
		switch {
		case err != nil && !errors.Is(err, lua.ErrInvalid):
			t.Fatal(err)
		case err == nil && named.Token() != Token(text):
			t.Fatalf("%s is also spelt %s", named.Token(), text)
		case err == nil:
			again, err := tokenOf(&stream.Message{Queue: named.Queue, Partition: named.Partition, Group: named.Group,
				EntryID: named.Entry, ID: named.ID, Extra: map[string]string{lua.FieldKey: named.Key}}).Read()
			if err != nil || again != named {
				t.Fatalf("%+v is read as %+v, %v", named, again, err)
			}
		}
	})
}
