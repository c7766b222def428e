package push

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/lua"
)

// Headers of a request.
const (
	HeaderID        = "webhook-id"         // DeliveryID of the message: the same at each attempt
	HeaderTimestamp = "webhook-timestamp"  // of the attempt, Unix seconds
	HeaderSignature = "webhook-signature"  // for each key "v1," and the signature in base64, separated by spaces
	HeaderQueue     = "Duestream-Queue"    // the queue's name
	HeaderGroup     = "Duestream-Group"    // percent-encoded like a message ID in webhook-id
	HeaderAttempt   = "Duestream-Attempt"  // from 1
	HeaderDue       = "Duestream-Due"      // when this attempt was due, RFC 3339 with milliseconds, UTC
	HeaderEncoding  = "Duestream-Encoding" // "base64" if the payload is not UTF-8: then the body is {"base64":"…"}
)

const (
	keyPrefix                 = "whsec_"
	minKeyBytes, maxKeyBytes  = 24, 64
	newKeyBytes               = 32
	contentJSON, contentPlain = "application/json", "text/plain; charset=utf-8"
)

// NewKey returns a random signing key.
func NewKey() string {
	secret := make([]byte, newKeyBytes)
	_, _ = rand.Read(secret) // never fails
	return keyPrefix + base64.StdEncoding.EncodeToString(secret)
}

// CheckKey returns ErrInvalid unless the text is a signing key. The error does not show the text.
func CheckKey(text string) error {
	if _, ok := secretOf(text); !ok {
		return &lua.InvalidError{Field: "key", Value: fmt.Sprintf("of %d characters", len(text)),
			Rule: fmt.Sprintf("must be %s and the base64 of %d to %d bytes", keyPrefix, minKeyBytes, maxKeyBytes)}
	}
	return nil
}

// secretOf returns the secret bytes of a signing key.
func secretOf(key string) (secret []byte, ok bool) {
	text, ok := strings.CutPrefix(key, keyPrefix)
	if !ok || strings.ContainsAny(text, "\r\n") { // the decoder would ignore line ends
		return nil, false
	}
	secret, err := base64.StdEncoding.Strict().DecodeString(text)
	return secret, err == nil && len(secret) >= minKeyBytes && len(secret) <= maxKeyBytes
}

// sign returns the signatures of a request, one for each key, separated by spaces.
func sign(secrets [][]byte, id string, at time.Time, body []byte) string {
	all := make([]string, len(secrets))
	for i, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
		mac.Write(body)
		all[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(all, " ")
}

// DeliveryID returns the webhook-id of a message: its queue, a colon and its ID. In the queue and the ID, all bytes
// except letters, digits, hyphens and underscores are percent-encoded. A DeliveryID is unique. It has no dot, because a
// dot would make the signed text ambiguous.
func DeliveryID(queue, id string) string { return percentEncode(queue) + ":" + percentEncode(id) }

// percentEncode percent-encodes all bytes except letters, digits, - and _.
func percentEncode(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// bodyOf returns the request body for a payload: the payload itself if it is UTF-8, else JSON with the payload in
// base64. A body is always UTF-8, because verifiers in some languages decode it as UTF-8 before they compute the
// signature.
func bodyOf(payload []byte) (body []byte, contentType string, encoded bool) {
	switch {
	case !utf8.Valid(payload):
		body, err := json.Marshal(map[string][]byte{"base64": payload})
		if err != nil {
			panic(err) // bytes always encode
		}
		return body, contentJSON, true
	case json.Valid(payload):
		return payload, contentJSON, false
	}
	return payload, contentPlain, false
}

// seconds returns a time in whole Unix seconds.
func seconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
