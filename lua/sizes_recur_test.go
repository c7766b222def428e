package lua

import (
	"fmt"
	"strings"
	"time"
)

// remembered stores a recurrence with any number of planned occurrences, and payloads of any size. It returns the plan.
func (o *ordeal) remembered() (before string) {
	b, spec := o.b, `{"every_ms":1000,"payload":"`+pad(min(20_000, o.size("spec")))+`"}`
	o.schedule(o.number("members", 1, 60))
	var recent []string
	var commands [][]string
	for i, size := range o.sizes("planned", o.number("recent", 0, 200)) {
		at := ms(b.now() + int64(1000*(i-5)))
		recent = append(recent, at)
		commands = append(commands, []string{"HSET", b.k.Payload, "r@" + at, pad(size)})
		if o.flip("waits") {
			commands = append(commands, []string{"ZADD", b.k.Due, at, "r@" + at})
		}
		o.seen(20, size)
	}
	before = fmt.Sprintf("%s t 5-%d %d %s", SpecVersion(spec), b.now(), len(recent), strings.Join(recent, ","))
	b.build(append(commands, []string{"HSET", b.k.Recurring, "r", spec}, []string{"HSET", b.k.Planned, "r", before})...)
	o.seen(0, len(spec)+len(before))
	return before
}

func (o *ordeal) recur() {
	o.remembered()
	spec := `{"every_ms":2000,"payload":"` + pad(min(20_000, o.size("new spec"))) + `"}`
	for range 2 {
		_, err := Recur(o.b.ctx, o.scale, o.b.k, "r", "", spec, "t", o.flip("paused"))
		o.must(err)
	}
}

func (o *ordeal) plan() {
	before := o.remembered()
	var all []Occurrence
	for i := range o.number("occurrences", 0, MaxPlanned) {
		at := time.UnixMilli(o.b.now() + int64(1000*(i+300)))
		all = append(all, Occurrence{At: at, Due: at})
	}
	_, _, err := PlanOccurrences(o.b.ctx, o.scale, o.b.k, "r", before, upTo(time.UnixMilli(o.b.now())), []byte("p"), "", all)
	o.must(err)
}

func (o *ordeal) runRecurrence() {
	o.remembered()
	_, _, _, err := RunRecurrence(o.b.ctx, o.scale, o.b.k, "r", []byte(pad(min(20_000, o.size("body")))), "", o.flip("alone"))
	o.must(err)
}

func (o *ordeal) removeRecurrence() {
	o.remembered()
	_, _, err := RemoveRecurrence(o.b.ctx, o.scale, o.b.k, "r", false)
	o.must(err)
}

func (o *ordeal) findUnfinished() {
	o.held(2)
	var w Unfinished
	limit := o.number("limit", 1, 1000)
	for range 400 {
		if _, done, err := FindUnfinished(o.b.ctx, o.scale, o.b.k, &w, limit, []string{"m1", "m299"}); done || err != nil {
			o.must(err)
			return
		}
	}
}
