package transfer

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// planned holds the plans of a queue's recurrences. They are read before the schedule, and updated by occurrences found
// there that were planned meanwhile. So an occurrence whose message is in the export is never planned again, and none
// is left out.
type planned struct {
	planner *planner.Planner
	queue   string
	plans   map[string]lua.Plan
}

func (e *Export) planned(ctx context.Context) (*planned, error) {
	p := &planned{planner.New(e.c, e.prefix, "", nil), e.queue, map[string]lua.Plan{}}
	texts, err := p.planner.Plans(ctx, e.queue)
	for name, text := range texts {
		if plan, ok := lua.ParsePlan(text); ok {
			p.plans[name] = plan
		}
	}
	return p, err
}

var recordPlan = regexp.MustCompile(`^\w+ \w+ [0-9,-]+ [0-9]+ ([0-9]+(-run)?(,[0-9]+(-run)?)*)?$`)

// checkPlan refuses texts that are not a recurrence's plan.
func (r Record) checkPlan() error {
	plan, ok := lua.ParsePlan(r.Plan)
	if r.Plan == "" || ok && plan.String() == r.Plan && len(r.Plan) <= maxPlan && recordPlan.MatchString(r.Plan) {
		return nil
	}
	return lua.Invalid("plan", r.Plan, "must be what is remembered of a recurrence, at most %d bytes", maxPlan)
}

// Recurrences returns the names of the queue's recurrences with a plan, sorted. Passed to Import.Recurrences, they let
// the import recognise their occurrences. One round trip; it reads all plans.
func (e *Export) Recurrences(ctx context.Context) ([]string, error) {
	plans, err := planner.New(e.c, e.prefix, "", nil).Plans(ctx, e.queue)
	if err != nil {
		return nil, fmt.Errorf("export %s: %w", e.queue, err)
	}
	var names []string
	for name := range plans {
		if recurrence.CheckName(name) == nil {
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
	name, at, ok := cutLast(r.messageID())
	if !ok || !im.recurrences[name] || r.Kind != RecordScheduled || r.key() != "" || !occurrencePart.MatchString(at) {
		return false
	}
	member, _ := r.member()
	return lua.ParseMember(member).Kind == lua.MemberFirst
}

// see notes a scheduled record that is an occurrence planned after its plan was read.
func (p *planned) see(r Record) {
	name, at, ok := cutLast(r.ID)
	plan, known := p.plans[name]
	if !ok || !known || r.Kind != RecordScheduled || r.Entry != "" || r.Letter != "" {
		return
	}
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil || ms <= plan.Planned().UnixMilli() || slices.Contains(plan.Recent, at) {
		return
	}
	plan.Recent = append(plan.Recent, at)
	plan.Recent = plan.Recent[max(0, len(plan.Recent)-maxRecent):]
	plan.Used++
	p.plans[name] = plan
}

// maxRecent is how many occurrences a plan remembers.
const maxRecent = 200

func cutLast(id string) (name, at string, ok bool) {
	i := strings.LastIndexByte(id, '@')
	if i < 0 {
		return "", "", false
	}
	return id[:i], id[i+1:], true
}

// recurrences yields the recurrences, in no order. It leaves out those that could not be written elsewhere.
func (e *Export) recurrences(ctx context.Context, p *planned, give func(Record) error) (err error) {
	failed := p.planner.Specs(ctx, e.queue, func(name, text string) {
		r := Record{Kind: RecordRecurrence, ID: name, Payload: []byte(text)}
		if plan, ok := p.plans[name]; ok {
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
