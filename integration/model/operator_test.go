package model

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
)

func (r *run) redrive() {
	r.unless(len(r.q.Dead) == 0)
	letters := make([]lua.Redrive, pick(r, "letters", 1, 1, 2))
	var some [][]byte
	for i := range letters {
		letter := r.letter()
		letters[i] = lua.Redrive{Letter: letter.ID, When: r.when(), To: pick(r, "to", "", "", groupNames[0])}
		if pick(r, "edit", false, true) {
			edited := []byte(r.book.serialIn(letter) + ":edited")
			letters[i].Payload = &edited
		}
		letters[i].Fields = r.meta()
		if pick(r, "malformed", false, false, false, true) {
			letters[i].Fields = r.junk()
		}
		some = append(some, []byte(r.book.serialIn(letter)))
	}
	before := r.q
	for i, outcome := range step(r, fmt.Sprintf("redrive %+v", letters), func(ctx context.Context) ([]lua.Redriven, error) {
		return lua.RedriveDead(ctx, r.c, r.k, letters)
	}, func(q *Queue, _ []lua.Redriven) []lua.Redriven { return q.Redrive(letters) }) {
		at := slices.IndexFunc(before.Dead, func(e Entry) bool { return e.ID == letters[i].Letter })
		if outcome == lua.RedriveScheduled && letters[i].To != "" {
			r.book.moved(before.Dead[at])
		} else if outcome == lua.RedriveScheduled && before.Dead[at].Fields[lua.FieldGroup] == "" && len(some[i]) > 0 {
			r.book.accept(some[i]) // it was never ready
		}
	}
}

func (r *run) expire() {
	r.unless(len(r.q.Scheduled) == 0)
	known := append(r.q.Order(), unknown)
	members := []string{pick(r, "member", known...), pick(r, "member", known...)}
	step(r, fmt.Sprintf("expire %q", members), func(ctx context.Context) ([]lua.Expired, error) {
		return lua.Expire(ctx, r.c, r.k, members)
	}, func(q *Queue, _ []lua.Expired) []lua.Expired { return q.Expire(members) })
}

// letter picks a dead letter; seldom one that does not exist.
func (r *run) letter() Entry {
	letters := append(slices.Clone(r.q.Dead), Entry{ID: unknown})
	return letters[pick(r, "letter", indices(letters)...)]
}

func indices[T any](list []T) []int {
	out := make([]int, len(list))
	for i := range out {
		out[i] = i
	}
	return out
}

func (r *run) purge() {
	r.unless(len(r.q.Dead) == 0)
	r.purgeLetter(r.letter())
}

func (r *run) purgeLetter(letter Entry) {
	r.plain("XDEL of dead letter "+letter.ID, [][]string{{"XDEL", r.k.Dead, letter.ID}}, func(q *Queue) {
		q.Dead = slices.DeleteFunc(slices.Clone(q.Dead), func(e Entry) bool { return e.ID == letter.ID })
	})
	r.book.purge(letter)
}

func (r *run) hold() { r.setHeld(!r.q.Held && pick(r, "hold", false, true)) }

func (r *run) setHeld(held bool) {
	command := []string{"HDEL", r.k.Policy, "held"}
	if held {
		command = []string{"HSET", r.k.Policy, "held", "1"}
	}
	r.plain(fmt.Sprint("setting held: ", held), [][]string{command}, func(q *Queue) { q.Held = held })
}

func (r *run) limit() { r.setFlow(pick(r, "limit", limits...)) }

func (r *run) setFlow(f Flow) {
	r.plain("limiting the flow: "+f.String(), f.commands(r.k), func(q *Queue) { q.Flow = f })
}

// withoutTimes removes times from a drain that depend on how long a limit makes messages wait.
func withoutTimes(q *Queue, d lua.Drained) lua.Drained {
	if q.Flow != (Flow{}) {
		d.Late = 0
	}
	if d.Held != "" {
		d.Wait = time.Millisecond
	}
	return d
}

func (r *run) survey() {
	token, windows := r.seen.token, len(r.seen.windows)
	if token == "" {
		token = "0-0"
	}
	step(r, "survey", func(ctx context.Context) (lua.Look, error) {
		looks, err := lua.Survey(ctx, r.c, []lua.Keys{r.k}, true)
		if err != nil {
			return lua.Look{}, err
		}
		// The model knows neither the text form of others nor the hash that holds a value.
		looks[0].Standing, looks[0].Bodies = "", 0
		return looks[0], nil
	}, func(q *Queue, _ lua.Look) lua.Look { return q.Survey(token, windows) })
}
