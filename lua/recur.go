package lua

import (
	"context"
	"fmt"
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
	recurScript = load("recur", slices.Concat(recurKeys, toldKeys), []string{"name", "before", "version", "spec", "paused"}, nil)
	planScript  = load("plan", slices.Concat(recurKeys, []string{"wake"}, toldKeys),
		[]string{"name", "before", "planned_ms", "body", "fields"}, []string{"at", "due_ms"})
	runRecurrenceScript = load("run_recurrence", slices.Concat(recurKeys, []string{"wake"}, toldKeys),
		[]string{"name", "body", "fields", "alone"}, nil)

	removeRecurrenceScript = load("remove_recurrence", slices.Concat(recurKeys, toldKeys), []string{"name"}, nil)
	findUnfinishedScript   = load("find_unfinished", []string{"due", "stream"}, []string{"cursor", "limit", "from"},
		[]string{"id"})
)

func (k Keys) ofRecurrences(more ...string) []string {
	return slices.Concat([]string{k.Recurring, k.Planned, k.Due, k.Payload, k.Meta}, more, []string{k.Policy, k.History})
}

// Plan is what is remembered of a recurrence, beside its spec.
type Plan struct {
	Version string    // of the spec that it is of
	Planned time.Time // up to here everything is planned
	Used    int       // so many occurrences were
	// Recent is what stands behind "@" in the IDs of the newest messages: those that were in the schedule when one was added, and
	// the last one that had left it. What was run by hand ends with RunSuffix.
	Recent []string
}

// RunSuffix ends the IDs of what was run by hand.
const RunSuffix = "-run"

// ParsePlan reads what the scripts write; false for anything else.
func ParsePlan(text string) (p Plan, ok bool) {
	words := strings.Split(text, " ")
	if len(words) != 4 || words[0] == "" {
		return Plan{}, false
	}
	ms, err := strconv.ParseInt(words[1], 10, 64)
	used, bad := strconv.Atoi(words[2])
	if err != nil || bad != nil {
		return Plan{}, false
	}
	p = Plan{Version: words[0], Planned: time.UnixMilli(ms), Used: used}
	if words[3] != "" {
		p.Recent = strings.Split(words[3], ",")
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

// Recur writes the spec of a recurrence. With before it does so only if that is the spec there.
func Recur(ctx context.Context, c rueidis.Client, k Keys, name, before, spec string, paused bool) (Recurred, error) {
	list, err := recurScript.list(ctx, c, k.ofRecurrences(), []string{name, before, SpecVersion(spec), spec, oneIf(paused),
		k.Actor}, 3)
	if err != nil {
		return Recurred{}, err
	}
	verdict, err := list[0].AsInt64()
	back, failed := list[1].AsInt64()
	plan, unread := list[2].ToString()
	for _, one := range []error{failed, unread} {
		if err == nil {
			err = one
		}
	}
	return Recurred{verdict == 1, verdict == 2, int(back), plan}, recurScript.unexpected(err)
}

func oneIf(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

// RemoveRecurrence removes a recurrence, and says whether there was one, and how many messages were taken back.
func RemoveRecurrence(ctx context.Context, c rueidis.Client, k Keys, name string) (removed bool, takenBack int, err error) {
	n, err := removeRecurrenceScript.integers(ctx, c, k.ofRecurrences(), []string{name, k.Actor}, 2, Durability{})
	if err != nil {
		return false, 0, err
	}
	return n[0] == 1, int(n[1]), nil
}

// Occurrence is one that is to be planned: when it is, by which its message is named, and when that is due.
type Occurrence struct{ At, Due time.Time }

// MaxPlanned is how many occurrences one call plans.
const MaxPlanned = 100

// PlanOccurrences adds occurrences to the schedule and moves the plan on, if it is still the one that was read. It returns the
// plan that is there now; false: another one was.
func PlanOccurrences(ctx context.Context, c rueidis.Client, k Keys, name, before string, planned time.Time, payload []byte,
	meta string, occurrences []Occurrence) (ok bool, plan string, err error) {
	args := []string{name, before, strconv.FormatInt(planned.UnixMilli(), 10), rueidis.BinaryString(payload), meta}
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
	list, err := runRecurrenceScript.list(ctx, c, k.ofRecurrences(k.Wake),
		[]string{name, rueidis.BinaryString(payload), meta, oneIf(alone), k.Actor}, 2)
	if err != nil {
		return "", time.Time{}, false, err
	}
	ms, err := list[0].AsInt64()
	if err == nil {
		id, err = list[1].ToString()
	}
	return id, time.UnixMilli(ms), ms >= 0, runRecurrenceScript.unexpected(err)
}

// FindUnfinished is one step of a walk that looks for anything that is left of messages: in the schedule, retries included, and
// among the entries from a point in time on. The walk ends when something was found, or with WalkDone; its steps go over one
// connection. A dead letter is done.
func FindUnfinished(ctx context.Context, c rueidis.Client, k Keys, w Walk, from time.Time,
	ids []string) (found bool, next string, err error) {
	args := append([]string{w.Cursor, strconv.Itoa(w.Limit), fmt.Sprintf("%d-0", max(0, from.UnixMilli()))}, ids...)
	list, err := findUnfinishedScript.list(ctx, c, []string{k.Due, k.Stream}, args, 2)
	if err != nil {
		return false, "", err
	}
	n, err := list[0].AsInt64()
	if err == nil {
		next, err = list[1].ToString()
	}
	return n == 1, next, findUnfinishedScript.unexpected(err)
}
