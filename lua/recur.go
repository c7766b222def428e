package lua

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// This file holds the reads and scripts of recurrences. The recurrences of a queue, and their plans, are in its
// partition 0.

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

// ReadRecurrences calls found once for each recurrence of a queue, with its stored spec and its plan, and returns the
// plans as ReadPlans does. Each round trip reads about 1 MiB of specs, or all plans, and may take timeout.
func ReadRecurrences(ctx context.Context, c rueidis.Client, k Keys, timeout time.Duration,
	found func(name, spec, plan string)) (plans map[string]string, err error) {
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plans, err = ReadPlans(call, c, k)
	if err != nil {
		return nil, err
	}
	return plans, EachSpec(ctx, c, k, timeout, func(name, spec string) { found(name, spec, plans[name]) })
}

// ReadPlans returns the plans of a queue's recurrences by name, also of recurrences that were removed just now. The
// empty name holds the count of changes. One round trip.
func ReadPlans(ctx context.Context, c rueidis.Client, k Keys) (map[string]string, error) {
	plans, err := c.Do(ctx, c.B().Hgetall().Key(k.Planned).Build()).AsStrMap()
	return plans, Classify("HGETALL "+k.Planned, err)
}

// EachSpec calls found once for each recurrence of a queue, with its stored spec. Each round trip reads about 1 MiB and
// may take timeout.
func EachSpec(ctx context.Context, c rueidis.Client, k Keys, timeout time.Duration,
	found func(name, text string)) error {
	seen := map[string]bool{} // a scan may meet a field twice
	count := int64(4)
	for cursor := uint64(0); ; {
		step, cancel := context.WithTimeout(ctx, timeout)
		page, err := c.Do(step, c.B().Hscan().Key(k.Recurring).Cursor(cursor).Count(count).Build()).AsScanEntry()
		cancel()
		if err != nil {
			return Classify("HSCAN "+k.Recurring, err)
		}
		for pair := range slices.Chunk(page.Elements, 2) {
			if len(pair) == 2 && !seen[pair[0]] {
				seen[pair[0]] = true
				found(pair[0], pair[1])
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
		count = nextCount(count, page.Elements)
	}
}

// specsBytes is about the size of the specs that one step of EachSpec reads.
const specsBytes = 1 << 20

// nextCount returns how many specs the next step reads: so many that they come to about specsBytes, judged by the sizes
// in this page, but at most 100, and at most twice as many as this step.
func nextCount(count int64, page []string) int64 {
	bytes := int64(0)
	for _, text := range page {
		bytes += int64(len(text))
	}
	meanSize := bytes/max(1, int64(len(page)/2)) + 1
	return max(1, min(2*count, 100, specsBytes/meanSize))
}

// Plan is the state of a recurrence, without its spec.
type Plan struct {
	Version string // SpecVersion of the spec that was planned, or PlanGone
	Times   string // a word that changes with the times of the spec
	Spans   []Span // the planned stretches of time, at least one; planning goes on at the end of the last one
	Used    int    // how many occurrences were planned
	// Recent lists the newest messages, each by the part of its ID after "@". These are the messages that were
	// scheduled when the last message was added, the last message that had left the schedule then, and messages that
	// may be unfinished. The IDs of messages that were run by hand end in RunSuffix.
	Recent []string
}

// Span is a stretch of time, after From and up to To, for which planning is finished: each occurrence in it was
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

// planText matches a plan as the scripts write it. It does not limit the numbers of spans and of recent messages.
var planText = regexp.MustCompile(`^[0-9A-Za-z]+ [0-9A-Za-z]+ [0-9]{1,15}-[0-9]{1,15}(,[0-9]{1,15}-[0-9]{1,15})*` +
	` [0-9]{1,15} ([^ ,]+(,[^ ,]+)*)?$`)

// MaxRecent is how many messages Plan.Recent holds.
const MaxRecent = 200

// ParsePlan reads a plan as the scripts write it; ok is false for any other text. The scripts must accept the same
// texts, because a text that only one side accepts as a plan would never be replaced.
func ParsePlan(text string) (p Plan, ok bool) {
	if !planText.MatchString(text) {
		return Plan{}, false
	}
	words := strings.Split(text, " ")
	spans, ok := parseSpans(words[2])
	used, err := strconv.Atoi(words[3])
	if err != nil || !ok {
		return Plan{}, false
	}
	p = Plan{Version: words[0], Times: words[1], Spans: spans, Used: used}
	if words[4] != "" {
		p.Recent = strings.Split(words[4], ",")
	}
	return p, len(p.Recent) <= MaxRecent && p.String() == text
}

// SpecVersion returns the version of a spec: its SHA-1 in hex.
func SpecVersion(spec string) string { return sha1Hex(spec) }

// Recurred is the result of Recur. If neither Written nor Same is true, another spec than before is stored.
type Recurred struct {
	Written   bool   // the spec was written
	Same      bool   // the same spec was stored already
	TakenBack int    // how many messages were removed from the schedule
	Plan      string // the current plan
}

// Recur writes the spec of a recurrence. If before is not "", it writes only if before is the stored spec. times is a
// word that changes with the times of the occurrences: if it changes, planning begins from now. Recur takes back the
// messages of the former spec, in several script calls if they are large. The last call writes the spec; until then the
// former spec is in force.
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
	verdict, verdictErr := list[0].AsInt64()
	back, backErr := list[1].AsInt64()
	plan, planErr := list[2].ToString()
	err = cmp.Or(verdictErr, backErr, planErr)
	r = Recurred{Written: verdict == 1, Same: verdict == 2, TakenBack: int(back), Plan: plan}
	return r, verdict == notReached, recurScript.unexpected(err)
}

// oneIf returns a truth value as scripts take it: "1" or "0".
func oneIf(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

// PlanGone is the Version in the plan of a removed recurrence whose messages may be unfinished.
const PlanGone = "gone"

// RemoveRecurrence removes a recurrence. It returns whether there was one, and how many messages were taken back. If
// remember is true, messages that may be unfinished stay in a plan with PlanGone, in case the recurrence is added
// again. ForgetRecurrence removes that plan.
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

// Occurrence is an occurrence to plan.
type Occurrence struct {
	At    time.Time // the time of the occurrence, which is part of its message's ID
	Due   time.Time // when the message is due
	Taken bool      // another partition has a message with this ID: count the occurrence, and add no message
}

// OccurrenceID returns the ID of the message of an occurrence.
func OccurrenceID(name string, at time.Time) string {
	return name + "@" + strconv.FormatInt(at.UnixMilli(), 10)
}

// MaxPlanned is how many occurrences one call plans.
const MaxPlanned = 100

// PlanOccurrences adds occurrences to the schedule and updates the plan, if the stored plan is still before. It returns
// the current plan. ok is false if another plan was stored, and then nothing was changed.
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

// RunRecurrence schedules a message of a recurrence for now. ok is false if there is no such recurrence. alone:
// messages that are planned for later are taken back.
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

// Unfinished is a walk through a queue's entries that finds out whether any of some messages with FieldOverlap is
// unfinished. The zero value begins a walk. A walk that has ended may go on later, also with other messages, if these
// were not scheduled when it ended.
type Unfinished struct {
	cursor  string
	entries map[string][]string // message → its entries
}

// FindUnfinished is a step of a walk over the entries of a queue: it looks at limit of them. The walk is done when it
// has found an unfinished message, or has looked at all entries. A dead letter counts as finished.
func FindUnfinished(ctx context.Context, c rueidis.Client, k Keys, w *Unfinished, limit int,
	ids []string) (unfinished, done bool, err error) {
	if w.cursor == "" {
		w.cursor, w.entries = "0-0", map[string][]string{}
	}
	// A message that is no longer among ids is finished.
	maps.DeleteFunc(w.entries, func(id string, _ []string) bool { return !slices.Contains(ids, id) })
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
