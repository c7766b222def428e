package bridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/duestream/duestream/lua"
)

// Cancel cancels the scheduled message of this kind about a value, as Client.Cancel does with its UniqueID. The value
// needs only the fields that UniqueBy returns. A message that runs, or waits for its retry, goes on: see Retries and
// Client.CancelRunning. Errors as for Client.Cancel and UniqueID.
func (k Kind[T]) Cancel(ctx context.Context, c *Client, value T, scopes ...Scope) error {
	id, err := k.UniqueID(value)
	if err != nil {
		return err
	}
	return c.Cancel(ctx, k.Queue, id, scopes...)
}

// UniqueID returns the ID of the messages of this kind about a value. Client.Cancel and Client.Reschedule take this ID.
// The error is ErrInvalid also if the kind has no UniqueBy, or if one of its values cannot be encoded as JSON.
//
// The ID is the name of the kind, a colon, and the values as JSON, with commas between them: close-order:42,"north". If
// this text is longer than 256 bytes or has control characters, the values are replaced by # and the SHA-256 of their
// JSON, in hexadecimal. The ordering key is the same text. A producer in another language must set both.
func (k Kind[T]) UniqueID(value T) (string, error) {
	id, err := k.uniqueID(value)
	return id, lua.Faults("kind", k.check(), err)
}

func (k Kind[T]) uniqueID(value T) (string, error) {
	if k.UniqueBy == nil {
		return "", lua.Invalid("kind", k.Name, "has no UniqueBy")
	}
	var all []string
	for _, field := range k.UniqueBy(value) {
		text, err := uniqueText(field)
		if err != nil {
			return "", err
		}
		all = append(all, text)
	}
	id := k.Name + ":" + strings.Join(all, ",")
	if lua.CheckID(id) != nil {
		sum := sha256.Sum256([]byte(id[len(k.Name)+1:]))
		id = k.Name + ":#" + hex.EncodeToString(sum[:]) // no value begins with # in JSON
	}
	return id, nil
}

// uniqueText returns a value as JSON.
func uniqueText(value any) (string, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "", lua.Invalid("unique by", fmt.Sprintf("%T", value), "cannot be encoded: %v", err)
	}
	// The encoder writes \ufffd for bytes that are not UTF-8, so two such values would have one ID.
	// A backslash of the value is written twice.
	if bytes.Contains(bytes.ReplaceAll(text.Bytes(), []byte(`\\`), nil), []byte(`\ufffd`)) {
		return "", lua.Invalid("unique by", fmt.Sprint(value), "must be UTF-8")
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// makeUnique sets the ID and the ordering key of a message.
func (k Kind[T]) makeUnique(m *NewMessage, value T) error {
	switch {
	case m.ID != "":
		return lua.Invalid("id", m.ID, "is set by UniqueBy alone")
	case m.Key != "":
		return lua.Invalid("key", m.Key, "is set by UniqueBy alone")
	}
	id, err := k.uniqueID(value)
	m.ID, m.Key = id, id
	return err
}
