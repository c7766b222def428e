package dashboard

import (
	"bufio"
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// stream is the stream of a search, as a browser reads it.
type stream struct {
	t      *testing.T
	lines  *bufio.Scanner
	end    func() // what a browser does when the viewer leaves
	status int
	html   string // of all events
	last   string // the name of the last event
}

// stream opens the stream of a search.
func (v *viewer) stream(query string) *stream {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.base+"search-stream?"+query, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := v.http.Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	s := &stream{t: v.t, lines: bufio.NewScanner(res.Body), status: res.StatusCode}
	s.lines.Buffer(nil, 16<<20)
	s.end = func() {
		cancel()
		_ = res.Body.Close()
	}
	v.t.Cleanup(s.end)
	return s
}

// event reads the next event, and reports whether there was one.
func (s *stream) event() bool {
	read := false
	for s.lines.Scan() {
		line := s.lines.Text()
		if line == "" && read {
			return true
		}
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			s.last, read = name, true
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			s.html += data + "\n"
		}
	}
	return false
}

// all reads the stream to its end.
func (s *stream) all() *stream {
	s.t.Helper()
	for s.event() {
	}
	redistest.Want(s.t, "status of the stream", s.status, http.StatusOK)
	return s
}

var placePattern = regexp.MustCompile(`name="hit" value="([^"]*)"`)

// places returns the values of the check boxes.
func (s *stream) places() (places []string) {
	for _, match := range placePattern.FindAllStringSubmatch(s.html, -1) {
		places = append(places, html.UnescapeString(match[1]))
	}
	return places
}

// hits returns the queues, states and IDs of the hits, sorted.
func (s *stream) hits() (hits []string) {
	s.t.Helper()
	for _, text := range s.places() {
		h, err := readPlace(text)
		if err != nil {
			s.t.Fatal(err)
		}
		hits = append(hits, fmt.Sprintf("%s %s %s", h.Queue, h.State, h.ID))
	}
	slices.Sort(hits)
	return hits
}

// schedule schedules a message, by default in an hour.
func (r *rig) schedule(queue, id, payload string, options ...bridge.Option) {
	r.T.Helper()
	options = append(options, bridge.WithID(id), func(m *bridge.NewMessage) {
		if m.At.IsZero() {
			m.Delay = time.Hour
		}
	})
	if _, err := r.client.Schedule(r.T.Context(), queue, []byte(payload), options...); err != nil {
		r.T.Fatal(err)
	}
}

// statesOf returns the states in which a queue holds a message.
func (r *rig) statesOf(queue, id string) string {
	r.T.Helper()
	places, err := r.op.Locate(r.T.Context(), queue, id)
	if err != nil && !strings.Contains(err.Error(), "not") {
		r.T.Fatal(err)
	}
	var states []string
	for _, p := range places {
		states = append(states, string(p.State))
	}
	return strings.Join(states, " ")
}

// Each field of a search must find the messages that it describes, and no others. Every search must be an address.
func TestSearchFindsByEachField(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("closer")
	r.Kill("closer", "handler", "connection refused", "dead-1")
	r.Ready("ready-1")
	r.Ready("held-1")
	r.Take("closer", "host-7", 2)
	at := time.Now().Add(48 * time.Hour).Truncate(time.Second)
	r.schedule(r.Queue, "order-1", `{"tenant":"acme","total":12}`, bridge.Header("tenant", "acme"))
	r.schedule(r.Queue, "order-2", `{"tenant":"other"}`, bridge.Header("tenant", "other"), bridge.At(at),
		bridge.Key("c-7"))
	r.schedule("mails", "mail-1", "order-1 is paid", bridge.Header("tenant", "acme"), bridge.Header("kind", "a=b c"))
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	queue := func(hits string) string { return strings.ReplaceAll(hits, "Q ", r.Queue+" ") }
	for query, want := range map[string]string{
		"q=order-1":                              "Q scheduled order-1",
		"q=order-":                               "Q scheduled order-1, Q scheduled order-2",
		"q=order-1&as=text":                      "mails scheduled mail-1",
		"q=paid":                                 "mails scheduled mail-1",
		"q=" + url.QueryEscape(`"tenant":"acme`): "Q scheduled order-1",
		"header=tenant%3Dacme":                   "Q scheduled order-1, mails scheduled mail-1",
		"header=tenant%3Dacme&header=kind%3Da%3Db+c": "mails scheduled mail-1",
		"header=tenant%3Dacme&queue=mails":           "mails scheduled mail-1",
		"header=tenant%3Dacme&queues=mai*":           "mails scheduled mail-1",
		"queues=mails+" + r.Queue + "&id=mail":       "mails scheduled mail-1",
		"id=order-2":                                 "Q scheduled order-2",
		"key=c-7":                                    "Q scheduled order-2",
		"key=c-":                                     "",
		"header=tenant%3A+acme":                      "Q scheduled order-1, mails scheduled mail-1",
		"text=total":                                 "Q scheduled order-1",
		"error=refused":                              "Q dead dead-1",
		"reason=handler":                             "Q dead dead-1",
		"group=closer&state=dead":                    "Q dead dead-1",
		"group=closer&state=pending":                 "Q pending held-1, Q pending ready-1",
		"state=dead&state=pending&q=held-1":          "Q pending held-1",
		"from=" + url.QueryEscape(at.Format(time.RFC3339)) + "&until=" +
			url.QueryEscape(at.Add(time.Second).Format(time.RFC3339)): "Q scheduled order-2",
		"q=nothing-of-this-name": "",
		"q=connection+refused":   "Q dead dead-1",
		"q=refused&as=error":     "Q dead dead-1",
	} {
		s := v.stream(query).all()
		wanted := strings.Split(queue(want), ", ")
		slices.Sort(wanted)
		redistest.Want(t, query, strings.Join(s.hits(), ", "), strings.Join(wanted, ", "))
		if !strings.Contains(s.html, "All was looked at") {
			t.Errorf("%s: the search does not tell its end:\n%s", query, s.html)
		}
		status, text := v.get("search?" + query)
		redistest.Want(t, query+": status of the page", status, http.StatusOK)
		if !strings.Contains(text, "data-search=\"search-stream?") {
			t.Errorf("%s: the page does not search:\n%s", query, text)
		}
	}
}

// The message whose ID is the text of the box must come first. A search that finds nothing must say what was looked at,
// and lead to the history of the ID.
func TestTheExactIDComesFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for i := range 3 {
		r.schedule(r.Queue, fmt.Sprintf("order-1%d", i), "p")
	}
	r.schedule(r.Queue, "order-1", "p")
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	s := v.stream("q=order-1").all()
	redistest.Want(t, "hits", len(s.hits()), 4)
	_, first, _ := strings.Cut(s.html, `hx-target="#hits" hx-swap="afterbegin">`)
	first, _, _ = strings.Cut(first, "</hx-partial>")
	redistest.Want(t, "rows at the beginning", strings.Count(first, "<tr"), 1)
	if !strings.Contains(first, `&amp;queue=`) || !strings.Contains(first, `id=order-1&amp;`) {
		t.Errorf("the row at the beginning is not that of the exact ID:\n%s", first)
	}
	s = v.stream("q=order-2").all()
	for _, want := range []string{"nothing matches", "No ID begins with the text, and no payload or error contains it",
		`href="message?id=order-2"`} {
		if !strings.Contains(s.html, want) {
			t.Errorf("a search without a hit lacks %q:\n%s", want, s.html)
		}
	}
}

// A search must be refused that names a queue which the token may not inspect, or a wrong value. The page must show the
// fault beside its field. Without a name, only the token's queues are searched.
func TestSearchKeepsToTheQueuesOfTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, queue := range []string{"shop.orders", "shop.mails", "secret"} {
		r.schedule(queue, "m-1", "p")
	}
	v := r.viewer([]access.Verb{access.Inspect}, "shop.*")
	hits := strings.Join(v.stream("q=m-").all().hits(), ", ")
	redistest.Want(t, "hits of the token", hits, "shop.mails scheduled m-1, shop.orders scheduled m-1")
	hits = strings.Join(v.stream("q=m-&queues=*e*").all().hits(), ", ")
	redistest.Want(t, "hits of a pattern", hits, "shop.orders scheduled m-1")
	for _, query := range []string{"q=m-1&queue=secret", "q=m-1&queues=secret", "q=m&queues=shop.orders,secret",
		"q=m-1&queue=shop.orders&queue=secret"} {
		redistest.Want(t, query, v.stream(query).status, http.StatusForbidden)
		status, _ := v.get("search?" + query)
		redistest.Want(t, query+": status of the page", status, http.StatusForbidden)
	}
	for query, want := range map[string]string{
		"queues=secret*": "queues", "queues=a%2Fb": "queues", "queues=shop.none": "queues", "state=asleep": "state",
		"header=tenant": "header", "header=%3Da": "header", "header=a%3Db&header=a%3Dc": "header", "from=soon": "from",
		"until=soon": "until", "from=2030-01-02T00:00&until=2030-01-01T00:00": "until", "as=name&q=a": "as",
		"q=a&text=b": "text", "id=" + strings.Repeat("x", 300): "id", "key=" + strings.Repeat("x", 300): "key",
		"text=" + strings.Repeat("x", 2000): "text",
		"q=" + strings.Repeat("x", 2000):    "q", "error=" + strings.Repeat("x", 2000): "error",
	} {
		status, text := v.get("search?" + query)
		if status != http.StatusBadRequest && status != http.StatusNotFound || !strings.Contains(text, "#field-"+want) {
			t.Errorf("%.50s: got %d, without a fault of the field %s:\n%s", query, status, want, text)
		}
		if strings.Contains(text, "data-search") || strings.Contains(text, "secret\"") && !strings.Contains(query, "secret") {
			t.Errorf("%.50s: the page searches, or shows a queue of others:\n%s", query, text)
		}
	}
}

// Whatever a producer writes must be text in the page, and its place must come back unchanged.
func TestFoundTextsAreText(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	const hostile = `"'><script>alert(1)</script><hx-partial hx-target="body">\u202e` + "\u202e{{.}}"
	r.schedule(r.Queue, hostile, hostile, bridge.Header("x", hostile), bridge.Key(hostile))
	r.Groups("closer<b>")
	r.Kill("closer<b>", "handler<i>", hostile, hostile+"2")
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Operate}, "*")
	for _, query := range []string{"q=" + url.QueryEscape(hostile), "id=" + url.QueryEscape(hostile),
		"error=" + url.QueryEscape(hostile), "header=" + url.QueryEscape("x="+hostile)} {
		s := v.stream(query).all()
		if len(s.places()) == 0 {
			t.Errorf("%s finds nothing:\n%s", query, s.html)
		}
		_, text := v.get("search?" + query)
		for _, html := range []string{text, s.html} {
			for _, bad := range []string{"<script>alert", "<hx-partial hx-target=\"body", "closer<b>", "handler<i>", "\u202e<",
				"\u202e{"} {
				if strings.Contains(html, bad) && !(bad == "\u202e{" && strings.Contains(html, `value="`)) {
					t.Errorf("%s: the page has %q:\n%s", query, bad, html)
				}
			}
		}
	}
	s := v.stream("id=" + url.QueryEscape(hostile)).all()
	form := url.Values{"which": {"chosen"}, "kind": {"cancel"}, "hit": s.places()[:1], "query": {"id=x"}}
	v.changeFound(form, "Done: 1 message")
	redistest.Want(t, "state after the cancellation", r.statesOf(r.Queue, hostile), "")
}

// changeFound posts the form of the page, follows it to the page of the job, and waits until the page has a text.
func (v *viewer) changeFound(form url.Values, want string) (page, text string) {
	v.t.Helper()
	res, err := v.http.PostForm(v.base+"do-search", form)
	if err != nil {
		v.t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK || !strings.HasSuffix(res.Request.URL.Path, "/job") {
		_, text := v.post("do-search", form)
		v.t.Fatalf("%v: got %d at %s\n%s", form, res.StatusCode, res.Request.URL, text)
	}
	page = "job?" + res.Request.URL.RawQuery
	return page, v.eventuallyShows(page, want)
}

var fieldPattern = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// confirmed returns a form with the typed confirmation.
func confirmed(form url.Values, word string) url.Values {
	form.Set("confirm", word)
	return form
}

// nextForm returns the fields of the form that a job's page offers.
func nextForm(text string) url.Values {
	_, form, _ := strings.Cut(text, `id="job-next"`)
	form, _, _ = strings.Cut(form, "</form>")
	values := url.Values{}
	for _, match := range fieldPattern.FindAllStringSubmatch(form, -1) {
		values.Add(match[1], html.UnescapeString(match[2]))
	}
	return values
}

// fillActs fills a queue with three messages for each state to which a change applies.
func (r *rig) fillActs(kind admin.ActionKind) {
	r.T.Helper()
	r.Groups("closer", "other")
	for i := range 3 {
		id := fmt.Sprintf("m-%d", i)
		if kind == admin.ActRedrive || kind == admin.ActPurge {
			r.Kill("closer", "handler", "refused", id)
		} else {
			r.schedule(r.Queue, id, "payload", bridge.Header("tenant", "acme"))
		}
	}
	if kind == admin.ActRedrive || kind == admin.ActPurge {
		r.Next("other")
	}
	if err := r.op.Register(r.T.Context(), r.Queue); err != nil {
		r.T.Fatal(err)
	}
}

// Every change must do what it says, on chosen hits and on all that match. The count before must be that of the change,
// and must change nothing.
func TestEveryChangeOfWhatWasFound(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(24 * time.Hour).Truncate(time.Second).UTC()
	for _, c := range []struct {
		kind          admin.ActionKind
		fields        url.Values
		before, after string
		check         func(r *rig, id string)
	}{
		{admin.ActCancel, nil, "scheduled", "", nil},
		{admin.ActReschedule, url.Values{"at": {at.Format(time.RFC3339)}}, "scheduled", "scheduled", func(r *rig, id string) {
			places, err := r.op.Locate(r.T.Context(), r.Queue, id)
			if err != nil || !places[0].Due.Equal(at) {
				r.T.Errorf("%s is due at %v, want %v (%v)", id, places, at, err)
			}
		}},
		{admin.ActReschedule, url.Values{"after": {"2d"}, "at": {"2030-01-01T00:00"}, "spread": {"1h"}}, "scheduled",
			"scheduled", func(r *rig, id string) {
				places, err := r.op.Locate(r.T.Context(), r.Queue, id)
				if from := at.Add(24*time.Hour - time.Minute); err != nil || places[0].Due.Before(from) ||
					places[0].Due.After(from.Add(2*time.Hour)) {
					r.T.Errorf("%s is due at %v, want 2 days from now (%v)", id, places, err)
				}
			}},
		{admin.ActExpire, nil, "scheduled", "scheduled", func(r *rig, id string) {
			due, err := r.op.Peek(r.T.Context(), r.Queue, 3, false)
			expires := slices.ContainsFunc(due.Next, func(d admin.Due) bool {
				return d.ID == id && !d.Expires.IsZero() && d.Expires.Before(time.Now().Add(time.Minute))
			})
			if err != nil || !expires {
				r.T.Errorf("%s does not expire: %v (%v)", id, due, err)
			}
		}},
		{admin.ActRedrive, url.Values{"to": {"other"}, "delay": {"1h"}}, "dead", "retrying", nil},
		{admin.ActPurge, nil, "dead", "", nil},
	} {
		for _, which := range []string{whichChosen, whichAll} {
			t.Run(string(c.kind)+" "+which+" "+c.fields.Get("after"), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, redistest.Shared(t), nil)
				r.fillActs(c.kind)
				v := r.viewer([]access.Verb{access.Operate}, r.Queue)
				query := "q=m-&state=" + c.before
				s := v.stream(query).all()
				if len(s.places()) != 3 {
					t.Fatalf("found %v, want 3 hits", s.hits())
				}
				form := url.Values{"which": {which}, "kind": {string(c.kind)}, "query": {query}, "phase": {asID}}
				for name, values := range c.fields {
					form[name] = values
				}
				changed := []string{"m-0", "m-1", "m-2"}
				if which == whichChosen {
					changed = nil
					for _, place := range s.places()[:2] {
						h, err := readPlace(place)
						if err != nil {
							t.Fatal(err)
						}
						form.Add("hit", place)
						changed = append(changed, h.ID)
					}
				}
				done := "Done: " + plural(len(changed), "message", "messages")
				if which == whichAll || c.kind == admin.ActPurge {
					_, text := v.changeFound(form, "Counted: "+plural(len(changed), "message", "messages"))
					for _, id := range changed {
						redistest.Want(t, "state after the count of "+id, r.statesOf(r.Queue, id), c.before)
					}
					form = nextForm(text)
					form.Set("rate", "1000")
					asks := map[admin.ActionKind]bool{admin.ActPurge: true, admin.ActCancel: which == whichAll,
						admin.ActExpire: which == whichAll}
					if asks[c.kind] {
						status, text := v.post("do-search", form)
						redistest.Want(t, "status without the confirmation", status, http.StatusBadRequest)
						if !strings.Contains(text, "#field-confirm") {
							t.Errorf("the page does not ask for the confirmation:\n%s", text)
						}
						form.Set("confirm", string(c.kind))
					}
				}
				v.changeFound(form, done)
				for _, id := range []string{"m-0", "m-1", "m-2"} {
					want := c.before
					if slices.Contains(changed, id) {
						want = c.after
					}
					redistest.Want(t, "state of "+id, r.statesOf(r.Queue, id), want)
					if slices.Contains(changed, id) && c.check != nil {
						c.check(r, id)
					}
				}
			})
		}
	}
}

// A change must be refused in queues in which the token does not allow it. With all that match, it is made in the other
// queues, and the page names those that are left out.
func TestChangesKeepToTheVerbsOfTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.schedule("mine", "m-1", "p")
	r.schedule("other", "m-2", "p")
	inspector := r.viewer([]access.Verb{access.Inspect}, "*")
	places := inspector.stream("q=m-").all().places()
	redistest.Want(t, "hits", len(places), 2)
	publisher := r.viewer([]access.Verb{access.Inspect, access.Publish}, "mine")
	for what, form := range map[string]url.Values{
		"chosen, of an inspector": {"which": {whichChosen}, "kind": {"cancel"}, "hit": places[:1]},
		"all, of an inspector":    {"which": {whichAll}, "kind": {"cancel"}, "query": {"q=m-"}, "phase": {asID}},
	} {
		status, _ := inspector.post("do-search", form)
		redistest.Want(t, what, status, http.StatusForbidden)
	}
	for what, form := range map[string]url.Values{
		"a hit of another queue": {"which": {whichChosen}, "kind": {"cancel"}, "hit": places},
		"all of another queue": {"which": {whichAll}, "kind": {"cancel"}, "query": {"queue=other&q=m-"},
			"phase": {asID}},
		"a redrive without the verb":       {"which": {whichAll}, "kind": {"redrive"}, "query": {"q=m-"}, "phase": {asID}},
		"a purge of hits without the verb": {"which": {whichChosen}, "kind": {"purge"}, "hit": places[:1]},
	} {
		status, _ := publisher.post("do-search", form)
		redistest.Want(t, what, status, http.StatusForbidden)
	}
	_, text := publisher.get("search?q=m-")
	if strings.Contains(text, `value="redrive"`) || !strings.Contains(text, `value="cancel"`) {
		t.Errorf("the page offers other changes than the token allows:\n%s", text)
	}
	_, text = inspector.get("search?q=m-")
	if strings.Contains(text, `name="kind"`) {
		t.Errorf("the page offers changes to an inspector:\n%s", text)
	}
	for what, form := range map[string]url.Values{
		"no hit":           {"which": {whichChosen}, "kind": {"cancel"}},
		"no hit of a list": {"which": {whichChosen}, "kind": {"cancel"}, "hit": {"m-1"}},
		"no change":        {"which": {whichAll}, "kind": {"eat"}, "query": {"q=m-"}, "phase": {asID}},
		"no phase":         {"which": {whichAll}, "kind": {"cancel"}, "query": {"q=m-"}},
		"no date":          {"which": {whichAll}, "kind": {"reschedule"}, "query": {"q=m-"}, "phase": {asID}},
		"a wrong rate":     {"which": {whichAll}, "kind": {"cancel"}, "query": {"q=m-"}, "phase": {asID}, "rate": {"-1"}},
		"a rate that would hold the job's place for ever": {"which": {whichAll}, "kind": {"cancel"}, "query": {"q=m-"},
			"phase": {asID}, "rate": {"1e-300"}},
		"a wrong spread": {"which": {whichAll}, "kind": {"redrive"}, "query": {"q=m-"}, "phase": {asID},
			"spread": {"long"}},
	} {
		operator := r.viewer([]access.Verb{access.Operate}, "*")
		status, _ := operator.post("do-search", form)
		redistest.Want(t, what, status, http.StatusBadRequest)
	}
	redistest.Want(t, "state of m-1", r.statesOf("mine", "m-1"), "scheduled")
	redistest.Want(t, "state of m-2", r.statesOf("other", "m-2"), "scheduled")
}

// A job that was stopped must tell what it has changed, and a repetition must change the rest, once.
func TestAStoppedChangeGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	const all = 60
	for i := range all {
		r.schedule(r.Queue, fmt.Sprintf("m-%02d", i), "needle")
	}
	v := r.viewer([]access.Verb{access.Operate}, "*")
	form := url.Values{"which": {whichAll}, "kind": {"cancel"}, "query": {"q=needle"}, "phase": {asText}, "run": {"1"},
		"rate": {"4"}, "confirm": {"cancel"}}
	page, _ := v.changeFound(form, "Stop</button>")
	left := func() int64 { return r.Number("ZCARD", r.Keys.Due) }
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return left() < all, "nothing is changed" })
	_, query, _ := strings.Cut(page, "?")
	stop, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	v.post("do-stop-job", stop)
	text := v.eventuallyShows(page, "Stopped. What was changed stays changed.")
	rest := left()
	if rest == 0 || rest == all {
		t.Fatalf("%d of %d messages are left, want some", rest, all)
	}
	if changed := fmt.Sprintf(`<dt>Changed</dt><dd><data value="%d">`, all-rest); !strings.Contains(text, changed) {
		t.Errorf("the page does not tell that %d were changed:\n%s", all-rest, text)
	}
	v.changeFound(confirmed(nextForm(text), "cancel"), fmt.Sprintf("Done: %d messages were changed", rest))
	redistest.Want(t, "messages that are left", left(), 0)
}

// A change that Redis interrupts must say so, and offer to go on.
func TestAChangeSaysThatRedisIsAway(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, s, nil)
	for i := range 40 {
		r.schedule(r.Queue, fmt.Sprintf("m-%02d", i), "needle")
	}
	v := r.viewer([]access.Verb{access.Operate}, "*")
	form := url.Values{"which": {whichAll}, "kind": {"cancel"}, "query": {"q=needle"}, "phase": {asText}, "run": {"1"},
		"rate": {"2"}, "confirm": {"cancel"}}
	page, _ := v.changeFound(form, "Stop</button>")
	s.Stop()
	text := v.eventuallyShows(page, "Failed:")
	s.Start()
	v.changeFound(confirmed(nextForm(text), "cancel"), "Done:")
	redistest.Want(t, "messages that are left", r.Number("ZCARD", r.Keys.Due), 0)
}

// A page must show at most 500 hits, and say that more match. An act on all that match must reach all of them.
func TestMoreThanThePageShows(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	items := make([]lua.Item, maxShown+20)
	for i := range items {
		items[i] = lua.Item{ID: fmt.Sprintf("m-%03d", i), When: lua.After(time.Hour), Payload: []byte("needle")}
	}
	r.Enqueue(items...)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Operate}, "*")
	s := v.stream("q=needle").all()
	redistest.Want(t, "rows", len(s.places()), maxShown)
	if !strings.Contains(s.html, "more match") {
		t.Error("the page does not say that more match")
	}
	form := url.Values{"which": {whichAll}, "kind": {"cancel"}, "query": {"q=needle"}, "phase": {asText}}
	_, text := v.changeFound(form, "Counted: 520 messages")
	v.changeFound(confirmed(nextForm(text), "cancel"), "Done: 520 messages")
	redistest.Want(t, "messages that are left", r.Number("ZCARD", r.Keys.Due), 0)
}

// A message whose payload is the largest that fits must be found by its last bytes.
func TestALargePayloadIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.schedule(r.Queue, "large", strings.Repeat("x", 5<<20)+"needle")
	s := r.viewer([]access.Verb{access.Inspect}, "*").stream("q=needle").all()
	redistest.Want(t, "hits", strings.Join(s.hits(), ", "), r.Queue+" scheduled large")
	if !strings.Contains(s.html, "5.0 MiB") {
		t.Errorf("the row does not tell the size of the payload:\n%s", s.html)
	}
}

// A few searches run at a time, of each token fewer. The others wait, say so, and run when their turn comes. A viewer
// who leaves gives his turn to the next.
func TestSearchesWaitInLine(t *testing.T) {
	t.Parallel()
	l := &line{running: map[*turn]bool{}}
	join := func(token string) *turn { return redistest.Must(l.join(token)) }
	runs := func(t *turn) bool {
		select {
		case <-t.begun:
			return true
		default:
			return false
		}
	}
	a1, a2, a3, b1, b2, c1 := join("a"), join("a"), join("a"), join("b"), join("b"), join("c")
	for i, c := range []struct {
		t    *turn
		want bool
	}{{a1, true}, {a2, true}, {a3, false}, {b1, true}, {b2, false}, {c1, true}} {
		redistest.Want(t, fmt.Sprintf("search %d runs", i), runs(c.t), c.want)
	}
	redistest.Want(t, "before b2", l.before(b2), 1)
	l.leave(b1)
	redistest.Want(t, "b2 runs, because token a has its share", runs(b2), true)
	l.leave(a1)
	redistest.Want(t, "a3 runs while only one place is free", runs(a3), false)
	l.leave(c1)
	redistest.Want(t, "a3 runs", runs(a3), true)
	for range 1 + maxWaitingOfToken { // the first one runs
		join("d")
	}
	if _, err := l.join("d"); err == nil {
		t.Error("a token may wait with any number of searches")
	}
	for i := range maxWaitingSearches - maxWaitingOfToken {
		join(fmt.Sprint("e", i))
	}
	if _, err := l.join("f"); err == nil {
		t.Error("the line has no end")
	}
}

// Two viewers must have each their own search at the same time. A third search of a token must say that it waits.
func TestTwoViewersSearch(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.schedule(r.Queue, "order-1", "needle")
	first, second := r.viewer([]access.Verb{access.Inspect}, "*"), r.viewer([]access.Verb{access.Inspect}, "*")
	name := r.request(first).grant.Name()
	running := []*turn{redistest.Must(r.dashboard.searches.join(name)), redistest.Must(r.dashboard.searches.join(name))}
	waiting := first.stream("q=needle")
	if !waiting.event() || !strings.Contains(waiting.html, "This one waits") {
		t.Errorf("the third search does not say that it waits:\n%s", waiting.html)
	}
	redistest.Want(t, "hits of the other viewer", len(second.stream("q=needle").all().hits()), 1)
	r.dashboard.searches.leave(running[0])
	redistest.Want(t, "hits after the wait", len(waiting.all().hits()), 1)
}

// A viewer who leaves must end his search on the server.
func TestAViewerWhoLeavesEndsTheSearch(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	name := r.request(v).grant.Name()
	for range maxSearches / 2 {
		redistest.Must(r.dashboard.searches.join(name))
	}
	s := v.stream("q=needle")
	if !s.event() {
		t.Fatal("the search has no event")
	}
	s.end()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		l := r.dashboard.searches
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.waiting) == 0, "the search still waits"
	})
}

// While Redis is away, a search must say so and offer to go on. After that it must find everything.
func TestSearchSaysThatRedisIsAway(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, s, nil)
	r.schedule(r.Queue, "order-1", "needle")
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	name := r.request(v).grant.Name()
	turns := []*turn{redistest.Must(r.dashboard.searches.join(name)), redistest.Must(r.dashboard.searches.join(name))}
	search := v.stream("q=needle")
	if !search.event() {
		t.Fatal("the search has no event")
	}
	s.Stop()
	r.dashboard.searches.leave(turns[0])
	for search.event() {
	}
	if !strings.Contains(search.html, "Redis does not answer") || !strings.Contains(search.html, "data-go-on") {
		t.Errorf("the page does not say that Redis is away:\n%s", search.html)
	}
	s.Start()
	again := v.stream("q=needle&begin=" + r.Queue + "&shown=0&as=id").all()
	redistest.Want(t, "hits as an ID", len(again.hits()), 0)
	again = v.stream("q=needle&begin=" + r.Queue + "&shown=7&as=text").all()
	redistest.Want(t, "hits", len(again.hits()), 1)
	if !strings.Contains(again.html, "8 messages match") {
		t.Errorf("the count lacks the hits that the page shows already:\n%s", again.html)
	}
}

// A search must end within seconds after its token was revoked.
func TestARevokedTokenEndsItsSearch(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	name := r.request(v).grant.Name()
	for range maxSearches / 2 {
		redistest.Must(r.dashboard.searches.join(name))
	}
	s := v.stream("q=needle")
	if !s.event() {
		t.Fatal("the search has no event")
	}
	if err := r.op.RemoveToken(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "last event", s.all().last, "gone")
}

// An export must hold what matches, one JSON object a line, and only of the token's queues.
func TestExportOfWhatWasFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.schedule("mine", "m-1", "needle")
	r.schedule("mine", "m-2", "needle")
	r.schedule("other", "m-3", "needle")
	v := r.viewer([]access.Verb{access.Inspect}, "mine")
	places := v.stream("q=needle").all().places()
	status, text := v.post("search-export", url.Values{"which": {whichAll}, "query": {"q=needle"}, "phase": {asText}})
	redistest.Want(t, "status", status, http.StatusOK)
	redistest.Want(t, "lines of all", strings.Count(text, "\n"), 2)
	_, text = v.post("search-export", url.Values{"which": {whichChosen}, "query": {"q=needle"}, "hit": places[:1]})
	redistest.Want(t, "lines of the chosen", strings.Count(text, "\n"), 1)
	if !strings.Contains(text, `"payload_bytes":6`) {
		t.Errorf("the export of a chosen hit lacks its fields:\n%s", text)
	}
	all := r.viewer([]access.Verb{access.Inspect}, "*").stream("q=needle").all().places()
	status, _ = v.post("search-export", url.Values{"which": {whichChosen}, "query": {"q=needle"}, "hit": all})
	redistest.Want(t, "status of a hit of another queue", status, http.StatusForbidden)
}
