package doctor

import (
	"context"
	"errors"
	"fmt"
)

// Repair is the planned or executed repair of one finding.
type Repair struct {
	Code  string `json:"code"`
	Queue string `json:"queue,omitempty"`
	Key   string `json:"key,omitempty"`
	Plan  string `json:"plan"`
	Did   string `json:"did,omitempty"`
	Error string `json:"error,omitempty"`
}

// Plan returns what Mend would do about the findings.
func (r Report) Plan() []Repair {
	plan := []Repair{}
	for _, f := range r.Findings {
		if f.mend != nil {
			plan = append(plan, Repair{Code: f.Code, Queue: f.Queue, Key: f.Key, Plan: f.Repair})
		}
	}
	return plan
}

// Mend makes the repairs of all findings that have one, one after the other, and calls done after each. No repair can
// lose a message, or deliver a handled message again. If a repair fails, Mend continues with the next one, and returns
// all errors joined. It ends early when ctx ends. It may be repeated without harm. If there are bodies of messages
// (payloads or metas) without a member of the schedule, Mend waits up to OrphanAge, because a producer may be about to
// add the member.
func (r Report) Mend(ctx context.Context, done func(Repair)) error {
	var errs []error
	for _, f := range r.Findings {
		if f.mend == nil {
			continue
		}
		repair := Repair{Code: f.Code, Queue: f.Queue, Key: f.Key, Plan: f.Repair}
		did, err := f.mend(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			err = fmt.Errorf("repair %s %s: %w", f.Code, f.Name, err)
			repair.Error = err.Error()
			errs = append(errs, err)
		} else {
			repair.Did = did
		}
		done(repair)
	}
	return errors.Join(errs...)
}
