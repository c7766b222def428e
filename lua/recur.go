package lua

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// This file holds the scripts of recurrences. The recurrences of a queue, and their plans, are in its partition 0.

var (
	recurKeys   = []string{"recurring", "planned", "due", "payload", "meta"}
	toldKeys    = []string{"policy", "history"}
	recurScript = load("recur", slices.Concat(recurKeys, toldKeys),
		[]string{"name", "before", "version", "spec", "paused", "times"}, nil)
	planScript = load("plan", slices.Concat(recurKeys, []string{"wake"}, toldKeys),
		[]string{"name", "before", "spans", "body", "fields"}, []string{"at", "due_ms"})
	runRecurrenceScript = load("run_recurrence", slices.Concat(recurKeys, []string{"wake"}, toldKeys),
		[]string{"name", "body", "fields", "alone"}, nil)

	removeRecurrenceScript = load("remove_recurrence", slices.Concat(recurKeys, toldKeys),
		[]string{"name", "gone", "remember"}, nil)
	findUnfinishedScript = load("find_unfinished", []string{"due", "stream"}, []string{"cursor", "limit"},
		[]string{"id", "entries"})
)

func (k Keys) ofRecurrences(more ...string) []string {
	return slices.Concat([]string{k.Recurring, k.Planned, k.Due, k.Payload, k.Meta}, more, []string{k.Policy, k.History})
}

// Plan is the state of a recurrence, without its spec.
type Plan struct {
	Version string // of the spec that was planned
	Times   string // a word that stands for the times of the spec
	Spans   []Span // the planned stretches of time, one at least; planning goes on at the end of the last one
	Used    int    // how many occurrences were planned
	// Recent lists the newest messages, each by the part of its ID after "@": those that were scheduled when the last
	// one was added, the last one that had left the schedule, and any that may be unfinished. Messages run by hand end
	// in RunSuffix.
	Recent []string
}

// Span is a stretch of time, after From and up to To, in which nothing is planned any more: each occurrence was
// planned, or is left out for good.
type Span struct{ From, To time.Time }

// Planned returns the time up to which everything is planned.
func (p Plan) Planned() time.Time { return p.Spans[len(p.Spans)-1].To }

// MaxSpans is how many spans a plan holds.
const MaxSpans = 8

func spansText(spans []Span) string {
	var words []string
	for _, s := range spans[max(0, len(spans)-MaxSpans):] {
		words = append(words, fmt.Sprintf("%d-%d", s.From.UnixMilli(), s.To.UnixMilli()))
	}
	return strings.Join(words, ",")
}

func parseSpans(text string) (all []Span, ok bool) {
	for word := range strings.SplitSeq(text, ",") {
		first, last, _ := strings.Cut(word, "-")
		from, err := strconv.ParseInt(first, 10, 64)
		to, bad := strconv.ParseInt(last, 10, 64)
		if err != nil || bad != nil {
			return nil, false
		}
		all = append(all, Span{time.UnixMilli(from), time.UnixMilli(to)})
	}
	return all, true
}

func (p Plan) String() string {
	return fmt.Sprintf("%s %s %s %d %s", p.Version, p.Times, spansText(p.Spans), p.Used, strings.Join(p.Recent, ","))
}

// RunSuffix ends the IDs of messages that were run by hand.
const RunSuffix = "-run"

// ParsePlan reads a plan as the scripts write it; false for anything else.
func ParsePlan(text string) (p Plan, ok bool) {
	words := strings.Split(text, " ")
	if len(words) != 5 || words[0] == "" {
		return Plan{}, false
	}
	spans, ok := parseSpans(words[2])
	used, err := strconv.Atoi(words[3])
	if err != nil || !ok {
		return Plan{}, false
	}
	p = Plan{Version: words[0], Times: words[1], Spans: spans, Used: used}
	if words[4] != "" {
		p.Recent = strings.Split(words[4], ",")
	}
	return p, true
}

// SpecVersion returns the version of a spec: its SHA-1 in hex.
func SpecVersion(spec string) string { return sha1Hex(spec) }

// Recurred is the result of Recur. If neither Written nor Same is set, there is another spec than before.
type Recurred struct {
	Written, Same bool
	TakenBack     int    // messages
	Plan          string // the current plan
}

// Recur writes the spec of a recurrence. With before, it does so only if that is the current spec. times is a word that
// stands for the times of the occurrences: if it changes, planning begins from now. Large messages are taken back in
// several calls; the last call writes the spec, and the former one is in force until then.
func Recur(ctx context.Context, c rueidis.Client, k Keys, name, before, spec, times string, paused bool) (Recurred, error) {
	back := 0
	for {
		r, later, err := recurStep(ctx, c, k, name, before, spec, times, paused)
		back += r.TakenBack
		r.TakenBack = back
		if err != nil || !later {
			return r, err
		}
	}
}

func recurStep(ctx context.Context, c rueidis.Client, k Keys, name, before, spec, times string,
	paused bool) (r Recurred, later bool, err error) {
	list, err := recurScript.list(ctx, c, k.ofRecurrences(), []string{name, before, SpecVersion(spec), spec, oneIf(paused),
		times, k.Actor}, 3)
	if err != nil {
		return Recurred{}, false, err
	}
	verdict, err := list[0].AsInt64()
	back, failed := list[1].AsInt64()
	plan, unread := list[2].ToString()
	for _, one := range []error{failed, unread} {
		if err == nil {
			err = one
		}
	}
	return Recurred{verdict == 1, verdict == 2, int(back), plan}, verdict == notReached, recurScript.unexpected(err)
}

func oneIf(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

// PlanGone is the Version in the plan of a removed recurrence whose messages may be unfinished.
const PlanGone = "gone"

// RemoveRecurrence removes a recurrence. It returns whether there was one, and how many messages were taken back. With
// remember, its messages that may be unfinished stay in a plan with PlanGone, in case the recurrence is added again.
// ForgetRecurrence removes that plan.
func RemoveRecurrence(ctx context.Context, c rueidis.Client, k Keys, name string,
	remember bool) (removed bool, takenBack int, err error) {
	return removeRecurrence(ctx, c, k, name, false, remember)
}

// ForgetRecurrence is RemoveRecurrence for a recurrence whose spec is gone. It does nothing if there is a spec again.
func ForgetRecurrence(ctx context.Context, c rueidis.Client, k Keys, name string, remember bool) error {
	_, _, err := removeRecurrence(ctx, c, k, name, true, remember)
	return err
}

func removeRecurrence(ctx context.Context, c rueidis.Client, k Keys, name string,
	gone, remember bool) (removed bool, takenBack int, err error) {
	for {
		n, err := removeRecurrenceScript.integers(ctx, c, k.ofRecurrences(),
			[]string{name, oneIf(gone), oneIf(remember), k.Actor}, 2, Durability{})
		if err != nil {
			return false, takenBack, err
		}
		takenBack += int(n[1])
		if n[0] != notReached {
			return n[0] == 1, takenBack, nil
		}
	}
}

// Occurrence is an occurrence to plan. At is the time of the occurrence, and part of the ID of its message. Due is the
// time at which the message is due. Taken: another partition has a message with this ID, so the occurrence counts as
// planned, and no message is added.
type Occurrence struct {
	At, Due time.Time
	Taken   bool
}

// OccurrenceID returns the ID of the message of an occurrence.
func OccurrenceID(name string, at time.Time) string {
	return name + "@" + strconv.FormatInt(at.UnixMilli(), 10)
}

// MaxPlanned is how many occurrences one call plans.
const MaxPlanned = 100

// PlanOccurrences adds occurrences to the schedule and updates the plan, if that is still the one in before. It returns
// the current plan; false: it was another one.
func PlanOccurrences(ctx context.Context, c rueidis.Client, k Keys, name, before string, spans []Span, payload []byte,
	meta string, occurrences []Occurrence) (ok bool, plan string, err error) {
	args := []string{name, before, spansText(spans), rueidis.BinaryString(payload), meta}
	for _, o := range occurrences {
		due := o.Due.UnixMilli()
		if o.Taken {
			due = 0
		}
		args = append(args, strconv.FormatInt(o.At.UnixMilli(), 10), strconv.FormatInt(due, 10))
	}
	list, err := planScript.list(ctx, c, k.ofRecurrences(k.Wake), append(args, k.Actor), 2)
	if err != nil {
		return false, "", err
	}
	verdict, err := list[0].AsInt64()
	if err == nil {
		plan, err = list[1].ToString()
	}
	return verdict == 1, plan, planScript.unexpected(err)
}

// RunRecurrence schedules a message of a recurrence for now; false: there is no such recurrence. alone: messages
// planned for later are taken back.
func RunRecurrence(ctx context.Context, c rueidis.Client, k Keys, name string, payload []byte, meta string,
	alone bool) (id string, due time.Time, ok bool, err error) {
	ms := int64(notReached)
	for ms == notReached {
		list, err := runRecurrenceScript.list(ctx, c, k.ofRecurrences(k.Wake),
			[]string{name, rueidis.BinaryString(payload), meta, oneIf(alone), k.Actor}, 2)
		if err != nil {
			return "", time.Time{}, false, err
		}
		ms, err = list[0].AsInt64()
		if err == nil {
			id, err = list[1].ToString()
		}
		if err != nil {
			return "", time.Time{}, false, runRecurrenceScript.unexpected(err)
		}
	}
	return id, time.UnixMilli(ms), ms >= 0, nil
}

// Unfinished is a walk that looks whether any of some messages with FieldOverlap is unfinished. The zero value begins
// one. A walk that has ended may go on later, also with other messages, if these were not scheduled when it ended.
type Unfinished struct {
	cursor  string
	entries map[string][]string // message → its entries
}

// FindUnfinished is a step of a walk over the entries of a queue: it looks at limit of them. The walk is done when a
// message is unfinished, or all entries were looked at. A dead letter counts as finished.
func FindUnfinished(ctx context.Context, c rueidis.Client, k Keys, w *Unfinished, limit int,
	ids []string) (left, done bool, err error) {
	if w.cursor == "" {
		w.cursor, w.entries = "0-0", map[string][]string{}
	}
	maps.DeleteFunc(w.entries, func(id string, _ []string) bool { return !slices.Contains(ids, id) }) // they are finished
	args := []string{w.cursor, strconv.Itoa(limit)}
	for _, id := range ids {
		args = append(args, id, strings.Join(w.entries[id], " "))
	}
	list, err := findUnfinishedScript.list(ctx, c, []string{k.Due, k.Stream}, args, 0)
	if err != nil {
		return false, false, err
	}
	if len(list) < 2 {
		return false, false, findUnfinishedScript.unexpected(errors.New("a short reply"))
	}
	verdict, err := list[0].AsInt64()
	texts, unread := textsOf(list[1:])
	if err = cmp.Or(err, unread); err != nil {
		return false, false, findUnfinishedScript.unexpected(err)
	}
	w.cursor = texts[0]
	for pair := range slices.Chunk(texts[1:], 2) {
		w.entries[pair[0]] = append(w.entries[pair[0]], pair[1])
	}
	return verdict == 1, verdict != 2, nil
}
