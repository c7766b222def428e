package pull

import (
	"encoding/base64"
	"encoding/json"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Token names a delivery: its queue, partition, group, entry, message ID and key. It is opaque to callers, and no secret: whoever
// may consume from the queue may settle what it delivered.
type Token string

// Ticket is what a Token says.
type Ticket struct {
	Queue     string `json:"q"`
	Partition int    `json:"p,omitempty"`
	Group     string `json:"g"`
	Entry     string `json:"e"`
	ID        string `json:"i"`
	Key       string `json:"k,omitempty"`
}

const maxTokenBytes = 8 << 10 // those of the longest names, twice over

func tokenOf(m *stream.Message) Token {
	return Ticket{m.Queue, m.Partition, m.Group, m.EntryID, text(m.ID), text(m.Extra[lua.FieldKey])}.Token()
}

// text returns what another program wrote if a token can hold it, and else nothing: then the entry alone names the delivery.
func text(s string) string {
	if len(s) > lua.MaxIDBytes || !utf8.ValidString(s) {
		return ""
	}
	return s
}

// Token returns the token of a delivery that was found elsewhere, as in a list of what is pending.
func (t Ticket) Token() Token {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and a number
	}
	return Token(base64.RawURLEncoding.EncodeToString(text))
}

// Read returns what a token says. ErrInvalid: nobody was given such a token.
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
		named.Partition < 0 || named.Partition >= lua.MaxPartitions || named.Token() != t { // it has one spelling
		return bad()
	}
	if id, err := view.ParseEntryID(named.Entry); err != nil || id.String() != named.Entry {
		return bad() // another spelling of an entry's ID would be another entry to the client library
	}
	return named, nil
}

func (t *Ticket) held() lua.Held { return lua.Held{Entry: t.Entry, ID: t.ID, Key: t.Key} }

// part is the partition's name, as its keys have it.
func (t *Ticket) part() string { return lua.PartitionName(t.Queue, t.Partition) }
