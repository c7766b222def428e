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

// This file holds the scripts of recurrences. Those of a queue, and what is planned of them, are in its partition 0.

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

// Plan is what is remembered of a recurrence, beside its spec.
type Plan struct {
	Version string // of the spec that it is of
	Times   string // of its times
	Spans   []Span // what is planned; one at least, the last one goes on
	Used    int    // so many occurrences were
	// Recent is what stands behind "@" in the IDs of the newest messages: those that were in the schedule when one was added, the
	// last one that had left it, and any of which something may be left. What was run by hand ends with RunSuffix.
	Recent []string
}

// Span is a stretch of time, behind From and up to To, of which no occurrence is planned any more: each was, or is left out for
// good.
type Span struct{ From, To time.Time }

// Planned is up to where everything is planned.
func (p Plan) Planned() time.Time { return p.Spans[len(p.Spans)-1].To }

// MaxSpans is how many stretches of time are remembered.
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

// RunSuffix ends the IDs of what was run by hand.
const RunSuffix = "-run"

// ParsePlan reads what the scripts write; false for anything else.
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

// SpecVersion is the version of a spec: its SHA-1 in hex.
func SpecVersion(spec string) string { return sha1Hex(spec) }

// Recurred is what became of a spec that was written. Not Written and not Same: another one than before is there.
type Recurred struct {
	Written, Same bool
	TakenBack     int    // messages
	Plan          string // what is remembered now
}

// Recur writes the spec of a recurrence. With before it does so only if that is the spec there. Times is a word that stands for
// when its occurrences are: with another than before it begins from now. What is large is taken back in several calls; the last
// one writes the spec, and until then the former one is in force.
func Recur(ctx context.Context, c rueidis.Client, k Keys, name, before, spec, times string, paused bool) (Recurred, error) {
	back := 0
	for {
		r, later, err := recurStep(ctx, c, k, name, before, spec, times, paused)
		back += r.TakenBack
		if r.TakenBack = back; err != nil || !later {
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

// PlanGone is the Version of what is remembered of a recurrence that was removed, and of whose messages something may be left.
const PlanGone = "gone"

// RemoveRecurrence removes a recurrence, and says whether there was one, and how many messages were taken back. With remember its
// messages of which something may be left are still remembered, with PlanGone, for one that is added again: ForgetRecurrence ends
// that.
func RemoveRecurrence(ctx context.Context, c rueidis.Client, k Keys, name string,
	remember bool) (removed bool, takenBack int, err error) {
	return removeRecurrence(ctx, c, k, name, false, remember)
}

// ForgetRecurrence does what RemoveRecurrence does for one whose spec is gone; nothing, if there is one again.
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
		if takenBack += int(n[1]); n[0] != notReached {
			return n[0] == 1, takenBack, nil
		}
	}
}

// Occurrence is one that is to be planned: when it is, by which its message is named, and when that is due.
type Occurrence struct{ At, Due time.Time }

// MaxPlanned is how many occurrences one call plans.
const MaxPlanned = 100

// PlanOccurrences adds occurrences to the schedule and moves the plan on, if it is still the one that was read. It returns the
// plan that is there now; false: another one was.
func PlanOccurrences(ctx context.Context, c rueidis.Client, k Keys, name, before string, spans []Span, payload []byte,
	meta string, occurrences []Occurrence) (ok bool, plan string, err error) {
	args := []string{name, before, spansText(spans), rueidis.BinaryString(payload), meta}
	for _, o := range occurrences {
		args = append(args, strconv.FormatInt(o.At.UnixMilli(), 10), strconv.FormatInt(o.Due.UnixMilli(), 10))
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

// RunRecurrence schedules a message of a recurrence for now; false: there is no such recurrence. Alone: what is planned for later
// is taken back.
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

// Unfinished is a walk that looks whether anything is left of messages that carry FieldOverlap. The zero value begins; one that
// has ended may go on later, also with other messages, if these were not scheduled when it ended.
type Unfinished struct {
	cursor  string
	entries map[string][]string // message → its entries
}

// FindUnfinished goes on with a walk over the entries of a queue, for limit of them. It ends, done, when something is left, or
// all was looked at. A dead letter is done.
func FindUnfinished(ctx context.Context, c rueidis.Client, k Keys, w *Unfinished, limit int,
	ids []string) (left, done bool, err error) {
	if w.cursor == "" {
		w.cursor, w.entries = "0-0", map[string][]string{}
	}
	maps.DeleteFunc(w.entries, func(id string, _ []string) bool { return !slices.Contains(ids, id) }) // done, for good
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
