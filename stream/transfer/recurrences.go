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

// planned is what is remembered of the recurrences of a queue. It is read before what is scheduled, and learns of what was
// planned while that was read: an occurrence whose message is in the export is never planned again, and none is left out.
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

// checkPlan refuses what is not remembered of any recurrence.
func (r Record) checkPlan() error {
	plan, ok := lua.ParsePlan(r.Plan)
	if r.Plan == "" || ok && plan.String() == r.Plan && len(r.Plan) <= maxPlan && recordPlan.MatchString(r.Plan) {
		return nil
	}
	return lua.Invalid("plan", r.Plan, "must be what is remembered of a recurrence, at most %d bytes", maxPlan)
}

// Recurrences returns the names of the recurrences of the queue of which anything is remembered, in order. An import that is
// told them by Import.Recurrences knows their occurrences. One round trip; it reads what is remembered of each.
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

// occurrencePart is what stands behind '@' in the ID of an occurrence.
var occurrencePart = regexp.MustCompile(`^[0-9]+(` + lua.RunSuffix + `)?$`)

// isOccurrence reports whether a record is scheduled as an occurrence is: without a key, for the first time, and under the ID
// of an occurrence of a recurrence that the import was told of.
func (im *Import) isOccurrence(r Record) bool {
	name, at, ok := cutLast(r.messageID())
	if !ok || !im.recurrences[name] || r.Kind != RecordScheduled || r.key() != "" || !occurrencePart.MatchString(at) {
		return false
	}
	member, _ := r.member()
	return lua.ParseMember(member).Kind == lua.MemberFirst
}

// see notes a scheduled record that is an occurrence of later than what is remembered.
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

// maxRecent is how many occurrences are remembered.
const maxRecent = 200

func cutLast(id string) (name, at string, ok bool) {
	i := strings.LastIndexByte(id, '@')
	if i < 0 {
		return "", "", false
	}
	return id[:i], id[i+1:], true
}

// recurrences gives the recurrences, by no order. One that nobody could write elsewhere is left out.
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
