package dashboard

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// rendered fails the test if a page could not be rendered.
func (r *rig) rendered() {
	r.T.Helper()
	for _, line := range r.log.Lines("cannot be rendered") {
		r.T.Error(line)
	}
}

// letters returns the IDs of the messages of the queue's dead letters, oldest first.
func (r *rig) letters() (ids []string) {
	r.T.Helper()
	for l, err := range r.op.DeadLetters().List(r.T.Context(), r.Queue, admin.LetterFilter{}) {
		if err != nil {
			r.T.Fatal(err)
		}
		ids = append(ids, l.ID)
	}
	return ids
}

// names returns the names of the dead letters of these messages.
func (r *rig) names(ids ...string) (names []string) {
	r.T.Helper()
	for _, id := range ids {
		for l, err := range r.op.DeadLetters().List(r.T.Context(), r.Queue, admin.LetterFilter{ID: id}) {
			if err != nil {
				r.T.Fatal(err)
			}
			names = append(names, l.Letter)
		}
	}
	return names
}

// scheduled returns the schedule of the queue with its payloads, by message ID.
func (r *rig) scheduled() map[string]admin.Due {
	r.T.Helper()
	peeked, err := r.op.Peek(r.T.Context(), r.Queue, 1000, true)
	if err != nil {
		r.T.Fatal(err)
	}
	all := map[string]admin.Due{}
	for _, d := range peeked.Next {
		all[d.ID] = d
	}
	return all
}

// The page must tell what failed and why, over all queues of the token, and of one queue.
func TestDeadTellsWhatFailedAndWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	for _, queue := range []string{r.Queue, r.Queue + "-other"} {
		if err := r.op.Register(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
	}
	r.Kill("mail", lua.ReasonMaxAttempts, "order-1: <script>alert(1)</script>\nsecond line", "a", "b", "c")
	r.Kill("sms", lua.ReasonDeadLetter, "no such number", "d")
	other := r.On(r.Queue + "-other")
	other.Kill("g", lua.ReasonDeadLetter, "secret error", "e")
	v := r.viewer(inspect, r.Queue)
	for _, page := range []string{"dead", "dead?queue=" + r.Queue, "dead?all=1&queue=" + r.Queue} {
		status, text := v.get(page)
		redistest.Want(t, page, status, http.StatusOK)
		contains(t, text, "order-#: &lt;script&gt;alert(1)&lt;/script&gt;", "max_attempts", "no such number",
			`<data value="3">`, "All were read", `class="trend"`, "dead-letters?")
		lacks(t, text, "secret", "<script>alert", "second line")
	}
	_, text := v.get("dead?group=sms&queue=" + r.Queue)
	contains(t, text, "no such number")
	lacks(t, text, "max_attempts")
	status, _ := v.get("dead?queue=" + r.Queue + "-other")
	redistest.Want(t, "another queue", status, http.StatusForbidden)
	_, text = r.viewer(inspect, "*").get("dead")
	contains(t, text, "secret error")
}

// A queue without dead letters must say what would be there.
func TestDeadIsEmpty(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(inspect, "*")
	for _, page := range []string{"dead", "dead?queue=" + r.Queue, "dead-letters?queue=" + r.Queue} {
		status, text := v.get(page)
		redistest.Want(t, page, status, http.StatusOK)
		contains(t, text, `class="empty"`)
	}
	status, _ := v.get("dead?queue=unknown")
	redistest.Want(t, "unknown queue", status, http.StatusNotFound)
}

// Viewers must share one reading of the letters, and a change by a viewer must be seen at once.
func TestViewersShareOneReadingOfLetters(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Kill("g", lua.ReasonDeadLetter, "broken", "a", "b")
	book := r.dashboard.book
	read := func(total int64) deadSummary {
		t.Helper()
		s, err := book.read(t.Context(), r.Queue, total, time.Hour, false)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := read(2)
	redistest.Want(t, "letters", first.Letters, 2)
	r.Kill("g", lua.ReasonDeadLetter, "broken", "c")
	redistest.Want(t, "read again too early", read(3).At, first.At)
	book.change(r.Queue)
	if second := read(3); !second.At.After(first.At) || second.Letters != 3 {
		t.Errorf("after a change: %+v", second)
	}
}

// With 50,000 letters a view must read only some of them, say so, and read all of them on demand, in steps.
func TestDeadOfManyLettersIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	const many = 50_000
	r.manyLetters(many)
	survey := r.op.DeadLetters().Survey(r.Queue, admin.LetterFilter{})
	if err := survey.Read(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	// A view of a slow server, whose time was up at once.
	s := deadState{queues: []deadSummary{{Queue: r.Queue, Total: many, LetterSummary: survey.Summary(), At: time.Now()}}}
	v := r.viewer(inspect, "*")
	q := r.request(v)
	q.query = url.Values{"queue": {r.Queue}}
	view := q.deadView(s)
	redistest.Want(t, "complete", view.Complete, false)
	redistest.Want(t, "looked", view.Looked, 100)
	begun := time.Now()
	status, text := v.get("dead-letters?queue=" + r.Queue)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "50 letters were looked at for this page", "<data value=\"50000\">", "after=")
	redistest.Want(t, "rows", strings.Count(text, ">order-"), 50)
	status, text = v.get("dead-letters?id=nothing&queue=" + r.Queue)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, `class="empty"`)
	status, _ = v.get("dead?queue=" + r.Queue)
	redistest.Want(t, "status", status, http.StatusOK)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("three views of %d letters took %s", many, took)
	}
	for {
		_, text = v.get("dead?all=1&queue=" + r.Queue)
		if strings.Contains(text, "All were read") {
			break
		}
	}
	contains(t, text, `<data value="50000">`, "data-rest")
}

// manyLetters adds dead letters, quickly.
func (r *rig) manyLetters(n int) {
	r.T.Helper()
	if err := r.op.Register(r.T.Context(), r.Queue); err != nil {
		r.T.Fatal(err)
	}
	r.Do("EVAL", `for i = 1, ARGV[1] do
		redis.call("XADD", KEYS[1], "*", "id", "order-" .. i, "payload", "p", "attempt", "1", "group", "g",
			"reason", "dead_letter", "error", "code " .. i % 7, "dead_ms", ARGV[2])
	end`, "1", r.Keys.Dead, fmt.Sprint(n), fmt.Sprint(time.Now().UnixMilli()))
}

// A group of the page must lead to its letters, in pages, and the filter must narrow them.
func TestLettersAreListedInPages(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	var ids []string
	for i := range lettersOnPage + 7 {
		ids = append(ids, fmt.Sprintf("m%03d", i))
	}
	r.Kill("mail", lua.ReasonMaxAttempts, "no <b>such</b> user", ids...)
	r.Kill("sms", lua.ReasonDeadLetter, "", "x1")
	v := r.viewer(inspect, r.Queue)
	page := "dead-letters?queue=" + r.Queue
	_, text := v.get(page + "&group=mail")
	contains(t, text, "m056", "m007", `rel="next"`, "no &lt;b&gt;such&lt;/b&gt; user", "Letters of group mail.")
	lacks(t, text, "m006", "x1", "Redrive", "checkbox", "<b>such")
	_, rest, _ := strings.Cut(text, `<a class="button" href="dead-letters?`)
	next, _, _ := strings.Cut(rest, `"`)
	r.Do("XADD", r.Keys.Dead, "*", "id", "m999", "group", "mail", "reason", "expired", "error", "later", "dead_ms",
		fmt.Sprint(time.Now().UnixMilli()))
	_, text = v.get("dead-letters?" + strings.ReplaceAll(next, "&amp;", "&"))
	contains(t, text, "m006", "m000", ">Newest<")
	lacks(t, text, "m007", "m999", `rel="next"`)
	for filter, want := range map[string]string{
		"id=m05*": "m050", "reason=dead_letter": "x1", "noerror=1": "x1", "error=such": "m056", "newer=1h": "m999",
	} {
		_, text := v.get(page + "&" + filter)
		contains(t, text, want)
	}
	_, text = v.get(page + "&older=1h")
	contains(t, text, "No further letter matches.")
	for wrong, want := range map[string]string{"older=soon": "must be a duration", "after=zzz": "must be"} {
		status, text := v.get(page + "&" + wrong)
		redistest.Want(t, wrong, status, http.StatusBadRequest)
		contains(t, text, want)
	}
}

// The page of a letter must show the whole error, headers and payload as text, whatever they hold.
func TestLetterIsShownAsText(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	hostile := `</pre><script>alert("x")</script>` + "\u202egnp.exe\x00"
	r.Do("XADD", r.Keys.Dead, "1700000000000-1", "id", "<i>id</i>", "payload", hostile+strings.Repeat("é", shownBytes),
		"reason", "<u>r</u>", "group", "<u>g</u>", "error", hostile+strings.Repeat("e", 1000)+"END", "h:<b>name</b>",
		"<b>value</b>", "attempt", "3", "dead_ms", "1700000000000")
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(inspect, r.Queue)
	status, text := v.get("dead-letter?letter=1700000000000-1&queue=" + r.Queue)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "&lt;/pre&gt;&lt;script&gt;", "END</pre>", `\u202egnp.exe\u0000`, "&lt;i&gt;id&lt;/i&gt;",
		"&lt;b&gt;name", "&lt;b&gt;value",
		"64.0 KiB of 128.0 KiB shown")
	lacks(t, text, "<script>alert", "<i>id", "<u>", "<b>", "\u202e", "do-dead", "Purge")
	for _, page := range []string{"dead", "dead?queue=" + r.Queue, "dead-letters?queue=" + r.Queue} {
		_, text := v.get(page)
		lacks(t, text, "<script>alert", "<i>id", "<u>", "<b>", "\u202e")
	}
	status, text = v.get("dead-payload?as=text&letter=1700000000000-1&queue=" + r.Queue)
	redistest.Want(t, "status of the payload", status, http.StatusOK)
	redistest.Want(t, "payload", text, hostile+strings.Repeat("é", shownBytes))
	_, text = v.get("dead-letter?view=hex&letter=1700000000000-1&queue=" + r.Queue)
	contains(t, text, "3c 2f 70 72 65 3e", "as=text")
	status, text = v.get("dead-letter?letter=1700000000000-2&queue=" + r.Queue)
	redistest.Want(t, "a letter that does not exist", status, http.StatusNotFound)
	contains(t, text, "somebody has redriven or purged it")
}

// Letters must be redriven as the form says, only by a token that may operate the queue, and a letter that somebody
// else has redriven meanwhile must be told.
func TestSelectedLettersAreRedriven(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	r.Kill("mail", lua.ReasonMaxAttempts, "broken", "a", "b", "c", "d")
	r.Groups("second")
	list := "dead-letters?queue=" + r.Queue
	both := r.names("a", "b")
	form := url.Values{"queue": {r.Queue}, "letter": both, "delay": {"1h"}, "back": {list}}
	for name, v := range map[string]*viewer{"inspect": r.viewer(inspect, "*"), "other": r.viewer(operate, "other")} {
		status, _ := v.post("do-dead-redrive", form)
		redistest.Want(t, name, status, http.StatusForbidden)
	}
	redistest.Want(t, "letters", strings.Join(r.letters(), ""), "abcd")
	v := r.viewer(operate, r.Queue)
	_, text := v.get(list)
	contains(t, text, `type="checkbox"`, "selected (<output", "Redrive all")
	_, text = v.get("dead-redrive?queue=" + r.Queue + "&letter=" + strings.Join(r.names("a", "b"), "&letter="))
	contains(t, text, "Redrive 2 dead letters in "+r.Queue, `<option value="second">`, `name="letter"`)
	status, text := v.post("do-dead-redrive", form)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "2 letters were redriven.")
	redistest.Want(t, "letters", strings.Join(r.letters(), ""), "cd")
	for _, id := range []string{"a", "b"} {
		d, ok := r.scheduled()[id]
		if left := time.Until(d.Due); !ok || left < 30*time.Minute || left > 2*time.Hour {
			t.Errorf("%s is scheduled for %v", id, d)
		}
	}
	form["letter"] = append(form["letter"], r.names("c")...)
	form.Set("to", "second")
	_, text = v.post("do-dead-redrive", form)
	contains(t, text, "1 letter was redriven to group second. 2 letters are gone: somebody else")
	form = url.Values{"queue": {r.Queue}, "letter": r.names("d"), "delay": {"soon"}, "to": {"\n"}, "spread": {"7d"}}
	status, text = v.post("do-dead-redrive", form)
	redistest.Want(t, "wrong form", status, http.StatusBadRequest)
	contains(t, text, "must be a duration", `value="soon"`, `value="7d"`, `aria-invalid="true"`)
	form = url.Values{"queue": {r.Queue}, "letter": r.names("d"), "to": {"nobody"}}
	_, text = v.post("do-dead-redrive", form)
	contains(t, text, "0 letters were redriven. 1 letter stays: the queue has no group nobody.")
	redistest.Want(t, "letters", strings.Join(r.letters(), ""), "d")
	redistest.Want(t, "lines of the audit log", r.log.Count("action=dashboard.do-dead-redrive queue="+r.Queue), 4)
	redistest.Want(t, "names of the letters", r.log.Count("letter=\""+strings.Join(both, " ")+"\""), 1)
	status, text = v.get("dead-redrive?do=selected&queue=" + r.Queue)
	redistest.Want(t, "nothing selected", status, http.StatusBadRequest)
	contains(t, text, "select some in the list first")
}

// Letters must be purged only after their number was typed.
func TestSelectedLettersArePurged(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	r.Kill("mail", lua.ReasonMaxAttempts, "broken", "a", "b", "c")
	form := url.Values{"queue": {r.Queue}, "letter": r.names("a", "b")}
	status, _ := r.viewer(inspect, "*").post("do-dead-purge", form)
	redistest.Want(t, "inspect", status, http.StatusForbidden)
	v := r.viewer(operate, r.Queue)
	_, text := v.get("dead-purge?queue=" + r.Queue + "&letter=" + strings.Join(form["letter"], "&letter="))
	contains(t, text, "Purge 2 dead letters", `data-confirms="2"`, "cannot be brought back")
	for _, typed := range []string{"", "3", "two"} {
		form.Set("confirm", typed)
		status, text = v.post("do-dead-purge", form)
		redistest.Want(t, "confirmed by "+typed, status, http.StatusBadRequest)
		contains(t, text, "must be 2", `id="fault-confirm"`)
	}
	redistest.Want(t, "letters", strings.Join(r.letters(), ""), "abc")
	form.Set("confirm", "2")
	_, text = v.post("do-dead-purge", form)
	contains(t, text, "2 letters were purged.")
	redistest.Want(t, "letters", strings.Join(r.letters(), ""), "c")
	form["letter"] = append(form["letter"], r.names("c")...)
	form.Set("confirm", "3")
	_, text = v.post("do-dead-purge", form)
	contains(t, text, "1 letter was purged. 2 letters are gone")
	redistest.Want(t, "letters", len(r.letters()), 0)
}

// All letters that match must be counted first. The redrive and the purge that follow must touch only letters that were
// counted, and the purge needs their number.
func TestAllThatMatchAreCountedFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	r.Kill("mail", lua.ReasonMaxAttempts, "broken", "a", "b", "c")
	r.Kill("mail", lua.ReasonDeadLetter, "other", "d", "e")
	v := r.viewer(operate, r.Queue)
	status, _ := r.viewer(inspect, "*").post("do-dead-redrive", url.Values{"queue": {r.Queue}})
	redistest.Want(t, "inspect", status, http.StatusForbidden)

	_, text := v.get("dead-redrive?reason=max_attempts&queue=" + r.Queue)
	contains(t, text, "Redrive all dead letters with reason max_attempts", "Count first", "At most per second")
	text = r.endOfJob(v, "do-dead-redrive", url.Values{"queue": {r.Queue}, "to": {"nobody"}})
	contains(t, text, "5 letters stay: the queue has no group nobody.")
	lacks(t, text, "job-next")
	text = r.endOfJob(v, "do-dead-redrive", url.Values{"queue": {r.Queue}, "reason": {"max_attempts"}, "delay": {"1h"}})
	contains(t, text, "3 messages would be changed", `name="counted"`, `name="delay" value="1h"`)
	redistest.Want(t, "letters after the count", strings.Join(r.letters(), ""), "abcde")
	form := formOf(text)
	r.Kill("mail", lua.ReasonMaxAttempts, "broken", "f")
	text = r.endOfJob(v, "do-dead-redrive", form)
	contains(t, text, "3 messages were changed")
	redistest.Want(t, "letters after the redrive", strings.Join(r.letters(), ""), "def")
	redistest.Want(t, "scheduled", len(r.scheduled()), 3)

	text = r.endOfJob(v, "do-dead-purge", url.Values{"queue": {r.Queue}, "group": {"mail"}})
	contains(t, text, "3 messages would be changed", `data-confirms="3"`, "This cannot be undone.")
	lacks(t, text, "field-rate")
	form = formOf(text)
	r.Kill("mail", lua.ReasonMaxAttempts, "broken", "g")
	form.Set("confirm", "2")
	status, text = v.post("do-dead-purge", form)
	redistest.Want(t, "wrong number", status, http.StatusBadRequest)
	contains(t, text, "must be 3")
	form.Set("confirm", "3")
	text = r.endOfJob(v, "do-dead-purge", form)
	contains(t, text, "3 messages were changed")
	redistest.Want(t, "letters after the purge", strings.Join(r.letters(), ""), "g")
	form.Set("counted", "x")
	contains(t, r.endOfJob(v, "do-dead-purge", form), "Failed: ", "must be")
	redistest.Want(t, "letters", strings.Join(r.letters(), ""), "g")
}

// endOfJob posts a form that starts a job, and returns the page of the job after its end.
func (r *rig) endOfJob(v *viewer, path string, form url.Values) (text string) {
	r.T.Helper()
	res, err := v.http.PostForm(v.base+path, form)
	if err != nil {
		r.T.Fatal(err)
	}
	defer res.Body.Close()
	address := strings.TrimPrefix(res.Request.URL.String(), v.base)
	if !strings.HasPrefix(address, "job?") {
		r.T.Fatalf("%s leads to %s with status %d", path, address, res.StatusCode)
	}
	redistest.Eventually(r.T, 20*time.Second, func() (bool, string) {
		_, text = v.get(address)
		return strings.Contains(text, "data-rest"), text
	})
	return text
}

// hiddenField matches a hidden field of a form.
var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// formOf returns the hidden fields of a page.
func formOf(page string) url.Values {
	form := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(page, -1) {
		form.Add(html.UnescapeString(m[1]), html.UnescapeString(m[2]))
	}
	return form
}

// An edited letter must be sent only after its difference was shown. JSON must stay JSON, and what is not changed must
// stay as it was, byte for byte.
func TestLetterIsEditedAndRedriven(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	r.Groups("g")
	const payload = "\n{\"id\": 9007199254740993,\n\"to\": \"</textarea>\"}\n"
	for i, p := range []string{payload, "\x00\xff\r\n"} {
		r.Do("XADD", r.Keys.Dead, fmt.Sprintf("1700000000000-%d", i+1), "id", fmt.Sprint("m", i), "payload", p,
			"group", "g", "reason", "dead_letter", "h:tenant", "acme", "attempt", "1",
			"dead_ms", "1700000000000")
	}
	v := r.viewer(operate, r.Queue)
	page := "dead-edit?letter=1700000000000-1&queue=" + r.Queue
	status, text := v.get(page)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "9007199254740993", "&lt;/textarea&gt;", "tenant: acme",
		"autocomplete=\"off\">\n\n{")
	form := url.Values{"queue": {r.Queue}, "letter": {"1700000000000-1"}, "step": {"check"},
		"payload": {strings.ReplaceAll(payload, "\n", "\r\n")}, "headers": {"tenant: acme\r\n"}, "delay": {"1h"}}
	status, text = v.post("do-dead-edit", form)
	redistest.Want(t, "status", status, http.StatusOK)
	redistest.Want(t, "unchanged parts", strings.Count(text, "Not changed."), 2)

	form.Set("payload", "{\r\n\"id\": 1,\r\n}")
	form.Set("headers", "[1]")
	form.Set("to", "\x00")
	status, text = v.post("do-dead-edit", form)
	redistest.Want(t, "status of a wrong form", status, http.StatusBadRequest)
	contains(t, text, "must be JSON, because it was: line 3, column 1", "must be a line with a new name: value",
		`id="fault-to"`, "&#34;id&#34;: 1,\n}</textarea>", "[1]</textarea>")

	form.Set("payload", `{"id": 9007199254740993, "to": "you"}`)
	form.Set("headers", `{"tenant": "acme", "<b>": "new"}`)
	form.Del("to")
	_, text = v.post("do-dead-edit", form)
	contains(t, text, "Nothing is changed yet", `<span class="old">−   &#34;to&#34;: &#34;&lt;/textarea&gt;&#34;</span>`,
		`<span class="new">&#43;   &#34;to&#34;: &#34;you&#34;</span>`, "&lt;b&gt;", `name="step" value="send"`)
	redistest.Want(t, "letters", len(r.letters()), 2)
	sent := formOf(text)
	sent.Set("step", "again")
	_, text = v.post("do-dead-edit", sent)
	contains(t, text, "<textarea", "&#34;you&#34;")
	sent.Set("step", "send")
	_, text = v.post("do-dead-edit", sent)
	contains(t, text, "1 letter was redriven.")
	d := r.scheduled()["m0"]
	redistest.Want(t, "payload", string(d.Payload), `{"id": 9007199254740993, "to": "you"}`)
	redistest.Want(t, "headers", fmt.Sprint(d.Headers), "map[<b>:new tenant:acme]")
	status, _ = v.post("do-dead-edit", sent)
	redistest.Want(t, "a letter that is gone", status, http.StatusNotFound)

	form = url.Values{"queue": {r.Queue}, "letter": {"1700000000000-2"}, "step": {"send"}, "payload": {"AP8NCg=="},
		"headers": {`{"tenant": "acme"}`}}
	_, text = v.get("dead-edit?letter=1700000000000-2&queue=" + r.Queue)
	contains(t, text, "AP8NCg==", "as base64")
	status, _ = r.viewer(inspect, "*").post("do-dead-edit", form)
	redistest.Want(t, "inspect", status, http.StatusForbidden)
	_, text = v.post("do-dead-edit", form)
	contains(t, text, "1 letter was redriven.")
	redistest.Want(t, "payload of bytes", string(r.scheduled()["m1"].Payload), "\x00\xff\r\n")
}

// A letter whose payload is too large for the page must not be edited by a form that is sent anyway. Regression: a form
// of 100 bytes made the process split 16 MiB into lines.
func TestALargeLetterIsNotEdited(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("g")
	r.Do("XADD", r.Keys.Dead, "1700000000000-1", "id", "m", "payload", strings.Repeat("\n", maxEdited+1), "group", "g",
		"reason", "dead_letter", "attempt", "1", "dead_ms", "1700000000000")
	v := r.viewer(operate, r.Queue)
	for _, step := range []string{"check", "again", "send"} {
		status, text := v.post("do-dead-edit", url.Values{"queue": {r.Queue}, "letter": {"1700000000000-1"},
			"step": {step}, "payload": {"x"}})
		redistest.Want(t, "status of "+step, status, http.StatusBadRequest)
		contains(t, text, "too large for this page")
		lacks(t, text, "diff-payload")
	}
	redistest.Want(t, "letters", len(r.letters()), 1)
}

// A wrong time in the filter must leave the form on the page, with what was typed and with each fault.
func TestAWrongFilterOfLettersKeepsTheForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Kill("mail", lua.ReasonMaxAttempts, "broken", "a")
	status, text := r.viewer(operate, r.Queue).get("dead-letters?older=soon&newer=late&error=bro&queue=" + r.Queue)
	redistest.Want(t, "status", status, http.StatusBadRequest)
	contains(t, text, `value="soon"`, `value="bro"`, `id="fault-older"`, `id="fault-newer"`, "This was refused")
	lacks(t, text, "Redrive all", "has no dead letters")
}

// A page about many chosen letters must read only some of them one by one, and say how many it does not list.
func TestManyChosenLettersAreNotAllRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	query := "?do=selected&queue=" + r.Queue
	r.Kill("mail", lua.ReasonMaxAttempts, "broken", "a")
	for i := range mostLines + 1 {
		query += fmt.Sprintf("&letter=%d-1", i+1)
	}
	for _, page := range []string{"dead-redrive", "dead-purge"} {
		_, text := r.viewer(operate, r.Queue).get(page + query)
		contains(t, text, "1 further chosen letter is not listed.", "letters are gone")
	}
}

// Each row must lead to its own letters alone, also if they lack a group, a reason or an error, which only letters of
// other programs do. Regression: a purge of letters without a reason took those with any reason.
func TestLettersWithoutAReasonAreSelectedAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	r.Do("XADD", r.Keys.Dead, "*", "id", "bare", "payload", "p")
	r.Do("XADD", r.Keys.Dead, "*", "id", "other", "payload", "p", "reason", lua.ReasonExpired)
	v := r.viewer(operate, r.Queue)
	_, text := v.get("dead?queue=" + r.Queue)
	contains(t, text, "noreason=1")
	bare := "dead-letters?queue=" + r.Queue + "&nogroup=1&noerror=1&noreason=1"
	_, text = v.get(bare)
	contains(t, text, ">bare<", "Letters of no group, without a reason, without an error.",
		`name="noreason" value="1" checked`)
	lacks(t, text, ">other<")
	text = r.endOfJob(v, "do-dead-purge", url.Values{"queue": {r.Queue}, "nogroup": {"1"}, "noerror": {"1"},
		"noreason": {"1"}})
	form := formOf(text)
	form.Set("confirm", "1")
	r.endOfJob(v, "do-dead-purge", form)
	redistest.Want(t, "letters left", strings.Join(r.letters(), " "), "other")
}

// Letters that become old enough for the filter after the count must not be changed with those that were counted.
func TestLettersThatGrowOldAfterTheCountAreLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	at := func(age time.Duration) string { return fmt.Sprint(time.Now().Add(-age).UnixMilli()) }
	old := at(3*time.Hour) + "-0"
	r.Do("XADD", r.Keys.Dead, old, "id", "old", "payload", "p", "reason", lua.ReasonExpired)
	r.Do("XADD", r.Keys.Dead, at(time.Hour)+"-0", "id", "young", "payload", "p", "reason", lua.ReasonExpired)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, r.Queue)
	for _, action := range []string{"do-dead-purge", "do-dead-redrive"} {
		form := formOf(r.endOfJob(v, action, url.Values{"queue": {r.Queue}, "older": {"2h"}}))
		redistest.Want(t, "newest letter that was counted", form.Get("counted"), old)
		_, text := v.post(action, url.Values{"queue": {r.Queue}, "older": {"30d"}})
		contains(t, text, "has no dead letters that died at least 30d ago")
	}
}

// A form must refuse a rate of 0, which would mean no limit, and a page about letters must tell a reader that only an
// operator may change them.
func TestLettersAreChangedAtTheTypedRateByOperatorsAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	r.Kill("mail", lua.ReasonMaxAttempts, "broken", "a")
	for _, rate := range []string{"0", "-1", "NaN", "1e300", "1e-300"} {
		status, text := r.viewer(operate, r.Queue).post("do-dead-redrive", url.Values{"queue": {r.Queue}, "rate": {rate}})
		redistest.Want(t, "rate "+rate, status, http.StatusBadRequest)
		contains(t, text, `id="fault-rate"`)
	}
	for _, page := range []string{"dead-redrive", "dead-purge"} {
		_, text := r.viewer(inspect, r.Queue).get(page + "?letter=1-1&queue=" + r.Queue)
		contains(t, text, "You may not")
		lacks(t, text, "<form action=\"do-dead", "letters are gone")
	}
}

// Texts of other programs must be readable, and a lost payload must not be downloaded as an empty one.
func TestLettersOfOtherProgramsAreShown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	const odd = "a\u202eb"
	r.Do("XADD", r.Keys.Dead, "1700000000000-1", "id", odd, "group", odd, "reason", odd, "error", odd, "entry", odd,
		"h:"+odd, odd, "attempt", odd)
	r.Do("XADD", r.Keys.Dead, "1700000000000-2", "id", odd, "group", odd, "payload", "p")
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, r.Queue)
	letter := "?letter=1700000000000-2&queue=" + r.Queue
	for _, page := range []string{"dead", "dead-letters?queue=" + r.Queue, "dead-letter" + letter, "dead-edit" + letter,
		"dead-redrive" + letter, "dead-purge" + letter, "dead-redrive?queue=" + r.Queue + "&group=" + url.QueryEscape(odd)} {
		_, text := v.get(page)
		for _, raw := range []string{`value="` + odd, odd + "</option>"} { // a form must send the text as it is
			text = strings.ReplaceAll(text, raw, "")
		}
		lacks(t, text, "\u202e")
	}
	status, _ := v.get("dead-payload?as=text&letter=1700000000000-1&queue=" + r.Queue)
	redistest.Want(t, "a lost payload", status, http.StatusNotFound)
	_, text := v.post("do-dead-redrive", url.Values{"queue": {r.Queue}, "letter": {"1700000000000-2"}})
	contains(t, text, `the queue has no group a\u202eb`)
	lacks(t, text, "\u202e")
}

// A payload that only looks like JSON, such as a number, may be replaced by any text.
func TestAPlainValueNeedNotStayJSON(t *testing.T) {
	t.Parallel()
	for old, isChecked := range map[string]bool{"42": false, `"a"`: false, "null": false, "": false, "text": false,
		"{}": true, " [1]": true} {
		redistest.Want(t, old, checkEdited([]byte(old), []byte("order-42")) != nil, isChecked)
	}
}

// Each reason must be told in words, and shares must be rounded.
func TestReasonsAreToldInWords(t *testing.T) {
	t.Parallel()
	for _, reason := range lua.Reasons() {
		if reasonText(reason) == "" {
			t.Errorf("%s has no words", reason)
		}
	}
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	r.Kill("mail", lua.ReasonDeadLetter, "one", "a", "b")
	r.Kill("mail", lua.ReasonDeadLetter, "other", "c")
	_, text := r.viewer(inspect, "*").get("dead")
	contains(t, text, "67 %", "33 %", "its handler gave it up")
}

// Letters of other programs may lack the time of their death, and then the page must not name one.
func TestDeadNamesNoTimeThatIsNotKnown(t *testing.T) {
	t.Parallel()
	for oldest, isTold := range map[time.Time]bool{{}: false, time.Now(): true} {
		var page strings.Builder
		view := deadView{Queue: "q", Total: 2, Looked: 1, Oldest: oldest}
		if err := templates["dead"].ExecuteTemplate(&page, "dead-live", frame{Data: view}); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, oldest.String(), strings.Contains(page.String(), "died since"), isTold)
	}
}
