package gateway

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// A scheduled message can be read, rescheduled and cancelled at its Location, with binary payload and an ID that needs
// escapes. After that it is not found.
func TestAMessageIsPublishedMovedAndCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	binary := "\xff\xfe <&> é"
	a := r.do("POST", "/v1/queues/orders/messages?id=o%2F1&in_ms=600000&max_attempts=3&key=k", binary,
		"Duestream-Header-Trace: T1",
		"Content-Type: image/png").want(http.StatusCreated)
	if a.header.Get("Location") != "/v1/queues/orders/messages/o%2F1" {
		t.Errorf("Location: %s", a.header.Get("Location"))
	}
	at := a.header.Get("Location")
	r.do("GET", at, "").want(http.StatusOK).has(`"state":"scheduled"`).has(`"headers":{"trace":"T1"}`).
		has(`"base64":"//4gPCY+IMOp"`).has(`"max_attempts":3`).has(`"key":"k"`)
	r.do("POST", "/v1/queues/orders/messages?id=o%2F1", "").refused(http.StatusConflict, typeDuplicate)
	r.do("GET", "/v1/messages/o%2F1", "").want(http.StatusOK).has(`"queue":"orders"`)
	var moved receipt
	when := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	r.do("PATCH", fmt.Sprintf("%s?at_ms=%d", at, when.UnixMilli()), "").want(http.StatusOK).read(&moved)
	if !moved.Due.Equal(when) {
		t.Errorf("the message was moved to %v, want %v", moved.Due, when)
	}
	r.do("PATCH", at, "").refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("PATCH", at+"?in_ms=1&at_ms=1767000000000", "").refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("DELETE", at, "").want(http.StatusNoContent)
	r.do("DELETE", at, "").refused(http.StatusNotFound, typeNotScheduled)
	r.do("PATCH", at+"?in_ms=5", "").refused(http.StatusNotFound, typeNotScheduled)
	r.do("GET", at, "").refused(http.StatusNotFound, typeNotFound)
}

// An invalid option of a message is refused with its field and its limit, and the answer does not show the payload.
func TestAWrongOptionIsNamedWithItsLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for query, field := range map[string]string{"in_ms=-1": "in_ms", "in_ms=x": "in_ms", "at_ms=5": "at_ms", "id=": "id",
		"in_ms=1&at_ms=1767000000000": "at_ms", "max_attempts=0": "max_attempts", "replace=yes": "replace", "key=": "key",
		"retry_delays_ms=1,,2": "retry_delays_ms", "in_ms=99999999999999999999": "in_ms",
		"spread_ms=9223372036854775807": "spread_ms",
		"dedup_ms=5":                    "dedup", "id=a%00": "id", "max_snoozes=1000001": "max_snoozes",
		"handler_timeout_ms=-1": "handler_timeout"} {
		var p problem
		r.do("POST", "/v1/queues/orders/messages?"+query, "secret-payload").refused(http.StatusUnprocessableEntity,
			typeInvalid).read(&p)
		if !strings.HasPrefix(p.Field, field) || p.Limit == "" {
			t.Errorf("%s: the problem names %q with limit %q, want %q", query, p.Field, p.Limit, field)
		}
	}
	r.do("POST", "/v1/queues/orders/messages?max_attempts=0&in_ms=-1", "").has(`"errors":[`)
	r.do("POST", "/v1/queues/orders/messages", "", "Duestream-Header-X: \xff").refused(http.StatusUnprocessableEntity,
		typeInvalid)
}

// A repeated request with the same Idempotency-Key returns the first receipt and stores nothing. The key is the token's
// own, and must not stand beside an ID or replace.
func TestAnIdempotencyKeyHasAMessageTakenOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var first, second receipt
	key := "Idempotency-Key: order 1"
	r.do("POST", "/v1/queues/orders/messages", "a", key).want(http.StatusCreated).read(&first)
	r.do("POST", "/v1/queues/orders/messages", "a", key).want(http.StatusOK).read(&second)
	if first.ID != second.ID || first.Duplicate || !second.Duplicate {
		t.Errorf("first %+v, second %+v", first, second)
	}
	// The same key of another token is another key.
	other := r.allow(access.Token{Name: "other", Verbs: []access.Verb{access.Publish}, Queues: []string{"*"}})
	r.do("POST", "/v1/queues/orders/messages", "b", key, "Authorization: Bearer "+other).want(http.StatusCreated)
	r.do("POST", "/v1/queues/orders/messages?id=x", "b", key).refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("POST", "/v1/queues/orders/messages?replace=later", "b", key).refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("POST", "/v1/queues/orders/messages", "b", "Idempotency-Key: "+strings.Repeat("k", 256)).
		refused(http.StatusUnprocessableEntity, typeInvalid)
}

// MaxPayload bounds a body, and a gzip body by its unpacked size. A gzip body that is malformed or cut off is refused.
func TestABodyIsBoundedAlsoWhenItIsUnpacked(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxPayload = 1000 })
	const path = "/v1/queues/orders/messages"
	r.do("POST", path, strings.Repeat("x", 1000)).want(http.StatusCreated)
	r.do("POST", path, strings.Repeat("x", 1001)).refused(http.StatusRequestEntityTooLarge, typeTooLarge).has("1000 bytes")
	r.do("POST", path, zipped(strings.Repeat("x", 1000)), "Content-Encoding: gzip").want(http.StatusCreated)
	r.do("POST", path, zipped(strings.Repeat("x", 1<<20)), "Content-Encoding: gzip").
		refused(http.StatusRequestEntityTooLarge, typeTooLarge)
	r.do("POST", path, "not gzip", "Content-Encoding: gzip").refused(http.StatusBadRequest, typeMalformed)
	cutOff := zipped(strings.Repeat("x", 900))
	r.do("POST", path, cutOff[:len(cutOff)-4], "Content-Encoding: gzip").refused(http.StatusBadRequest, typeMalformed)
	r.do("POST", path, "x", "Content-Encoding: br").refused(http.StatusUnsupportedMediaType, typeMedia)
}

// zipped returns a text in gzip.
func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// unpacked returns a reader of what is in a gzip text.
func unpacked(t *testing.T, packed string) io.Reader {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// A large answer is in gzip if the caller accepts gzip, and plain otherwise.
func TestALargeAnswerIsCompressedForWhoAsks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("POST", "/v1/queues/orders/messages?id=x&in_ms=60000", strings.Repeat("y", 5000)).want(http.StatusCreated)
	plain := r.do("GET", "/v1/queues/orders/messages/x", "", "Accept-Encoding: gzip;q=0")
	small := r.do("GET", "/v1/queues/orders/messages/x", "", "Accept-Encoding: br, gzip")
	z, err := gzip.NewReader(bytes.NewReader(small.body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil || !bytes.Equal(text, plain.body) || len(small.body) > 1000 || plain.header.Get("Content-Encoding") != "" {
		t.Errorf("%d bytes, %d compressed, error %v", len(plain.body), len(small.body), err)
	}
}

const ndjsonType = "Content-Type: application/x-ndjson"

const jsonType = "Content-Type: application/json"

// A batch has one verdict for each line, with the line's number. A bad line does not stop the lines after it. Empty
// lines have no verdict, but count as lines.
func TestManyAreTakenWithAVerdictForEach(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxPayload = 1000 })
	lines := `{"id":"a","payload":"x","in_ms":60000}` + "\n\n" + `{"id":"a"}` + "\n" +
		`{"id":"b","payload":{"n":1},"headers":{"h":"v"}}` +
		"\n" + `{"secret":1}` + "\n" + `[]` + "\n" + `{"payload_base64":"//4="}` + "\n" + `{"in_ms":-1}` + "\n" +
		`{"payload":"` + strings.Repeat("x", 1001) + `"}` + "\n" + `{"payload":"` + strings.Repeat("x", 140<<10) +
		`"}` + "\n" +
		`{"id":1}` + "\n" + `{"id":"z"}`
	a := r.do("POST", "/v1/queues/orders/batch", lines, ndjsonType).want(http.StatusOK)
	var got []string
	for line := range strings.Lines(string(a.body)) {
		var v verdict
		answer{t: t, body: []byte(line)}.read(&v)
		text := fmt.Sprint(v.Line, " ok")
		if v.Problem != nil {
			text = fmt.Sprint(v.Line, " ", v.Problem.Status)
		}
		got = append(got, text)
	}
	want := "1 ok, 3 409, 4 ok, 5 400, 6 400, 7 ok, 8 422, 9 413, 10 413, 11 400, 12 ok"
	if strings.Join(got, ", ") != want {
		t.Errorf("verdicts %s, want %s\n%s", strings.Join(got, ", "), want, a.body)
	}
	r.do("GET", "/v1/queues/orders/messages/b", "").has(`"payload":"{\"n\":1}"`).has(`"h":"v"`)
	array := r.do("POST", "/v1/queues/orders/batch", `[{"id":"q","in_ms":60000},{"id":"q"},5]`,
		"Content-Type: application/json").want(http.StatusOK)
	array.has(`"line":1,"id":"q"`).has(`"line":2,"problem":{"type":"` + typeDuplicate).
		has(`"line":3,"problem":{"type":"` + typeMalformed)
	r.do("POST", "/v1/queues/orders/batch", `{}`, "Content-Type: application/json").refused(http.StatusBadRequest,
		typeMalformed)
	r.do("POST", "/v1/queues/orders/batch", `null`, "Content-Type: application/json").refused(http.StatusBadRequest,
		typeMalformed)
	r.do("POST", "/v1/queues/orders/batch", `{}`, "Content-Type: text/plain").refused(http.StatusUnsupportedMediaType,
		typeMedia)
	r.do("POST", "/v1/queues/orders/batch", "\n", ndjsonType).want(http.StatusOK)
}

// A caller that writes a line and waits gets its verdict, while the request goes on.
func TestAStreamAnswersEachLineAsItComes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, http2 := range []bool{false, true} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!http2)
		protocols.SetUnencryptedHTTP2(http2)
		transport := &http.Transport{Protocols: protocols}
		defer transport.CloseIdleConnections()
		in, out := io.Pipe()
		req, _ := http.NewRequestWithContext(t.Context(), "POST", r.base+"/v1/queues/orders/batch", in)
		req.Header.Set("Authorization", "Bearer "+r.token)
		req.Header.Set("Content-Type", "application/x-ndjson")
		first := make(chan error, 1)
		go func() {
			_, err := io.WriteString(out, `{"payload":"1"}`+"\n")
			first <- err
		}()
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewScanner(res.Body)
		for i := 1; i <= 3; i++ {
			if !answers.Scan() || !strings.HasPrefix(answers.Text(), fmt.Sprintf(`{"line":%d,"id":`, i)) {
				t.Fatalf("http2 %v: line %d is answered by %q", http2, i, answers.Text())
			}
			if i < 3 {
				if _, err := io.WriteString(out, "{}\n"); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = out.Close()
		if answers.Scan() {
			t.Errorf("http2 %v: after the last answer comes %q", http2, answers.Text())
		}
		_ = res.Body.Close()
	}
}

// A batch larger than the burst of its token passes on a full bucket, and each of its messages counts against the rate.
// Regression: the request itself was charged before its messages, so such a batch never passed.
func TestABatchLargerThanTheBurstPassesOnAFullBucket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const three = `[{"payload":"a"},{"payload":"b"},{"payload":"c"}]`
	for i, c := range []struct {
		kind, body string
		burst      int
	}{
		{"application/json", three, 1},
		{"application/json", three, 3},
		{"application/x-ndjson", `{"payload":"a"}` + "\n", 1}, // a stream with more lines would wait for its rate
	} {
		token := "Authorization: Bearer " + r.allow(access.Token{Name: fmt.Sprint(i), Verbs: []access.Verb{access.Publish},
			Queues: []string{"*"}, Rate: "1/h", Burst: c.burst})
		got := r.do("POST", "/v1/queues/orders/batch", c.body, token, "Content-Type: "+c.kind)
		if got.status != http.StatusOK || strings.Contains(string(got.body), "problem") {
			t.Fatalf("%d: %d %s", i, got.status, got.body)
		}
		r.do("POST", "/v1/queues/orders/messages", "", token).refused(http.StatusTooManyRequests, typeRate)
	}
}

// Regression: a body that was refused or held no message was not charged to the rate, although reading it cost work.
func TestARefusedBatchCountsAgainstTheRate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, c := range []struct {
		kind, body string
		status     int
	}{
		{"application/json", `[{"payload":"a"},`, http.StatusBadRequest},
		{"application/json", "[]", http.StatusOK},
		{"application/x-ndjson", "\n\n", http.StatusOK},
		{"application/x-ndjson", "{]\n", http.StatusOK},
	} {
		token := "Authorization: Bearer " + r.allow(access.Token{Name: fmt.Sprint(i), Verbs: []access.Verb{access.Publish},
			Queues: []string{"*"}, Rate: "1/h"})
		got := r.do("POST", "/v1/queues/orders/batch", c.body, token, "Content-Type: "+c.kind)
		redistest.Want(t, fmt.Sprintf("status of %q", c.body), got.status, c.status)
		// These bodies would be refused with another status if they were read. The used-up rate must refuse them
		// before.
		for _, body := range []string{"[}", strings.Repeat(" ", maxArrayBytes+1)} {
			r.do("POST", "/v1/queues/orders/batch", body, token, "Content-Type: application/json").refused(
				http.StatusTooManyRequests, typeRate)
		}
	}
}

// Empty lines are not charged to the rate, so their number is bounded. Some are allowed, because some programs write
// empty lines between messages. A line that is too long is charged by its length. Regression: 65 KB of empty lines in
// gzip took twelve seconds of processor time.
func TestEmptyAndEndlessLinesAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const path = "/v1/queues/orders/batch"
	send := func(lines string, headers ...string) answer {
		t.Helper()
		return r.do("POST", path, zipped(lines), append(headers, ndjsonType, "Content-Encoding: gzip")...)
	}
	few := strings.Repeat(`{"payload":"a","in_ms":3600000}`+"\n\n\r\n \n", 500)
	text := string(send(few).want(http.StatusOK).body)
	if strings.Count(text, `"id"`) != 500 || strings.Contains(text, "problem") {
		t.Errorf("with a few empty lines: %.300s", text)
	}
	weak := "Authorization: Bearer " + r.allow(access.Token{Name: "weak", Verbs: []access.Verb{access.Publish},
		Queues: []string{"*"}, Rate: "1/h", Burst: 10})
	for _, lines := range []string{strings.Repeat("\n", 16<<20), strings.Repeat(strings.Repeat(" ", 100)+"\n", 100_000),
		strings.Repeat(" ", 2<<20) + "\n" + few} {
		packed := zipped(lines)
		began := time.Now()
		if _, err := io.Copy(io.Discard, unpacked(t, packed)); err != nil {
			t.Fatal(err)
		}
		floor := time.Since(began)
		began = time.Now()
		r.do("POST", path, packed, weak, ndjsonType, "Content-Encoding: gzip").want(http.StatusOK).has("more empty lines")
		if took := time.Since(began); took > 20*floor+2*time.Second { // before the limit it took eighty times as long
			t.Errorf("%d bytes took %s, where unpacking all of them takes %s", len(lines), took, floor)
		}
	}
	// One line that costs more than is left of the burst is refused, and not charged.
	send(strings.Repeat("x", 30<<20)+"\n", weak).want(http.StatusTooManyRequests)
	send(`{"payload":"a"}`, weak).want(http.StatusOK)
}
