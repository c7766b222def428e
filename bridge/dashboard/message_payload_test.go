package dashboard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// file downloads a file of the dashboard.
func (v *viewer) file(address string) (*http.Response, []byte) {
	v.t.Helper()
	res, err := v.http.Get(v.base + address)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return res, content
}

// payloadAddress returns the address of a payload.
func payloadAddress(queue, id string, payload []byte, as string) string {
	return "payload?" + url.Values{"queue": {queue}, "id": {id}, "digest": {digest(payload)}, "as": {as}}.Encode()
}

// The page of a payload of 5 MiB must stay small and say how much it shows, and the download must be the whole payload,
// byte for byte.
func TestMessagePageOfALargePayload(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	binary := make([]byte, 5<<20)
	for i := range binary {
		binary[i] = byte(i * i >> 3)
	}
	for _, c := range []struct {
		name    string
		payload []byte
		want    string
	}{
		{"text", []byte(strings.Repeat("0123456789abcde\n", 5<<16)), "64.0 KiB of 5.0 MiB shown"},
		{"line", []byte(strings.Repeat("é", 5<<19)), "64.0 KiB of 5.0 MiB shown"},
		{"binary", binary, "16.0 KiB of 5.0 MiB shown"},
		{"json", []byte(`{"all":[` + strings.Repeat(`{"a":"0123456789"},`, 275941) + `1]}`), "KiB of 5.0 MiB shown"},
		{"json string", []byte(`["` + strings.Repeat("a", 5<<20) + `"]`), "5.0 MiB in all"},
		{"deep", []byte(strings.Repeat("[", 5<<20)), "of 5.0 MiB shown"},
	} {
		r.send(r.Queue, c.name, string(c.payload), bridge.In(time.Hour))
		began := time.Now()
		page := v.wantMessage(r.Queue, c.name, c.want, "the page does not look again by itself", "Refresh")
		t.Logf("%s: %d bytes in %s", c.name, len(page), time.Since(began))
		if len(page) > 700<<10 {
			t.Errorf("%s: the page has %d bytes", c.name, len(page))
		}
		if strings.Contains(page, "data-live") {
			t.Errorf("%s: the page reads the payload again and again", c.name)
		}
		res, content := v.file(payloadAddress(r.Queue, c.name, c.payload, ""))
		if !bytes.Equal(content, c.payload) {
			t.Errorf("%s: the download has %d other bytes", c.name, len(content))
		}
		for header, want := range map[string]string{
			"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff",
			"Content-Disposition": "attachment; filename=" + strings.ReplaceAll(c.name, " ", "_") + ".payload",
		} {
			redistest.Want(t, header, res.Header.Get(header), want)
		}
	}
	res, content := v.file(payloadAddress(r.Queue, "binary", binary, "base64"))
	redistest.Want(t, "base64 of the payload", string(content) == base64.StdEncoding.EncodeToString(binary), true)
	redistest.Want(t, "type", res.Header.Get("Content-Type"), "text/plain; charset=utf-8")
	redistest.Want(t, "policy", res.Header.Get("Content-Security-Policy"),
		"sandbox; default-src 'none'; frame-ancestors 'none'")
	res, _ = v.file(payloadAddress(r.Queue, "binary", []byte("another"), ""))
	redistest.Want(t, "status of another payload", res.StatusCode, http.StatusNotFound)
}

// Text that a producer or a worker wrote must never be markup, and no character of it may be invisible or turn others.
func TestMessagePageShowsHostileTexts(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	const script = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>` + "\u202e"
	id, consumer := "id "+script, "c"+script
	r.Groups("g", "g"+script)
	payload := script + "\x00</pre>\x1b[31m"
	r.send(r.Queue, id, payload, bridge.Header("h"+script, "v"+script+"\n\x00"), bridge.Key("k"+script))
	if err := r.op.MakeReady(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	entries := r.Take("g", consumer, 1)
	page := v.wantMessage(r.Queue, id)
	r.fail("g", time.Hour, entries...)
	r.Do("HSET", r.Keys.Meta, lua.Member{Kind: lua.MemberRetry, ID: id, Group: "g", Of: entries[0]}.String(),
		fmt.Sprintf(`{"id":%s,"for":"g","attempt":"2","error":%s}`, quote(t, id), quote(t, strings.Repeat(script, 20_000))))
	page += v.wantMessage(r.Queue, id, "2,048 of "+number(20_000*len(script))+" bytes shown")
	if len(page) > 200<<10 {
		t.Errorf("the page of a message with a large error has %d bytes", len(page))
	}
	r.Do("XADD", r.Keys.Dead, "*", "id", id, "payload", payload, "attempt", "1", "group", "g"+script, "reason", script,
		"error", script, "dead_ms", "1700000000000", "entry", "1-1")
	page += v.wantMessage(r.Queue, id)
	for _, form := range messageForms {
		_, chosen := v.get(messageAddress(r.Queue, id) + "&" +
			url.Values{"do": {form}, "group": {"g" + script}, "letter": {script}}.Encode())
		page += chosen
	}
	_, notice := v.post("do-message-move", url.Values{"queue": {r.Queue}, "id": {id}, "now": {"1"}, "group": {"g"}})
	page += notice
	for _, wrong := range []string{"<script>", "<img src=x", "\x00", "\x1b"} {
		if at := strings.Index(page, wrong); at >= 0 {
			t.Errorf("a page has %q: %s", wrong, page[max(0, at-200):min(len(page), at+100)])
		}
	}
	if text := words(page); strings.Contains(text, "\u202e") { // hidden fields have the exact ID
		t.Errorf("a page turns the direction of its text:\n%s", text)
	}
	res, content := v.file(payloadAddress(r.Queue, id, []byte(payload), "text"))
	redistest.Want(t, "plain text", string(content), payload)
	redistest.Want(t, "type of the plain text", res.Header.Get("Content-Type"), "text/plain; charset=utf-8")
	res, _ = v.file(payloadAddress(r.Queue, id, []byte(payload), ""))
	if name := res.Header.Get("Content-Disposition"); strings.ContainsAny(name, "<>\"'\u202e") {
		t.Errorf("the name of the download is %q", name)
	}
	res, content = v.file("message-json?" + url.Values{"queue": {r.Queue}, "id": {id}}.Encode())
	redistest.Want(t, "type of the JSON", res.Header.Get("Content-Type"), "application/json")
	var all struct{ Places []struct{ Payload string } }
	if err := json.Unmarshal(content, &all); err != nil || len(all.Places) == 0 || all.Places[0].Payload != payload {
		t.Errorf("the JSON of the message: %v\n%.1000s", err, content)
	}
}

func quote(t *testing.T, text string) string {
	t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(quoted)
}

// A payload must be shown as JSON, as text, or in hexadecimal digits, as it is or as the viewer wishes, and equal
// payloads of several places once.
func TestMessagePageShowsPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	const order = `{"id":12345678901234567890,"price":1.10,"id":2,"lines":[{"sku":"a\u00e9"}],"none":{},"note":"\ud800"}`
	r.send(r.Queue, "order", order, bridge.In(time.Hour))
	v.wantMessage(r.Queue, "order", `"id" : 12345678901234567890`, `"price" : 1.10`, `"id" : 2`, `"sku" : "aé"`,
		`"note" : "\ud800"`, `"none" : {}`)
	_, page := v.get(messageAddress(r.Queue, "order") + "&view=text")
	if !strings.Contains(page, "{&#34;id&#34;:12345678901234567890,") {
		t.Errorf("the page does not show JSON as text:\n%s", page)
	}
	_, page = v.get(messageAddress(r.Queue, "order") + "&view=hex")
	if !strings.Contains(page, "00000000  7b 22 69 64 22 3a 31 32  33 34 35 36 37 38 39 30  |{&#34;id&#34;:1234567890|") {
		t.Errorf("the page does not show hexadecimal digits:\n%s", page)
	}
	r.send(r.Queue, "bytes", "\xff\x00A", bridge.In(time.Hour))
	v.wantMessage(r.Queue, "bytes", "ff 00 41", "|..A|", "not UTF-8", "Copy as base64")
	r.send(r.Queue, "empty", "", bridge.In(time.Hour))
	v.wantMessage(r.Queue, "empty", "The payload is empty.")
	for _, group := range []string{"g", "h", "i"} {
		payload := "the same"
		if group == "i" {
			payload = "another"
		}
		r.deadLetter("many", group, payload)
	}
	page = v.wantMessage(r.Queue, "many", "dead for g", "dead for h", "dead for i", "another")
	redistest.Want(t, "how often the same payload is shown", strings.Count(page, "<pre tabindex=\"0\">the same</pre>"), 1)
}

// The page of a message with very many places must stay small, and say what it leaves out.
func TestMessagePageOfManyPlaces(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	for i := range 60 {
		r.deadLetter("many", "g", fmt.Sprint("payload ", i))
	}
	page := v.wantMessage(r.Queue, "many", "10 further places are not shown", "further payloads are not shown")
	redistest.Want(t, "cards", strings.Count(page, `<article`), maxPlaces)
}

// A large payload takes memory until its reader has it. So a token may read two at a time, whoever reads slowly.
// Regression: 60 readers that took nothing held 700 MiB.
func TestAFewLargePayloadsAreReadAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	payload := strings.Repeat("x", 3<<20)
	r.send(r.Queue, "large", payload, bridge.In(time.Hour))
	v := r.viewer(inspect, r.Queue)
	name := r.request(v).grant.Name()
	first, err := r.dashboard.downloads.join(name)
	if err != nil {
		t.Fatal(err)
	}
	address := "payload?" + url.Values{"queue": {r.Queue}, "id": {"large"}, "digest": {digest([]byte(payload))}}.Encode()
	status, text := v.get(address + "&as=text")
	redistest.Want(t, "status of the second download", status, http.StatusOK)
	redistest.Want(t, "bytes", len(text), len(payload))
	if _, err := r.dashboard.downloads.join(name); err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{address, "message-json?" + url.Values{"queue": {r.Queue}, "id": {"large"}}.Encode()} {
		status, _ = v.get(page)
		redistest.Want(t, "status of the third download", status, http.StatusTooManyRequests)
	}
	r.dashboard.downloads.leave(first)
	status, _ = v.get(address)
	redistest.Want(t, "status after another has ended", status, http.StatusOK)
	downloads := r.dashboard.downloads
	downloads.mu.Lock()
	defer downloads.mu.Unlock()
	redistest.Want(t, "waiting", len(downloads.waiting), 0)
}

// A token that searches messages without end must leave places to others. Regression: one token sent forty requests,
// and each request scanned 300,000 dead letters. Meanwhile nobody else could open a message.
func TestATokenDoesNotTakeAllSearchesOfMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), func(c *Config) { c.Timeout = time.Second })
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	v, other := r.viewer(inspect, r.Queue), r.viewer(inspect, r.Queue)
	for range maxSearches / 2 {
		if _, err := r.dashboard.finders.join(r.request(v).grant.Name()); err != nil {
			t.Fatal(err)
		}
	}
	address := url.Values{"queue": {r.Queue}, "id": {"a"}}.Encode()
	for _, page := range []string{"message?", "message-json?", "payload?"} {
		status, _ := v.get(page + address)
		redistest.Want(t, page, status, http.StatusTooManyRequests)
	}
	status, _ := other.get("message?" + address)
	redistest.Want(t, "status for another token", status, http.StatusOK)
	redistest.Want(t, "waiting", len(r.dashboard.finders.waiting), 0)
}

// Few requests read payloads of dead letters and recurrences at a time. One token cannot take all their places.
// Regression: 2,000 requests of one token for a dead letter of 16 MiB made Redis hold 23 GB, and no bridge could work.
func TestATokenDoesNotReadAllPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), func(c *Config) { c.Timeout = time.Second })
	r.Groups("g")
	r.Do("XADD", r.Keys.Dead, "1700000000000-1", "id", "a", "payload", "p", "group", "g", "reason", "dead_letter",
		"attempt", "1", "dead_ms", "1700000000000")
	r.recur(bridge.Recurrence{Name: "daily", Queue: r.Queue, Cron: "0 9 * * *", Payload: []byte("p")})
	v, other := r.viewer(operate, r.Queue), r.viewer(operate, r.Queue)
	letter := url.Values{"queue": {r.Queue}, "letter": {"1700000000000-1"}, "id": {"a"}}
	daily := url.Values{"queue": {r.Queue}, "name": {"daily"}, "edit": {"daily"}, "cron": {"0 9 * * *"},
		"missed": {"once"}, "overlap": {"allow"}}
	asked := map[string]url.Values{
		"dead-letters": {"queue": {r.Queue}}, "dead-letter": letter, "dead-payload": letter, "dead-redrive": letter,
		"dead-purge": letter, "recurrence": daily, "recurrence-payload": daily,
		"dead-edit": letter, "recurrence-edit": daily,
		"do-dead-edit": letter, "do-dead-redrive": letter, "do-message-redrive": letter, "do-recurrence-save": daily,
	}
	ask := func(v *viewer, page string) (status int) {
		if strings.HasPrefix(page, "do-") {
			status, _ = v.post(page, asked[page])
		} else {
			status, _ = v.get(page + "?" + asked[page].Encode())
		}
		return status
	}
	for range maxSearches / 2 {
		redistest.Must(r.dashboard.payloads.join(r.request(v).grant.Name()))
	}
	var greedy sync.WaitGroup
	for page := range asked {
		greedy.Go(func() {
			redistest.Want(t, "status of "+page+" while others read", ask(v, page), http.StatusTooManyRequests)
		})
	}
	greedy.Wait()
	for page := range asked {
		if !strings.HasPrefix(page, "do-") {
			redistest.Want(t, "status of "+page+" for another token", ask(other, page), http.StatusOK)
		}
	}
	redistest.Want(t, "waiting", len(r.dashboard.payloads.waiting), 0)
}

// Whether a large payload is JSON must not be found out for another view of it, because that takes long.
func TestALargePayloadIsOnlyFoldedToBeShownAsJSON(t *testing.T) {
	t.Parallel()
	large := []byte(`{"a":"` + strings.Repeat("b", shownBytes) + `"}`)
	for _, c := range []struct {
		payload    []byte
		wish, view string
		isFolded   bool
	}{
		{large, viewHex, viewHex, false}, {large, viewText, viewText, false}, {large, viewJSON, viewJSON, true},
		{large, "", viewJSON, true}, {large[:shownBytes+1], "", viewText, false}, {[]byte("{}"), viewHex, viewHex, true},
	} {
		p := viewPayload(c.payload, c.wish)
		redistest.Want(t, "view for "+c.wish, p.View, c.view)
		redistest.Want(t, "folded for "+c.wish, p.JSON.Root != nil, c.isFolded)
		if c.wish != "" {
			redistest.Want(t, "views for "+c.wish, strings.Join(p.Views, " "), "json text hex")
		}
	}
}
