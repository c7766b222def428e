package model

import (
	"slices"
	"strconv"
	"time"

	"github.com/duestream/duestream/lua"
)

// Recurrence is a recurrence and what is stored about its plan. An empty Version means that no plan is stored.
type Recurrence struct {
	Spec    string
	Version string
	Times   string
	Spans   []lua.Span
	Used    int
	Recent  []string // the parts after "@" in the IDs of its messages
}

func (r Recurrence) plan() string {
	if r.Version == "" {
		return ""
	}
	return lua.Plan{Version: r.Version, Times: r.Times, Spans: r.Spans, Used: r.Used, Recent: r.Recent}.String()
}

// takeBack removes the recent occurrences that are later than from and still scheduled. It ends each planned span
// before the occurrences that it removed from it.
func (q *Queue) takeBack(name string, r *Recurrence, from int64) (back int) {
	var stay []string
	spans := slices.Clone(r.Spans)
	for _, part := range r.Recent {
		at, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			at = 0 // it was run by hand
		}
		m, waits := q.Scheduled[name+"@"+part]
		if waits && at > from && m.Due > float64(from) {
			delete(q.Scheduled, name+"@"+part)
			back++
			for i, span := range spans {
				if at > span.From.UnixMilli() && at <= span.To.UnixMilli() {
					spans[i].To = time.UnixMilli(at - 1)
				}
			}
			continue
		}
		stay = append(stay, part)
	}
	r.Spans = nil
	for i, span := range spans {
		if span.From.Before(span.To) || i == len(spans)-1 {
			r.Spans = append(r.Spans, span)
		}
	}
	r.Recent, r.Used = stay, max(0, r.Used-back)
	return back
}

// Recur writes a spec. Later occurrences that were planned by the previous spec are removed.
func (q *Queue) Recur(name, before, spec, times string, paused bool) lua.Recurred {
	r := q.Recurrences[name]
	version := lua.SpecVersion(spec)
	switch {
	case r.Version == version && r.Spec == spec:
		return lua.Recurred{Same: true, Plan: r.plan()}
	case before != "" && r.Spec != before && r.Spec != spec:
		return lua.Recurred{Plan: r.plan()}
	}
	from := q.Now
	if paused {
		from = 0
	}
	back := q.takeBack(name, &r, from)
	if r.Times != times {
		r.Spans = []lua.Span{{From: time.UnixMilli(q.Now), To: time.UnixMilli(q.Now)}}
	}
	r.Spec, r.Version, r.Times = spec, version, times
	q.Recurrences[name] = r
	return lua.Recurred{Written: true, TakenBack: back, Plan: r.plan()}
}

// RemoveRecurrence removes the spec and all messages that were planned by it.
func (q *Queue) RemoveRecurrence(name string) (removed bool, back int) {
	r := q.Recurrences[name]
	back = q.takeBack(name, &r, 0)
	delete(q.Recurrences, name)
	return r.Spec != "", back
}

// Plan schedules occurrences and stores the new plan in the same step, if the stored plan is still the given one.
func (q *Queue) Plan(name, before string, spans []lua.Span, payload, meta string,
	occurrences []lua.Occurrence) (ok bool, plan string) {
	r := q.Recurrences[name]
	if r.plan() != before || r.Spec == "" {
		return false, r.plan()
	}
	var waits, left []string
	for _, part := range r.Recent {
		at, _ := strconv.ParseInt(part, 10, 64) // 0 for one that was run by hand
		_, ok := q.Scheduled[name+"@"+part]
		if ok || at > spans[len(spans)-1].To.UnixMilli() {
			waits = append(waits, part)
		} else {
			left = []string{part}
		}
	}
	if len(occurrences) > 0 {
		r.Recent = slices.Concat(left, waits)
	}
	for _, o := range occurrences {
		part := decimal(o.At.UnixMilli())
		id := name + "@" + part
		if _, known := q.Scheduled[id]; !known { // otherwise the ID belongs to a message of somebody else
			r.Recent = append(slices.Clip(r.Recent), part)
			q.Scheduled[id] = NewMessage(id, float64(o.Due.UnixMilli()), payload, meta)
		}
	}
	r.Spans, r.Used = spans, r.Used+len(occurrences)
	q.Recurrences[name] = r
	return true, r.plan()
}

// Run schedules a message of a recurrence that is due now.
func (q *Queue) Run(name, payload, meta string, alone bool) (id string, due time.Time, ok bool) {
	r := q.Recurrences[name]
	if r.Spec == "" {
		return "", time.UnixMilli(-1), false
	}
	part := ""
	for n := q.Now; ; n++ {
		part = decimal(n) + lua.RunSuffix
		_, waits := q.Scheduled[name+"@"+part]
		if !waits && (len(r.Recent) == 0 || r.Recent[len(r.Recent)-1] != part) {
			break
		}
	}
	if alone && r.Version != "" {
		q.takeBack(name, &r, q.Now)
	}
	if r.Version != "" {
		r.Recent = append(slices.Clip(r.Recent), part)
	}
	id = name + "@" + part
	q.Scheduled[id] = NewMessage(id, float64(q.Now), payload, meta)
	q.Recurrences[name] = r
	return id, time.UnixMilli(q.Now), true
}
