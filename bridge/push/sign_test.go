package push

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The expected value was computed by the specification's libraries for Go and JavaScript, and by openssl.
func TestSignatureIsThatOfTheSpecification(t *testing.T) {
	t.Parallel()
	secret, ok := secretOf(testKey)
	redistest.Want(t, "key", ok, true)
	got := sign([][]byte{secret}, "msg_1", time.Unix(1700000000, 0), []byte(`{"type":"message.due","id":"01J"}`))
	redistest.Want(t, "signature", got, "v1,r9+JzlhmuBb/49Ok9M1v0heIky8+IqqozYqND0Odv5o=")
}

// The specification's own library verifies requests with payloads of all kinds, signed with one key and with two.
func TestRequestsAreVerifiedByTheStandardLibrary(t *testing.T) {
	t.Parallel()
	v := newReceiver(t, nil)
	old := NewKey()
	for _, c := range []struct{ payload, contentType, encoding, body string }{
		{`{"a": 1}`, "application/json", "", `{"a": 1}`},
		{"hello, wörld\n", "text/plain; charset=utf-8", "", "hello, wörld\n"},
		{"", "text/plain; charset=utf-8", "", ""},
		{"\xff\x00\xfe", "application/json", "base64", `{"base64":"/wD+"}`},
		{`{"base64":"/wD+"}`, "application/json", "", `{"base64":"/wD+"}`},
		{"\"\xff\"", "application/json", "base64", `{"base64":"Iv8i"}`},
	} {
		target := to(v.URL)
		target.Keys = []string{testKey, old}
		p := newPoster(target, nil, nil)
		if down, err := p.deliver(t.Context(), message("order.1", c.payload)); down || err != nil {
			t.Fatal(down, err)
		}
		all := v.requests()
		got := all[len(all)-1]
		redistest.Want(t, "content type", got.Get("Content-Type"), c.contentType)
		redistest.Want(t, "encoding", got.Get("Duestream-Encoding"), c.encoding)
		redistest.Want(t, "body", string(got.body), c.body)
		redistest.Want(t, "id", got.Get("webhook-id"), "q:order%2E1")
		for _, key := range target.Keys {
			verifier, err := standard.NewWebhook(key)
			if err == nil {
				err = verifier.Verify(got.body, got.Header)
			}
			if err != nil {
				t.Errorf("%q: %v", c.payload, err)
			}
		}
		verifier, _ := standard.NewWebhook(NewKey())
		if verifier.Verify(got.body, got.Header) == nil {
			t.Error("the request verifies with another key")
		}
		p.close()
	}
}

// The webhook-id of a message is unique, and holds no dot, space or line end.
func TestDeliveryIDsAreUniqueAndPlain(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, c := range [][2]string{{"q", "a"}, {"q", "a.b"}, {"q.a", "b"}, {"q:a", "b"}, {"q", "a:b"}, {"q", "a%2Eb"},
		{"q", "a b"},
		{"q", "ä"}, {"q", "a\r\nX: y"}, {"q", "a\x00"}, {"q", "\xff"}, {"Q", "a"}} {
		id := DeliveryID(c[0], c[1])
		if other, twice := seen[id]; twice {
			t.Errorf("%q and %q are both %s", c, other, id)
		}
		seen[id] = c[0] + " " + c[1]
		if strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_%:") != "" {
			t.Errorf("%q is %q", c, id)
		}
	}
}

// A key is whsec_ and 24 to 64 bytes in base64. The error about another key does not show it.
func TestKeysAreCheckedAndNotShown(t *testing.T) {
	t.Parallel()
	if err := CheckKey(NewKey()); err != nil {
		t.Error(err)
	}
	keyOf := func(n int) string { // a key of n bytes
		return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n))
	}
	for key, fits := range map[string]bool{
		keyOf(24): true, keyOf(64): true, keyOf(23): false, keyOf(65): false, "": false, "whsec_": false,
		strings.TrimPrefix(testKey, "whsec_"): false, testKey + "\n": false, testKey[:20] + "\n" + testKey[20:]: false, "whsec_not base64": false,
		strings.TrimSuffix(testKey, "="): false} {
		err := CheckKey(key)
		if (err == nil) != fits || err != nil && !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("key %q: %v", key, err)
		}
		if err != nil && len(key) > 10 && strings.Contains(err.Error(), key[6:]) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
}

// Names of messages and groups, and headers of messages, cannot add a header to a request or repeat one. A target with
// headers that could do so is refused.
func TestNamesInjectNoHeaders(t *testing.T) {
	t.Parallel()
	v := newReceiver(t, nil)
	p := newPoster(to(v.URL), nil, nil)
	defer p.close()
	m := message("a\r\nX-Evil: 1\r\n\r\nGET / HTTP/1.1", "x")
	m.Group = "g\r\nX-Evil: 1"
	m.Headers = map[string]string{"X-Evil": "1", "Host": "evil", "webhook-id": "1"}
	if _, err := p.deliver(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	got := v.requests()[0]
	redistest.Want(t, "evil header", got.Get("X-Evil"), "")
	for name, values := range got.Header {
		if len(values) != 1 {
			t.Errorf("%s: %q", name, values)
		}
	}
	for _, headers := range []map[string]string{{"X-A": "a\r\nb: c"}, {"X-A\r\n": "a"}, {"Host": "x"}, {"content-LENGTH": "0"},
		{"Webhook-Id": "x"}, {"duestream-queue": "x"}, {"Transfer-Encoding": "chunked"}, {"X-A": ""}, {"X-A": " a"}, {"X-A": "ä"},
		{"X-A": strings.Repeat("a", 2000)}, {"X A": "a"}, {"": "a"}, {"x-a": "1", "X-A": "2"}, {"Connection": "close"}} {
		target := to(v.URL)
		target.Headers = headers
		if err := target.Check(); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%q: %v", headers, err)
		}
	}
	target := to(v.URL)
	target.Headers = map[string]string{"Authorization": "Bearer abc def"}
	p = newPoster(target, nil, nil)
	defer p.close()
	if _, err := p.deliver(t.Context(), message("m", "x")); err != nil || target.Check() != nil {
		t.Fatal(err, target.Check())
	}
	redistest.Want(t, "authorization", v.requests()[1].Get("Authorization"), "Bearer abc def")
	redistest.Want(t, "length", v.requests()[1].Header[http.CanonicalHeaderKey("Content-Length")][0], "1")
}
