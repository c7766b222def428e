package pull

import (
	"encoding/base64"
	"encoding/json"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Token identifies a delivery: its queue, partition, group, entry, message ID and ordering key. It is opaque to
// callers. It is no secret: a caller that may consume from the queue may settle all deliveries of the queue.
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

const maxTokenBytes = 8 << 10 // twice the size of a token with the longest names

func tokenOf(m *stream.Message) Token {
	return Ticket{
		Queue: m.Queue, Partition: m.Partition, Group: m.Group, Entry: m.EntryID,
		ID: tokenText(m.ID), Key: tokenText(m.Extra[lua.FieldKey]),
	}.Token()
}

// tokenText returns a text if a token can hold it, else "". Another program may have written a text that is too long or
// not UTF-8; then the entry alone identifies the delivery.
func tokenText(s string) string {
	if len(s) > lua.MaxIDBytes || !utf8.ValidString(s) {
		return ""
	}
	return s
}

// Token returns the token of a delivery, for example of one found in a list of pending entries.
func (t Ticket) Token() Token {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // cannot happen: a Ticket holds only strings and a number
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
	var ticket Ticket
	if json.Unmarshal(text, &ticket) != nil {
		return bad()
	}
	if lua.CheckQueue(ticket.Queue) != nil || lua.CheckGroup(ticket.Group) != nil {
		return bad()
	}
	if ticket.Partition < 0 || ticket.Partition >= lua.MaxPartitions {
		return bad()
	}
	if ticket.Token() != t { // a ticket has only one token
		return bad()
	}
	// The client library would take another spelling of an entry's ID for another entry.
	if id, err := view.ParseEntryID(ticket.Entry); err != nil || id.String() != ticket.Entry {
		return bad()
	}
	return ticket, nil
}

func (t *Ticket) held() lua.Held { return lua.Held{Entry: t.Entry, ID: t.ID, Key: t.Key} }

// partitionName returns the name of the partition, as in its keys.
func (t *Ticket) partitionName() string { return lua.PartitionName(t.Queue, t.Partition) }
