package crashpoint

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// recurs prepares a recurrence with one occurrence that left the schedule, and one that is planned. It returns the
// recurrence's plan record, and the ID of the planned occurrence.
func recurs(s *scene, spec string) (remembered, planned string) {
	s.group("a")
	s.send(item("other", "+7200000"))
	s.owe("a", "other", delivered, delivered)
	r, err := lua.Recur(s.ctx, s.c, s.k, "r", "", spec, "t", false)
	s.must(err)
	remembered = r.Plan
	for i, in := range []time.Duration{30 * time.Minute, time.Hour} {
		planned, remembered = planAt(s, s.c, remembered, in)
		if i == 0 {
			s.do("ZREM", s.k.Due, planned)
			s.do("HDEL", s.k.Payload, planned)
			s.do("HDEL", s.k.Meta, planned)
		}
	}
	return remembered, planned
}

func planAt(s *scene, c rueidis.Client, before string, in time.Duration) (id, remembered string) {
	at := time.Now().Add(in)
	id = fmt.Sprint("r@", at.UnixMilli())
	remembered, err := plan(s, c, before, at)
	s.must(err)
	return id, remembered
}

func (s *scene) scheduled(id string) bool {
	m := s.do("ZSCORE", s.k.Due, id)
	return !m.IsNil()
}

func plan(s *scene, c rueidis.Client, before string, at time.Time) (remembered string, err error) {
	it := item(fmt.Sprint("r@", at.UnixMilli()), "")
	_, remembered, err = lua.PlanOccurrences(s.ctx, c, s.k, "r", before, []lua.Span{{From: at.Add(-time.Hour), To: at}},
		it.Payload, it.Meta, []lua.Occurrence{{At: at, Due: at}})
	return remembered, err
}

// recurrences are the scripts for recurrences.
func recurrences() []scenario {
	const spec, other = `{"every_ms":3600000}`, `{"every_ms":7200000}`
	changed := func(paused bool) func(s *scene) func(rueidis.Client) error {
		return func(s *scene) func(rueidis.Client) error {
			_, planned := recurs(s, spec)
			s.owe("a", planned, delivered|gone, gone)
			return func(c rueidis.Client) error {
				r, err := lua.Recur(s.ctx, c, s.k, "r", spec, other, "t", paused)
				if err == nil && !r.Written && !r.Same {
					s.Errorf("not written: %+v", r)
				}
				return err
			}
		}
	}
	// storedPlan returns the plan record of the recurrence r.
	storedPlan := func(s *scene) lua.Plan {
		m := s.do("HGET", s.k.Planned, "r")
		text, _ := m.ToString()
		p, ok := lua.ParsePlan(text)
		if !ok {
			s.Errorf("the plan record is %q", text)
		}
		return p
	}
	return []scenario{
		{script: "recur", state: "changed", prepare: changed(false), after: func(s *scene) {
			if p := storedPlan(s); p.Version != lua.SpecVersion(other) || p.Used != 1 {
				s.Errorf("remembered: %+v", p)
			}
		}},
		{script: "recur", state: "paused", prepare: changed(true)},
		{script: "remove_recurrence", state: "with one planned", prepare: func(s *scene) func(rueidis.Client) error {
			_, planned := recurs(s, spec)
			s.owe("a", planned, delivered|gone, gone)
			return func(c rueidis.Client) error {
				_, _, err := lua.RemoveRecurrence(s.ctx, c, s.k, "r", false)
				return err
			}
		}, after: func(s *scene) {
			if s.number("HEXISTS", s.k.Planned, "r")+s.number("HEXISTS", s.k.Recurring, "r") > 0 {
				s.Error("it is there")
			}
		}},
		{script: "remove_recurrence", state: "that must not overlap, and may have something left",
			prepare: func(s *scene) func(rueidis.Client) error {
				_, planned := recurs(s, spec)
				s.owe("a", planned, delivered|gone, gone)
				return func(c rueidis.Client) error {
					_, _, err := lua.RemoveRecurrence(s.ctx, c, s.k, "r", true)
					return err
				}
			}, after: func(s *scene) {
				// The planned one counts as well, if the refused call had already taken it out of the schedule.
				if p := storedPlan(s); p.Version != lua.PlanGone || len(p.Recent) < 1 || len(p.Recent) > 2 {
					s.Errorf("remembered: %+v", p)
				}
				if s.number("HEXISTS", s.k.Recurring, "r") > 0 {
					s.Error("it is there")
				}
			}},
		{script: "remove_recurrence", state: "to be forgotten, beside another one",
			prepare: func(s *scene) func(rueidis.Client) error {
				_, planned := recurs(s, spec)
				_, _, err := lua.RemoveRecurrence(s.ctx, s.c, s.k, "r", true)
				s.must(err)
				_, err = lua.Recur(s.ctx, s.c, s.k, "another", "", spec, "t", false)
				s.must(err)
				s.owe("a", planned, gone, gone)
				return func(c rueidis.Client) error { return lua.ForgetRecurrence(s.ctx, c, s.k, "r", false) }
			}, after: func(s *scene) {
				if s.number("HEXISTS", s.k.Planned, "r") > 0 || s.number("HEXISTS", s.k.Planned, "another") == 0 {
					s.Error("not exactly what is remembered of the one that is gone was forgotten")
				}
			}},
		// If the call is repeated after a refusal, the occurrence is planned once, and never skipped, because the
		// script writes the plan record last.
		{script: "plan", single: true, state: "before all others", prepare: func(s *scene) func(rueidis.Client) error {
			before, planned := recurs(s, spec)
			s.owe("a", planned, delivered, delivered)
			at := time.Now().Add(10 * time.Minute)
			id := fmt.Sprint("r@", at.UnixMilli())
			s.owe("a", id, delivered|gone, delivered)
			return func(c rueidis.Client) error {
				own := 1
				if s.scheduled(id) { // the refused call scheduled it, so the script takes it for a message of a user
					own = 0
				}
				if _, err := plan(s, c, before, at); err != nil {
					return err
				}
				const used = 3 // the two occurrences of recurs, and this one
				if p := storedPlan(s); p.Used != used || len(p.Recent) != 2+own {
					s.Errorf("remembered: %+v", p)
				}
				return nil
			}
		}},
		{script: "run_recurrence", state: "alone", prepare: func(s *scene) func(rueidis.Client) error {
			_, planned := recurs(s, spec)
			s.owe("a", planned, delivered|gone, gone)
			return func(c rueidis.Client) error {
				_, _, _, err := lua.RunRecurrence(s.ctx, c, s.k, "r", []byte(body("run")), `{"h:of":"run"}`, true)
				if lua.Ambiguous(err) {
					return err // a killed server answers nothing more, and stored nothing
				}
				m := s.do("ZRANGE", s.k.Due, "0", "-1")
				members, _ := m.AsStrSlice()
				for _, id := range members { // a refused call may have scheduled the message before its refused command
					if strings.HasSuffix(id, lua.RunSuffix) {
						s.owe("a", id, delivered, delivered)
					}
				}
				return err
			}
		}},
		{script: "find_unfinished", state: "an entry, a retry, nothing", prepare: func(s *scene) func(rueidis.Client) error {
			failed := item("failed", "+0")
			failed.Meta = strings.Replace(failed.Meta, "{", `{"overlap":"skip",`, 1)
			retriesOf(s, failed)
			s.send(item("held", "+0"))
			s.hold("a", "c1")
			s.hold("b", "c1")
			for _, group := range s.groups {
				s.owe(group, "held", delivered, delivered)
				s.owe(group, "failed", delivered, delivered)
			}
			var known lua.Unfinished // a search that has already found the entry of held
			_, _, err := lua.FindUnfinished(s.ctx, s.c, s.k, &known, 10, []string{"held"})
			s.must(err)
			return func(c rueidis.Client) error {
				if left, _, err := lua.FindUnfinished(s.ctx, c, s.k, &known, 10, []string{"held"}); err != nil || !left {
					return cmp.Or(err, errors.New("held is not left"))
				}
				for id, isLeft := range map[string]bool{"other": true, "held": true, "failed": true, "nobody": false} {
					var w lua.Unfinished
					left, done := false, false
					for !done {
						var err error
						if left, done, err = lua.FindUnfinished(s.ctx, c, s.k, &w, 10, []string{id}); err != nil {
							return err
						}
					}
					if left != isLeft {
						s.Errorf("%s is left: %v", id, left)
					}
				}
				return nil
			}
		}},
	}
}
