package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file holds the page that searches inside messages. searchstream.go runs the search, and searchact.go changes
// what was found.

func searchSection() section {
	return section{
		nav:   []navItem{{Path: "search", Title: "Search", Key: "s"}},
		pages: []page{{path: "search", title: "Search", template: "search", show: showSearch}},
		actions: []action{
			{path: "do-search", verbs: verbsOf(admin.ActCancel), manyQueues: true, form: "search", do: actOnFound},
		},
		routes: []route{
			{method: "GET", path: "search-stream", serve: (*request).streamSearch},
			{method: "POST", path: "search-export", serve: (*request).exportFound},
		},
	}
}

// maxShown is the greatest number of hits that a page shows.
const maxShown = 500

// allStates are the states of messages, in the order of a message's life.
var allStates = []admin.State{
	admin.StateScheduled, admin.StateRetrying, admin.StateReady, admin.StatePending, admin.StateDead,
}

// searchFields are the parameters of a search, as the address has them.
var searchFields = []string{"q", "queue", "queues", "state", "id", "key", "header", "error", "text", "group", "reason",
	"from", "until", "as"}

// query is a search that a viewer asked for.
type query struct {
	values url.Values // its parameters
	filter admin.SearchFilter
	// Q is the text of the box. It is the beginning of an ID, or a part of the payload or error: see phases.
	Q string
}

// What the text of the box stands for. The parameter "as" chooses one.
const (
	asID    = "id"
	asText  = "text"
	asError = "error"
)

// readQuery reads the parameters of a search. The filter has the queues that the viewer named and may inspect, or all
// such queues. The error names each faulty parameter. errForbidden: the viewer may not inspect one of the named queues.
func (q *request) readQuery(ctx context.Context, from url.Values) (query, error) {
	v := url.Values{}
	for _, name := range searchFields {
		for _, value := range from[name] {
			if value != "" {
				v.Add(name, value)
			}
		}
	}
	s := query{values: v, Q: v.Get("q")}
	f := &s.filter
	var errs []error
	add := func(field string, err error) { errs = append(errs, inField(field, err)) }
	for _, state := range v["state"] {
		f.States = append(f.States, admin.State(state))
	}
	f.Prefix, f.Error, f.Text = v.Get("id"), v.Get("error"), v.Get("text")
	f.Group, f.Key, f.Reason = v.Get("group"), v.Get("key"), v.Get("reason")
	for _, header := range v["header"] {
		name, value, found := strings.Cut(header, "=")
		if !found { // as HTTP writes it
			name, value, found = strings.Cut(header, ":")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		}
		if !found || name == "" {
			add("header", lua.Invalid("header", header, "must be name=value"))
			continue
		}
		if f.Headers == nil {
			f.Headers = map[string]string{}
		}
		if earlier, twice := f.Headers[name]; twice && earlier != value {
			add("header", lua.Invalid("header", header, "must not ask for two values of a name"))
		}
		f.Headers[name] = value
	}
	due := func(field string) time.Time {
		at, err := q.formTime(from, field, v.Get(field))
		errs = append(errs, err)
		if err == nil && !at.IsZero() {
			v.Set(field, at.UTC().Format(time.RFC3339Nano)) // so that it stays the same, whatever the zone of a page is
		}
		return at
	}
	f.From, f.Until = due("from"), due("until")
	if s.Q != "" && f.Text != "" {
		add("text", lua.Invalid("text", f.Text, "must be empty when the box holds a text"))
	}
	if len(s.Q) > admin.MaxSearchTextBytes {
		add("q", lua.Invalid("q", s.Q, "must be at most %d bytes", admin.MaxSearchTextBytes))
	}
	if as := v.Get("as"); as != "" && as != asID && as != asText && as != asError {
		add("as", lua.Invalid("as", as, "must be %s, %s or %s", asID, asText, asError))
	}
	errs = append(errs, searchFault(f.Validate()))
	if err := errors.Join(errs...); err != nil {
		return s, err
	}
	var err error
	f.Queues, err = q.searchedQueues(ctx, v)
	return s, err
}

// searchFault names the fields of the page in the faults of a filter.
func searchFault(err error) error {
	var invalid *lua.InvalidError
	if errors.As(err, &invalid) && invalid.Field == "prefix" {
		return inField("id", err)
	}
	return err
}

// formTime reads the text of a field for a date and time; "" = zero.
func (q *request) formTime(form url.Values, field, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := q.parseLocal(form, field, text)
	if err == nil {
		err = lua.CheckTime(field, at)
	}
	return at, inField(field, err)
}

// local returns a time as the value of a field in the viewer's zone; zero = "".
func (q *request) local(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.In(q.zone()).Format(localLayout)
}

// maxNamedQueues is the greatest number of names and patterns of queues in a search.
const maxNamedQueues = 500

// searchedQueues returns the queues of a search, sorted: those that the parameters name, by name or by pattern, else
// all that the viewer may inspect.
func (q *request) searchedQueues(ctx context.Context, v url.Values) ([]string, error) {
	registered, err := q.op.Queues(ctx)
	if err != nil {
		return nil, err
	}
	registered = slices.DeleteFunc(registered, func(queue string) bool { return !q.may(access.Inspect, queue) })
	named := slices.Clone(v["queue"])
	for _, text := range v["queues"] {
		named = append(named, strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })...)
	}
	if len(named) == 0 {
		return registered, nil
	}
	slices.Sort(named)
	named = slices.Compact(named)
	if len(named) > maxNamedQueues {
		return nil, inField("queues", lua.Invalid("queues", fmt.Sprint(len(named)),
			"must be at most %d names and patterns", maxNamedQueues))
	}
	var chosen []string
	for _, name := range named {
		if err := lua.CheckQueue(strings.ReplaceAll(name, "*", "x")); err != nil {
			return nil, inField("queues", lua.Invalid("queues", name,
				"must be names of queues with a blank between them; * stands for any characters"))
		}
		if !strings.Contains(name, "*") {
			if !q.may(access.Inspect, name) {
				return nil, errForbidden
			}
			if !slices.Contains(registered, name) {
				if err := q.op.CheckKnown(ctx, name); err != nil {
					return nil, inField("queues", err)
				}
			}
			chosen = append(chosen, name)
			continue
		}
		before := len(chosen)
		for _, queue := range registered {
			if match, _ := path.Match(name, queue); match { // the pattern is checked above
				chosen = append(chosen, queue)
			}
		}
		if len(chosen) == before {
			return nil, inField("queues", lua.Invalid("queues", name, "must match a queue that you may inspect"))
		}
	}
	slices.Sort(chosen)
	return slices.Compact(chosen), nil
}

// isEmpty reports whether the viewer asked for nothing.
func (s query) isEmpty() bool { return len(s.values) == 0 }

// phases returns the meanings that the text of the box may have, in order. The search tries the next meaning if the one
// before it found nothing.
func (s query) phases() (phases []string) {
	if s.Q == "" {
		return []string{""}
	}
	if as := s.values.Get("as"); as != "" {
		return []string{as}
	}
	mayBeID := lua.CheckID(s.Q) == nil && !strings.ContainsAny(s.Q, " \t{}[]\"<>")
	if mayBeID && s.filter.Prefix == "" { // an ID with such a character can be given in its own field
		phases = append(phases, asID)
	}
	phases = append(phases, asText)
	if s.filter.Error == "" {
		phases = append(phases, asError)
	}
	return phases
}

// filterAs returns the filter of a phase.
func (s query) filterAs(phase string) admin.SearchFilter {
	f := s.filter
	switch phase {
	case asID:
		f.Prefix = s.Q
	case asText:
		f.Text = s.Q
	case asError:
		f.Error = s.Q
	}
	return f
}

// as returns the parameters of the search with the text of the box taken as one thing.
func (s query) as(phase string) string {
	v := url.Values{}
	for name, values := range s.values {
		v[name] = values
	}
	if phase != "" {
		v.Set("as", phase)
	}
	return v.Encode()
}

// about returns the search in words, for its job.
func (s query) about(phase string) string {
	f := s.filterAs(phase)
	var words []string
	add := func(condition bool, format string, args ...any) {
		if condition {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(f.Prefix != "", "ID begins with “%s”", f.Prefix)
	add(f.Key != "", "ordering key “%s”", f.Key)
	for _, name := range slices.Sorted(maps.Keys(f.Headers)) {
		add(true, "header %s is “%s”", name, f.Headers[name])
	}
	add(f.Error != "", "error contains “%s”", f.Error)
	add(f.Text != "", "payload contains “%s”", f.Text)
	add(f.Group != "", "group %s", f.Group)
	add(f.Reason != "", "reason %s", f.Reason)
	add(len(f.States) > 0, "state %s", joinStates(f.States))
	add(!f.From.IsZero(), "due from %s", f.From.UTC().Format("2006-01-02 15:04:05 MST"))
	add(!f.Until.IsZero(), "due before %s", f.Until.UTC().Format("2006-01-02 15:04:05 MST"))
	if len(s.values["queue"])+len(s.values["queues"]) > 0 {
		add(true, "in %s", strings.TrimSpace(strings.Join(s.values["queue"], " ")+" "+s.values.Get("queues")))
	}
	if len(words) == 0 {
		return "all messages"
	}
	return strings.Join(words, ", ")
}

func joinStates(states []admin.State) string {
	words := make([]string, len(states))
	for i, state := range states {
		words[i] = string(state)
	}
	return strings.Join(words, " or ")
}

// searchView is the data of the page.
type searchView struct {
	Values   url.Values // the parameters
	Query    string     // the same, encoded
	Expert   bool       // the expert form is open
	About    string     // the conditions of the expert form in words; "" = none
	Stream   string     // address of the stream of hits; "" = nothing was asked for
	Known    []string   // names of queues, for the field
	Queues   int        // that are searched
	States   []stateBox
	Reasons  []string // of dead letters, for the field
	Headers  []string // given ones, and an empty one
	Kinds    []kindBox
	Jobs     []jobView
	From     string // in the viewer's zone, like Until and Tomorrow
	Until    string
	Tomorrow string
	Zone     string
	MaxShown int
	Found    foundView // before the search
}

// stateBox is a check box for a state.
type stateBox struct {
	State   admin.State
	Checked bool
}

// kindBox is a change that the viewer may make.
type kindBox struct {
	Kind  admin.ActionKind
	Label string
}

// maxKnown is the greatest number of queue names that the page suggests.
const maxKnown = 200

func showSearch(q *request) (any, error) {
	from := q.query
	if q.problem != nil || q.r.Method == "POST" { // the form with the hits is shown again
		var err error
		if from, err = url.ParseQuery(q.query.Get("query")); err != nil {
			return nil, lua.Invalid("query", "", "must be the parameters of a search")
		}
	}
	s, err := q.readQuery(q.ctx, from)
	faulty := q.problem == nil && err != nil && len(faultsOf(err)) > 0 && newFailure(err).Status < 500
	if err != nil && (!faulty || errors.Is(err, errForbidden)) {
		return nil, err
	}
	if faulty {
		q.problem = err
	}
	v := searchView{Values: s.values, Query: s.values.Encode(),
		Tomorrow: q.local(tomorrow()),
		From:     q.local(s.filter.From), Until: q.local(s.filter.Until), Zone: q.zone().String(),
		Reasons:  admin.Reasons(),
		MaxShown: maxShown, Jobs: q.changes(), Headers: append(slices.Clone(s.values["header"]), "")}
	conditions := slices.ContainsFunc(searchFields, func(name string) bool {
		return name != "q" && name != "as" && s.values.Has(name)
	})
	if conditions && !faulty {
		v.About = s.about("")
	}
	v.Expert = faulty || q.problem != nil
	for _, state := range allStates {
		v.States = append(v.States, stateBox{state, slices.Contains(s.filter.States, state)})
	}
	if v.Known, err = q.searchedQueues(q.ctx, nil); err != nil {
		return nil, err
	}
	v.Kinds = q.kindsOn(v.Known)
	v.Queues = len(v.Known)
	v.Known = v.Known[:min(len(v.Known), maxKnown)]
	if s.isEmpty() || faulty {
		return v, nil
	}
	v.Stream = "search-stream?" + v.Query
	v.Found = foundView{Query: s, Queue: "", Phase: s.phases()[0], Running: true}
	return v, nil
}

// changes returns the jobs that the viewer may see, without counts that have ended.
func (q *request) changes() []jobView {
	return slices.DeleteFunc(q.jobList(), func(v jobView) bool { return v.DryRun && !v.Running })
}

// tomorrow returns the same time of the next day, in whole minutes.
func tomorrow() time.Time { return time.Now().Add(24 * time.Hour).Truncate(time.Minute) }

// kindsOn returns the changes that the viewer may make in one of the queues at least.
func (q *request) kindsOn(queues []string) (kinds []kindBox) {
	for _, one := range []kindBox{
		{admin.ActCancel, "Cancel"}, {admin.ActReschedule, "Reschedule"}, {admin.ActExpire, "Expire"},
		{admin.ActRedrive, "Redrive"}, {admin.ActPurge, "Purge"},
	} {
		verbs := verbsOf(one.Kind)
		if slices.ContainsFunc(queues, func(queue string) bool { return q.mayOneOf(verbs, queue) }) {
			kinds = append(kinds, one)
		}
	}
	return kinds
}

// verbsOf returns the verbs that allow a change; one of them is enough.
func verbsOf(kind admin.ActionKind) []access.Verb {
	if kind == admin.ActRedrive || kind == admin.ActPurge {
		return []access.Verb{access.Operate}
	}
	return []access.Verb{access.Publish, access.Operate}
}

// foundRow is a hit of the table.
type foundRow struct{ admin.Hit }

// RowID returns an ID for the element of the row. Every place of a message has another one.
func (r foundRow) RowID() string {
	sum := sha256.Sum256([]byte(r.Place()))
	return "hit-" + hex.EncodeToString(sum[:12])
}

// Place returns what identifies the place of the hit, as JSON.
func (r foundRow) Place() string {
	text, _ := json.Marshal(onlyPlace(r.Hit)) // texts and numbers can be encoded
	return string(text)
}

// onlyPlace returns a hit with only the fields that tell where the message is.
func onlyPlace(h admin.Hit) admin.Hit {
	return admin.Hit{Queue: h.Queue, State: h.State, Partition: h.Partition, ID: h.ID, Group: h.Group, Member: h.Member,
		Entry: h.Entry, Letter: h.Letter}
}

// maxPlaceBytes limits what Place returns. An ID, a group and a member may have 256 bytes each, and a byte may be
// written with six.
const maxPlaceBytes = 8 << 10

// readPlace reads what Place returned. Of a hit it keeps only the place.
func readPlace(text string) (h admin.Hit, err error) {
	if len(text) > maxPlaceBytes {
		return h, tooLarge("hit", len(text), "must be at most %d bytes", maxPlaceBytes)
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&h); err != nil {
		return h, lua.Invalid("hit", text, "must be a hit of a search")
	}
	return onlyPlace(h), lua.CheckQueue(h.Queue)
}
