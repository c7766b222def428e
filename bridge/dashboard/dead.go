package dashboard

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/written"
	"github.com/duestream/duestream/lua"
)

// This file holds the page that tells what failed and why.

func deadSection() section {
	operate := []access.Verb{access.Operate}
	return section{
		nav: []navItem{{Path: "dead", Title: "Dead letters", Key: "d"}},
		pages: []page{
			{path: "dead", title: "Dead letters", template: "dead", show: showDead, live: liveDeadPage},
			{path: "dead-letters", title: "Dead letters", template: "dead_letters", show: showLetters},
			{path: "dead-letter", title: "Dead letter", template: "dead_letter", show: showLetter},
			{path: "dead-redrive", title: "Redrive dead letters", template: "dead_redrive", show: showRedrive},
			{path: "dead-purge", title: "Purge dead letters", template: "dead_purge", show: showPurge},
			{path: "dead-edit", title: "Edit and redrive a dead letter", template: "dead_edit", show: showEdit},
		},
		routes: []route{{http.MethodGet, "dead-payload", serveLetterPayload}},
		actions: []action{
			{path: "do-dead-redrive", verbs: operate, form: "dead-redrive", do: redriveLetters},
			{path: "do-dead-purge", verbs: operate, form: "dead-purge", do: purgeLetters},
			{path: "do-dead-edit", verbs: operate, form: "dead-edit", payload: true, do: redriveEdited},
		},
	}
}

// shownGroups is the greatest number of rows of the page.
const shownGroups = 200

// deadView is the data of the page.
type deadView struct {
	Queue    string // "" = all queues
	Group    string // only letters of this group; "" = of all
	Sort     string // "count" or "newest"
	All      bool   // all letters are being read, not only the newest
	Rows     []deadRow
	More     int // rows that are not shown
	Total    int64
	Looked   int
	Complete bool // all letters were read
	Oldest   time.Time
	At       time.Time
	Retries  *retriesView  // nil = not of this page
	Retrying []queueRow    // queues with retries, the most first; nil = not of this page
	Unread   []deadSummary // queues whose letters could not be read, or were not yet
}

// deadRow is a row of the page: the letters of one group of a queue with one reason and error.
type deadRow struct {
	Queue string
	admin.LetterGroup
	Complete bool // all letters of the queue were read, so Oldest is the oldest of the row
	TrendEnd time.Time
	Share    int64 // percent of the letters that were read
}

// Letters returns the address of the row's letters; "" if no filter selects them.
func (r deadRow) Letters() string {
	f, ok := r.Filter()
	if !ok {
		return ""
	}
	return lettersAddress("dead-letters", r.Queue, f)
}

// reasonTexts say in words why a message is dead.
var reasonTexts = map[string]string{
	lua.ReasonMaxAttempts:       "every attempt failed",
	lua.ReasonMaxSnoozes:        "its handler snoozed it too often",
	lua.ReasonCrashes:           "its worker died at too many attempts",
	lua.ReasonDeadLetter:        "its handler gave it up",
	lua.ReasonXNackFatal:        "its worker gave it up",
	lua.ReasonRetryFor:          "it was too old for another attempt",
	lua.ReasonHandlerTimeout:    "its handler took too long at the last attempt",
	lua.ReasonVisibilityTimeout: "no worker finished it in time",
	lua.ReasonExpired:           "it expired",
	lua.ReasonGroupGone:         "its group does not exist",
	lua.ReasonMalformed:         "it cannot be delivered as it is",
	lua.ReasonBodyLost:          "somebody deleted its entry",
}

// reasonText says in words why a message is dead; "" for a reason of another program.
func reasonText(reason string) string { return reasonTexts[reason] }

// trendBar is a bar of the trend.
type trendBar struct{ X, Y, Height int }

// Size of the trend, and of a bar with its gap.
const (
	trendHeight = 20
	trendStep   = 4
)

// Bars returns the bars of the trend, one for each hour. An hour with a letter has a bar that can be seen.
func (r deadRow) Bars() (bars []trendBar) {
	most := max(1, slices.Max(append([]int{0}, r.Hourly...)))
	for i, n := range r.Hourly {
		height := (n*trendHeight + most - 1) / most
		bars = append(bars, trendBar{i * trendStep, trendHeight - height, height})
	}
	return bars
}

// TrendText says the trend in words.
func (r deadRow) TrendText() string {
	sum, last := 0, 0
	for _, n := range r.Hourly {
		sum += n
		last = n
	}
	return fmt.Sprintf("%s within %d hours until %s, %s of them in the last hour", plural(sum, "letter", "letters"),
		admin.TrendHours, r.TrendEnd.UTC().Format("2006-01-02 15:04 MST"), number(last))
}

func liveDeadPage(q *request) (*live, error) {
	l := q.liveDead(q.queue(), q.query.Has("all"))
	l.data = func(value any) (any, error) { return q.deadView(value.(deadState)), nil }
	return l, nil
}

func showDead(q *request) (any, error) {
	if q.queue() != "" {
		if err := q.op.CheckKnown(q.ctx, q.queue()); err != nil {
			return nil, err
		}
	}
	l, err := liveDeadPage(q)
	if err != nil {
		return nil, err
	}
	value, err := q.sample(l)
	if err != nil {
		return nil, err
	}
	v := q.deadView(value.(deadState))
	if v.Queue != "" {
		v.Retries = q.retriesOfQueue(v.Queue)
	} else {
		v.Retrying = q.retryingQueues()
	}
	return v, nil
}

// deadView returns the rows of the queues that the viewer may inspect.
func (q *request) deadView(s deadState) deadView {
	v := deadView{Queue: q.queue(), Group: q.query.Get("group"), Sort: "count", All: s.all, Complete: true}
	if q.query.Get("sort") == "newest" {
		v.Sort = "newest"
	}
	for _, one := range s.queues {
		if !q.may(access.Inspect, one.Queue) {
			continue
		}
		v.Total += one.Total
		v.Looked += one.Looked
		v.Complete = v.Complete && one.Complete && int64(one.Looked) >= one.Total
		if one.Err != nil || one.At.IsZero() {
			v.Unread = append(v.Unread, one)
		}
		if !one.At.IsZero() && (v.At.IsZero() || one.At.Before(v.At)) {
			v.At = one.At
		}
		if !one.Oldest.IsZero() && (v.Oldest.IsZero() || one.Oldest.Before(v.Oldest)) {
			v.Oldest = one.Oldest
		}
		for _, g := range one.Groups {
			if v.Group == "" || g.Group == v.Group {
				v.Rows = append(v.Rows, deadRow{Queue: one.Queue, LetterGroup: g, TrendEnd: one.TrendEnd,
					Complete: one.Complete && int64(one.Looked) >= one.Total})
			}
		}
	}
	for i := range v.Rows {
		looked := int64(max(v.Looked, 1))
		v.Rows[i].Share = (int64(v.Rows[i].Count)*100 + looked/2) / looked
	}
	sortDeadRows(v.Rows, v.Sort)
	if len(v.Rows) > shownGroups {
		v.Rows, v.More = v.Rows[:shownGroups], len(v.Rows)-shownGroups
	}
	return v
}

func sortDeadRows(rows []deadRow, by string) {
	slices.SortStableFunc(rows, func(a, b deadRow) int {
		count, newest := cmp.Compare(b.Count, a.Count), b.Newest.Compare(a.Newest)
		if by == "newest" {
			count, newest = newest, count
		}
		return cmp.Or(count, newest, strings.Compare(a.Queue, b.Queue), strings.Compare(a.Group, b.Group),
			strings.Compare(a.Reason, b.Reason), strings.Compare(a.Error, b.Error))
	})
}

// Names of the parameters of a filter.
const (
	paramGroup, paramReason, paramError   = "group", "reason", "error"
	paramKind, paramID                    = "kind", "id"
	paramOlder, paramNewer                = "older", "newer"
	paramWithoutGroup, paramWithoutErrors = "nogroup", "noerror"
	paramWithoutReason                    = "noreason"
)

// letterFilter returns the filter that the address or the form names.
func (q *request) letterFilter() (admin.LetterFilter, error) {
	f := admin.LetterFilter{
		Group: q.query.Get(paramGroup), Reason: q.query.Get(paramReason), ErrorText: q.query.Get(paramError),
		ErrorKind: q.query.Get(paramKind), ID: q.query.Get(paramID),
		WithoutGroup: q.query.Get(paramWithoutGroup) != "", WithoutError: q.query.Get(paramWithoutErrors) != "",
		WithoutReason: q.query.Get(paramWithoutReason) != "", Newest: true,
	}
	var older, newer error
	f.OlderThan, older = q.formDuration(paramOlder)
	f.NewerThan, newer = q.formDuration(paramNewer)
	return f, errors.Join(older, newer)
}

// filterFields returns the parameters of a filter.
func filterFields(f admin.LetterFilter) (all []jobField) {
	add := func(name, value string) {
		if value != "" {
			all = append(all, jobField{name, value})
		}
	}
	flag := func(name string, is bool) {
		if is {
			add(name, "1")
		}
	}
	age := func(name string, d time.Duration) {
		if d > 0 {
			add(name, written.Duration(d))
		}
	}
	add(paramGroup, f.Group)
	flag(paramWithoutGroup, f.WithoutGroup)
	add(paramReason, f.Reason)
	flag(paramWithoutReason, f.WithoutReason)
	add(paramKind, f.ErrorKind)
	flag(paramWithoutErrors, f.WithoutError)
	add(paramError, f.ErrorText)
	add(paramID, f.ID)
	age(paramOlder, f.OlderThan)
	age(paramNewer, f.NewerThan)
	return all
}

// lettersAddress returns the address of a page about the letters of a queue that a filter selects.
func lettersAddress(page, queue string, f admin.LetterFilter) string {
	query := url.Values{"queue": {queue}}
	for _, one := range filterFields(f) {
		query.Set(one.Name, one.Value)
	}
	return page + "?" + query.Encode()
}

// filterWords says in words what a filter selects; "" = all letters.
func filterWords(f admin.LetterFilter) string {
	var words []string
	add := func(is bool, format string, value any) {
		if is {
			words = append(words, fmt.Sprintf(format, value))
		}
	}
	add(f.Group != "", "of group %v", f.Group)
	add(f.WithoutGroup, "of no group%v", "")
	add(f.Reason != "", "with reason %v", f.Reason)
	add(f.WithoutReason, "without a reason%v", "")
	add(f.ErrorKind != "", "with an error like “%v”", f.ErrorKind)
	add(f.WithoutError, "without an error%v", "")
	add(f.ErrorText != "", "with “%v” in the error", f.ErrorText)
	add(f.ID != "", "whose ID matches %v", f.ID)
	add(f.OlderThan > 0, "dead for at least %v", span(f.OlderThan))
	add(f.NewerThan > 0, "dead for at most %v", span(f.NewerThan))
	return strings.Join(words, ", ")
}
