package transfer

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// recurrencePlans holds the plans of a queue's recurrences, by name. They are read before the schedule. If the schedule
// then has an occurrence that was planned after that read, noteOccurrence adds it to its plan. So the target plans no
// occurrence a second time whose message is in the export, and leaves none out.
type recurrencePlans map[string]lua.Plan

func (e *Export) readPlans(ctx context.Context) (recurrencePlans, error) {
	texts, err := e.planTexts(ctx)
	p := recurrencePlans{}
	for name, text := range texts {
		if plan, ok := lua.ParsePlan(text); ok {
			p[name] = plan
		}
	}
	return p, err
}

// planTexts returns the stored plans as text, by name. They are in partition 0.
func (e *Export) planTexts(ctx context.Context) (map[string]string, error) {
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	return lua.ReadPlans(call, e.c, lua.NewKeys(e.prefix, e.queue))
}

// recordPlan matches the text of a plan: version, times, spans, number of planned occurrences, newest messages.
var recordPlan = regexp.MustCompile(`^\w+ \w+ [0-9,-]+ [0-9]+ ([0-9]+(-run)?(,[0-9]+(-run)?)*)?$`)

// checkPlan refuses a text that is not the plan of a recurrence. It accepts an empty text.
func (r Record) checkPlan() error {
	_, ok := lua.ParsePlan(r.Plan)
	if r.Plan == "" || ok && len(r.Plan) <= maxPlan && recordPlan.MatchString(r.Plan) {
		return nil
	}
	return lua.Invalid("plan", r.Plan, "must be what is remembered of a recurrence, at most %d bytes", maxPlan)
}

// Recurrences returns the names of the queue's recurrences with a plan, sorted. Passed to Import.Recurrences, they let
// the import recognise their occurrences. One round trip; it reads all plans.
func (e *Export) Recurrences(ctx context.Context) ([]string, error) {
	plans, err := e.planTexts(ctx)
	if err != nil {
		return nil, fmt.Errorf("export %s: %w", e.queue, err)
	}
	var names []string
	for name := range plans {
		if lua.CheckRecurrence(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// occurrencePart matches the part of an occurrence's ID after '@'.
var occurrencePart = regexp.MustCompile(`^[0-9]+(` + lua.RunSuffix + `)?$`)

// isOccurrence reports whether a record is a scheduled occurrence: without a key, before its first delivery, and with
// the ID of an occurrence of a recurrence that the import knows.
func (im *Import) isOccurrence(r Record) bool {
	name, at, ok := splitOccurrence(r.messageID())
	if !ok || !im.recurrences[name] || r.Kind != RecordScheduled || r.key() != "" || !occurrencePart.MatchString(at) {
		return false
	}
	member, _ := r.member()
	return lua.ParseMember(member).Kind == lua.MemberFirst
}

// noteOccurrence adds a scheduled record to its plan if it is an occurrence that was planned after the plan was read.
func (p recurrencePlans) noteOccurrence(r Record) {
	name, at, ok := splitOccurrence(r.ID)
	plan, known := p[name]
	if !ok || !known || r.Kind != RecordScheduled || r.Entry != "" || r.Letter != "" {
		return
	}
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil || ms <= plan.Planned().UnixMilli() || slices.Contains(plan.Recent, at) {
		return
	}
	plan.Recent = append(plan.Recent, at)
	plan.Recent = plan.Recent[max(0, len(plan.Recent)-lua.MaxRecent):]
	plan.Used++
	p[name] = plan
}

// splitOccurrence splits the ID of an occurrence at its last "@": into the name of the recurrence, and the time.
func splitOccurrence(id string) (name, at string, ok bool) {
	i := strings.LastIndexByte(id, '@')
	if i < 0 {
		return "", "", false
	}
	return id[:i], id[i+1:], true
}

// recurrences yields the recurrences, in no order. It leaves out recurrences that could not be written elsewhere.
func (e *Export) recurrences(ctx context.Context, p recurrencePlans, give func(Record) error) (err error) {
	k := lua.NewKeys(e.prefix, e.queue)
	failed := lua.EachSpec(ctx, e.c, k, loop.CallTimeout, func(name, text string) {
		r := Record{Kind: RecordRecurrence, ID: name, Payload: []byte(text)}
		if plan, ok := p[name]; ok {
			r.Plan = plan.String()
		}
		switch {
		case err != nil:
		case r.Check() != nil:
			e.LeftOut++
		default:
			err = give(r)
		}
	})
	if err == nil {
		err = failed
	}
	return err
}
