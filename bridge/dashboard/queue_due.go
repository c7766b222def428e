package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file holds the tab of due times: how many messages are due when, and the messages of each bar.

// dueScale is a length of the bars.
type dueScale struct {
	Key, Title string
	step       time.Duration // about
	bars       int
	layout     string // of the label of a bar
	calendar   bool   // the bars are months
}

var dueScales = []dueScale{
	{"minute", "Minutes", time.Minute, 60, "15:04", false},
	{"hour", "Hours", time.Hour, 48, "Mon 2 Jan 15:04", false},
	{"day", "Days", day, 60, "Mon 2 Jan 2006", false},
	{"month", "Months", 30 * day, 12, "January 2006", true},
}

// Members that the tab lists.
const (
	dueListed     = 100
	dueListedMost = 1000
)

// dueView is the data of the tab.
type dueView struct {
	At       time.Time
	Zone     string
	Scale    dueScale
	Scales   []dueScale
	Bars     []dueBar
	Highest  int64
	Total    int64 // of the bars
	From     time.Time
	End      time.Time
	EndLabel string
	Earlier  time.Time // beginning of the bars before these; zero = they would be too early
	Overdue  int64
	Before   int64
	Later    int64
	Waiting  int64    // for their ordering keys
	List     *dueList // the members of a bar
	Shifted  bool     // the address names the beginning of the bars
}

// OverdueEnd returns the time before which the overdue members are due.
func (v dueView) OverdueEnd() time.Time { return v.At.Add(time.Millisecond) }

// Ticks returns the labels below the bars: of the beginning of each quarter, and of the end.
func (v dueView) Ticks() (labels []string) {
	for quarter := range 4 {
		labels = append(labels, v.Bars[quarter*len(v.Bars)/4].Label)
	}
	return append(labels, v.EndLabel)
}

// IsLast reports whether bars after these would be too late.
func (v dueView) IsLast() bool { return v.End.UTC().Year() > latestYear }

// Beginning returns the beginning of the bars for an address; "" if they begin now.
func (v dueView) Beginning() string {
	if !v.Shifted {
		return ""
	}
	return boundText(v.From)
}

// NowX returns the place of the present in the box of the bars; "" if the bars do not show it.
func (v dueView) NowX() string {
	if v.At.Before(v.From) || !v.At.Before(v.End) {
		return ""
	}
	return fmt.Sprintf("%.2f", 1000*float64(v.At.Sub(v.From))/float64(v.End.Sub(v.From)))
}

// dueBar is a bar, with its place in a box of 1000 to 200.
type dueBar struct {
	From, Until         time.Time
	Label               string
	N                   int64
	X, Width, Y, Height string
}

// dueList holds the members of a bar that are due first.
type dueList struct {
	From, Until time.Time // zero = without a bound
	Members     []admin.Due
	Total       int64
	More        int // how many to list at the next click; 0 = no more
}

// FromText and UntilText return the bounds for an address.
func (l *dueList) FromText() string  { return boundText(l.From) }
func (l *dueList) UntilText() string { return boundText(l.Until) }

func boundText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func showDue(q *request, _ queueState) (any, error) {
	v := dueView{Scale: dueScales[1], Scales: dueScales, Zone: q.zone().String()}
	for _, scale := range dueScales {
		if scale.Key == q.query.Get("by") {
			v.Scale = scale
		}
	}
	now, err := q.op.Time(q.ctx, q.queue())
	if err != nil {
		return nil, err
	}
	v.At = now
	from, err := q.timeOf("from")
	if err != nil {
		return nil, err
	}
	v.Shifted = !from.IsZero()
	if from.IsZero() {
		from = now
	}
	v.From = v.Scale.begin(from, q.zone())
	if err := v.count(q); err != nil {
		return nil, err
	}
	v.label(q.zone())
	v.place()
	v.List, err = q.listDue()
	return v, err
}

// Years of a time of the address.
const (
	earliestYear = 1970
	latestYear   = 9000
)

// timeOf reads a point in time of the address, in RFC 3339; zero if it is missing.
func (q *request) timeOf(name string) (time.Time, error) {
	text := q.query.Get(name)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.Year() < earliestYear || t.Year() > latestYear {
		return time.Time{}, lua.Invalid(name, text, "must be a time of the years %d to %d in RFC 3339", earliestYear,
			latestYear)
	}
	return t, nil
}

// begin returns the beginning of the bar that holds a time.
func (s dueScale) begin(t time.Time, zone *time.Location) time.Time {
	t = t.In(zone)
	switch {
	case s.calendar:
		return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, zone)
	case s.step == day:
		return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, zone)
	case s.step == time.Hour: // time.Date cannot tell apart two hours with the same name
		return t.Truncate(time.Minute).Add(-time.Duration(t.Minute()) * time.Minute)
	}
	return t.Truncate(s.step)
}

// day is the length of a day without a change to or from summer time.
const day = 24 * time.Hour

// after returns the time that is n bars after the beginning of a bar. Days and months are those of the zone of that
// time, so they differ in length.
func (s dueScale) after(from time.Time, n int) time.Time {
	switch {
	case s.calendar:
		return from.AddDate(0, n, 0)
	case s.step == day:
		return from.AddDate(0, 0, n)
	}
	return from.Add(time.Duration(n) * s.step)
}

// count fills in the bars. It asks for all neighbours of the same length together.
func (v *dueView) count(q *request) error {
	scale := v.Scale
	for n := 0; len(v.Bars) < scale.bars; n = 0 {
		first := len(v.Bars)
		begin := scale.after(v.From, first)
		step := scale.after(v.From, first+1).Sub(begin)
		for first+n < scale.bars && scale.after(v.From, first+n+1).Sub(scale.after(v.From, first+n)) == step {
			n++
		}
		h, err := q.op.DueHistogram(q.ctx, q.queue(), begin, step, n)
		if err != nil {
			return err
		}
		if first == 0 {
			v.At, v.Overdue, v.Before, v.Waiting = h.At, h.Overdue, h.Before, h.WaitForKey
		}
		v.Later = h.Later
		for i, count := range h.Bars {
			from, until := h.Bar(i)
			v.Bars = append(v.Bars, dueBar{From: from, Until: until, N: count})
		}
	}
	v.End = v.Bars[len(v.Bars)-1].Until
	if earlier := scale.after(v.From, -scale.bars); earlier.Year() >= earliestYear {
		v.Earlier = earlier
	}
	return nil
}

// label names the bars, in a time zone. If the clocks change between the first and the last bar, the name of an hour
// includes the zone, because the hour may come twice.
func (v *dueView) label(zone *time.Location) {
	layout := v.Scale.layout
	_, first := v.From.In(zone).Zone()
	if _, last := v.End.In(zone).Zone(); first != last && v.Scale.step < day {
		layout += " MST"
	}
	name := func(from, until time.Time) string {
		if v.Scale.step >= day { // midnight may not exist, or be on the day before
			from = from.Add(until.Sub(from) / 2)
		}
		return from.In(zone).Format(layout)
	}
	for i := range v.Bars {
		v.Bars[i].Label = name(v.Bars[i].From, v.Bars[i].Until)
	}
	v.EndLabel = name(v.End, v.Scale.after(v.End.In(zone), 1))
}

// place computes the places of the bars.
func (v *dueView) place() {
	for _, b := range v.Bars {
		v.Highest = max(v.Highest, b.N)
		v.Total += b.N
	}
	width := 1000 / float64(len(v.Bars))
	for i := range v.Bars {
		b := &v.Bars[i]
		height := 0.0
		if b.N > 0 {
			height = max(3, 200*float64(b.N)/float64(v.Highest))
		}
		b.X, b.Width = fmt.Sprintf("%.2f", float64(i)*width), fmt.Sprintf("%.2f", width*0.9)
		b.Y, b.Height = fmt.Sprintf("%.2f", 200-height), fmt.Sprintf("%.2f", height)
	}
}

// Filled returns the bars that have members.
func (v dueView) Filled() []dueBar {
	return slices.DeleteFunc(slices.Clone(v.Bars), func(b dueBar) bool { return b.N == 0 })
}

// listDue lists the members that are due in the span of the address; nil if it names none.
func (q *request) listDue() (*dueList, error) {
	if !q.query.Has("first") && !q.query.Has("until") {
		return nil, nil
	}
	first, err := q.timeOf("first")
	if err != nil {
		return nil, err
	}
	until, err := q.timeOf("until")
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(cmp.Or(q.query.Get("n"), strconv.Itoa(dueListed)))
	if err != nil || n < 1 || n > dueListedMost {
		return nil, lua.Invalid("n", q.query.Get("n"), "must be a whole number from 1 to %d", dueListedMost)
	}
	peeked, err := q.op.DueBetween(q.ctx, q.queue(), first, until, n)
	if err != nil {
		return nil, err
	}
	list := &dueList{From: first, Until: until, Members: peeked.Next, Total: peeked.Total}
	if int64(n) < peeked.Total && n < dueListedMost {
		list.More = min(10*n, dueListedMost)
	}
	return list, nil
}
