package pull

import (
	"encoding/base64"
	"encoding/json"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Token identifies a delivery: its queue, partition, group, entry, message ID and key. It is opaque to callers, and no
// secret: whoever may consume from the queue may settle its deliveries.
type Token string

// Ticket is the content of a Token.
type Ticket struct {
	Queue     string `json:"q"`
	Partition int    `json:"p,omitempty"`
	Group     string `json:"g"`
	Entry     string `json:"e"`
	ID        string `json:"i"`
	Key       string `json:"k,omitempty"`
}

const maxTokenBytes = 8 << 10 // twice that of the longest names

func tokenOf(m *stream.Message) Token {
	return Ticket{m.Queue, m.Partition, m.Group, m.EntryID, text(m.ID), text(m.Extra[lua.FieldKey])}.Token()
}

// text returns a text of another program if a token can hold it, else "": then the entry alone identifies the delivery.
func text(s string) string {
	if len(s) > lua.MaxIDBytes || !utf8.ValidString(s) {
		return ""
	}
	return s
}

// Token returns the token of a delivery that was found otherwise, as in a list of pending entries.
func (t Ticket) Token() Token {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and a number
	}
	return Token(base64.RawURLEncoding.EncodeToString(text))
}

// Read parses a token. ErrInvalid: no delivery had such a token.
func (t Token) Read() (Ticket, error) {
	bad := func() (Ticket, error) {
		return Ticket{}, lua.Invalid("token", string(t[:min(len(t), 40)]), "must be one that came with a delivery")
	}
	if len(t) > maxTokenBytes {
		return bad()
	}
	text, err := base64.RawURLEncoding.DecodeString(string(t))
	if err != nil {
		return bad()
	}
	var named Ticket
	if json.Unmarshal(text, &named) != nil || lua.CheckQueue(named.Queue) != nil || lua.CheckGroup(named.Group) != nil ||
		named.Partition < 0 || named.Partition >= lua.MaxPartitions || named.Token() != t { // one spelling only
		return bad()
	}
	if id, err := view.ParseEntryID(named.Entry); err != nil || id.String() != named.Entry {
		return bad() // the client library would take another spelling of an entry's ID for another entry
	}
	return named, nil
}

func (t *Ticket) held() lua.Held { return lua.Held{Entry: t.Entry, ID: t.ID, Key: t.Key} }

// part returns the partition's name, as in its keys.
func (t *Ticket) part() string { return lua.PartitionName(t.Queue, t.Partition) }
