package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/message"
	"github.com/duestream/duestream/lua"
)

// keyWindow is how long an Idempotency-Key is remembered if the request has no dedup_ms.
const keyWindow = 24 * time.Hour

const headerPrefix = "Duestream-Header-" // in the canonical form of net/http

// receipt is the answer for a stored message.
type receipt struct {
	ID        string    `json:"id,omitempty"`
	Due       time.Time `json:"due,omitzero"`
	Ready     bool      `json:"ready,omitempty"`
	Replaced  bool      `json:"replaced,omitempty"`
	Duplicate bool      `json:"duplicate,omitempty"` // an earlier request had the same Idempotency-Key
}

// text returns the JSON form of a receipt, faster than encode, because most answers are receipts. It returns false
// for a receipt that only encode can write.
func (r receipt) text() ([]byte, bool) {
	needsEscape := func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }
	if r.ID == "" || r.Due.Year() > 9999 || strings.ContainsFunc(r.ID, needsEscape) {
		return nil, false
	}
	b := append(make([]byte, 0, 160), `{"id":"`...)
	b = append(append(b, r.ID...), '"')
	if !r.Due.IsZero() {
		b = append(b, `,"due":"`...)
		b = append(r.Due.AppendFormat(b, time.RFC3339Nano), '"')
	}
	for _, flag := range []struct {
		isSet  bool
		member string
	}{{r.Ready, `,"ready":true`}, {r.Replaced, `,"replaced":true`}, {r.Duplicate, `,"duplicate":true`}} {
		if flag.isSet {
			b = append(b, flag.member...)
		}
	}
	return append(b, "}\n"...), true
}

// publish schedules one message. The body is its payload.
func publish(c *call) (int, any, error) {
	m, err := parseOptions(c.query)
	if err != nil {
		return 0, nil, err
	}
	if m.Headers, err = messageHeaders(c.R.Header); err != nil {
		return 0, nil, err
	}
	keyed, err := c.idempotent(&m)
	if err != nil {
		return 0, nil, err
	}
	if m.Payload, err = c.Body(c.cfg.MaxPayload); err != nil {
		return 0, nil, err
	}
	got, err := c.client.Send(c.Ctx, c.queue, m)
	if keyed && errors.Is(err, bridge.ErrDuplicate) && !errors.Is(err, bridge.ErrNotDurable) {
		return http.StatusOK, receipt{ID: m.ID, Duplicate: true}, nil
	}
	if err != nil {
		return 0, nil, err
	}
	c.w.Header().Set("Location", "/v1/queues/"+c.queue+"/messages/"+url.PathEscape(got.ID))
	return http.StatusCreated, receipt{ID: got.ID, Due: got.Due, Ready: got.Ready, Replaced: got.Replaced}, nil
}

// parseOptions reads a message's options from the query.
func parseOptions(q query) (bridge.NewMessage, error) {
	l, err := message.ParseQuery(q)
	if err != nil {
		return bridge.NewMessage{}, err
	}
	return l.Message(bridge.NewMessage{})
}

// messageHeaders returns the headers of a request that are meant for the message. Their names are lower-cased, because
// names of HTTP headers are not case-sensitive.
func messageHeaders(h http.Header) (map[string]string, error) {
	var headers map[string]string
	for name, values := range h {
		name, is := strings.CutPrefix(name, headerPrefix)
		if !is || name == "" {
			continue
		}
		name = strings.ToLower(name)
		if len(values) > 1 {
			return nil, lua.Invalid("header "+name, "", "must be given once")
		}
		if headers == nil {
			headers = map[string]string{}
		}
		headers[name] = values[0]
	}
	return headers, nil
}

// idempotent applies the header Idempotency-Key: it derives the message's ID from the token's name and the key, and
// sets the dedup window of that ID. It reports whether the request has the header.
func (c *call) idempotent(m *bridge.NewMessage) (bool, error) {
	values := c.R.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return false, nil
	}
	key := values[0]
	switch {
	case len(values) > 1 || key == "" || len(key) > 255:
		return false, lua.Invalid("Idempotency-Key", cut(key), "must be given once, with 1 to 255 bytes")
	case m.ID != "":
		return false, lua.Invalid("id", m.ID, "must not stand beside Idempotency-Key, which gives the message its ID")
	case m.Replace != "":
		return false, lua.Invalid("replace", "", "must not stand beside Idempotency-Key")
	}
	sum := sha256.Sum256([]byte(c.Grant.Name() + "\x00" + key))
	m.ID = "key-" + hex.EncodeToString(sum[:16])
	if m.Dedup == 0 {
		m.Dedup = keyWindow
	}
	return true, nil
}
