package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// keyWindow is for how long an Idempotency-Key is remembered, where dedup_ms says nothing.
const keyWindow = 24 * time.Hour

const headerPrefix = "Duestream-Header-"

// receipt is what is said of a message that was taken.
type receipt struct {
	ID        string    `json:"id,omitempty"`
	Due       time.Time `json:"due,omitzero"`
	Ready     bool      `json:"ready,omitempty"`
	Replaced  bool      `json:"replaced,omitempty"`
	Duplicate bool      `json:"duplicate,omitempty"` // a request with the same Idempotency-Key was there before
}

// publish takes the body as the payload of one message.
func publish(c *call) (int, any, error) {
	m, err := parseOptions(c.query)
	if err != nil {
		return 0, nil, err
	}
	if m.Headers, err = messageHeaders(c.r.Header); err != nil {
		return 0, nil, err
	}
	keyed, err := c.idempotent(&m)
	if err != nil {
		return 0, nil, err
	}
	if m.Payload, err = c.body(c.cfg.MaxPayload); err != nil {
		return 0, nil, err
	}
	got, err := c.client.Schedule(c.ctx, c.queue, nil, func(to *bridge.NewMessage) { *to = m })
	if keyed && errors.Is(err, bridge.ErrDuplicate) {
		return http.StatusOK, receipt{ID: m.ID, Duplicate: true}, nil
	}
	if err != nil {
		return 0, nil, err
	}
	c.w.Header().Set("Location", "/v1/queues/"+c.queue+"/messages/"+url.PathEscape(got.ID))
	return http.StatusCreated, receipt{ID: got.ID, Due: got.Due, Ready: got.Ready, Replaced: got.Replaced}, nil
}

// messageHeaders returns those of a request that are meant for the message. HTTP does not tell capitals apart, so names come in
// small letters.
func messageHeaders(h http.Header) (map[string]string, error) {
	headers := map[string]string{}
	for name, values := range h {
		name, is := strings.CutPrefix(name, textproto.CanonicalMIMEHeaderKey(headerPrefix))
		if !is || name == "" {
			continue
		}
		name = strings.ToLower(name)
		if len(values) > 1 {
			return nil, lua.Invalid("header "+name, "", "must be given once")
		}
		headers[name] = values[0]
	}
	if len(headers) == 0 {
		return nil, nil
	}
	return headers, nil
}

// idempotent gives a message an ID that follows from the name of the token and the key of the request, and a window in which that
// ID is refused.
func (c *call) idempotent(m *bridge.NewMessage) (bool, error) {
	values := c.r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return false, nil
	}
	key := values[0]
	switch {
	case len(values) > 1 || key == "" || len(key) > 255:
		return false, lua.Invalid("Idempotency-Key", cut(key), "must be given once, with 1 to 255 bytes")
	case m.ID != "":
		return false, lua.Invalid("id", m.ID, "must not stand beside Idempotency-Key, which makes one")
	case m.Replace != "":
		return false, lua.Invalid("replace", "", "must not stand beside Idempotency-Key")
	}
	sum := sha256.Sum256([]byte(c.grant.Name() + "\x00" + key))
	m.ID = "key-" + hex.EncodeToString(sum[:16])
	if m.Dedup == 0 {
		m.Dedup = keyWindow
	}
	return true, nil
}
