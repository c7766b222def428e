package sizes

import (
	"context"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// This file counts the retries in the schedule, per group.

// firstMembersLimit is the number of members of the schedule among which a glance counts retries: see glance.lua.
const firstMembersLimit = 100

// scanMembers is the number of members that one step of ZSCAN looks at.
const scanMembers = 1000

// mayHaveRetries reports whether the schedule may hold retries. Each retry has a field in the hash meta.
func (p *partition) mayHaveRetries() bool { return p.metas > 0 && p.Scheduled > 0 }

// retryQuestions asks for the first step of a scan for retries.
func (r *reader) retryQuestions(p *partition) []view.Question {
	if !p.mayHaveRetries() {
		return nil
	}
	return []view.Question{r.scanRetries(p, 0)}
}

func (r *reader) scanRetries(p *partition, cursor uint64) view.Question {
	pattern := "*" + lua.Separator + "*" + lua.Separator + "*"
	scan := r.c.B().Zscan().Key(p.keys.Due).Cursor(cursor).Match(pattern).Count(scanMembers).Build()
	return view.Scan(scan, &p.scanned)
}

// countRetries counts the retries in the schedule. A glance counts only the retries among the members that are due
// next. The other depths scan the schedule in a bounded number of steps, and extrapolate if the schedule is longer.
func (r *reader) countRetries(ctx context.Context, p *partition) error {
	if r.depth == glance {
		p.addRetries(p.glanced.Retries)
		for _, g := range p.groups {
			g.RetryingApprox = p.metas > 0 && p.Scheduled > firstMembersLimit
		}
		return nil
	}
	if p.noScan {
		for _, g := range p.groups {
			g.Retrying = -1
		}
		return nil
	}
	for step := int64(1); ; step++ {
		for i := 0; i+1 < len(p.scanned.Elements); i += 2 { // each member is followed by its score
			p.addRetries(p.scanned.Elements[i : i+1])
		}
		cursor := p.scanned.Cursor
		if cursor == 0 {
			return nil
		}
		budgetSpent := r.depth == scrape && r.scans == 0
		if step == limitsOf[r.depth].scans || budgetSpent {
			p.extrapolateRetries(step)
			return nil
		}
		r.scans--
		p.scanned = rueidis.ScanEntry{}
		if err := view.Ask(ctx, r.c, r.scanRetries(p, cursor)); err != nil {
			return err
		}
	}
}

// extrapolateRetries computes the retries of the whole schedule from the retries that the first steps of the scan have
// counted.
func (p *partition) extrapolateRetries(steps int64) {
	scanned := steps * scanMembers
	for _, g := range p.groups {
		g.Retrying, g.RetryingApprox = g.Retrying*max(scanned, p.Scheduled)/scanned, true
	}
}

// addRetries counts the retries among members of the schedule.
func (p *partition) addRetries(members []string) {
	for _, member := range members {
		if m := lua.ParseMember(member); m.Kind != lua.MemberFirst {
			if g := p.group(m.Group); g != nil {
				g.Retrying++
			}
		}
	}
}
