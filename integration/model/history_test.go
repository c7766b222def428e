package model

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/duestream/duestream/lua"
)

// keepHistory turns on the history of the queue, in half of the sequences.
func (r *run) keepHistory(ctx context.Context) {
	if r.keeps = pick(r, "history", true, false); r.keeps {
		r.k = r.k.As("model")
		if err := r.commands(ctx, [][]string{{"HSET", r.k.Policy, "history", "1000000"}}); err != nil {
			r.refuse("%v", err)
		}
	}
}

// untold describes differences between the history of a step and its effects. The history must have every entry, dead
// letter and member that a step added or removed, and nothing else. Plain commands leave no history.
func (r *run) untold(ctx context.Context, what string, now stored) (differs string) {
	told := r.newlyTold(ctx)
	say := func(format string, args ...any) {
		differs += fmt.Sprintf("the history does not tell it: "+format+"; it tells %+v\n", append(args, told)...)
	}
	if !r.keeps || !isScript(what) {
		if len(told) > 0 {
			say("nothing was to be told")
		}
		return differs
	}
	var entries, letters []string
	for _, t := range told {
		switch {
		case t.Event == lua.EventReady:
			entries = append(entries, t.Entry)
		case t.Event == lua.EventDead:
			letters = append(letters, t.Letter)
		}
	}
	if want := newer(now.Stream, r.seen.newest); !slices.Equal(entries, want) {
		say("entries %v were added", want)
	}
	if want := newer(now.Dead, r.seen.newestDead); !slices.Equal(letters, want) {
		say("letters %v were added", want)
	}
	tells := func(is func(t lua.Told) bool) bool { return slices.ContainsFunc(told, is) }
	for member := range now.Scheduled {
		if _, before := r.seen.Scheduled[member]; !before && !tells(func(t lua.Told) bool {
			return t.ID == idOf(member) && slices.Contains([]string{lua.EventScheduled, lua.EventRetried, lua.EventReleased,
				lua.EventSnoozed, lua.EventRedriven}, t.Event)
		}) {
			say("%q came", member)
		}
	}
	for member := range r.seen.Scheduled {
		if _, still := now.Scheduled[member]; !still && !tells(func(t lua.Told) bool {
			return (t.ID == idOf(member) || member == "") && slices.Contains([]string{lua.EventReady, lua.EventDead,
				lua.EventCancelled}, t.Event)
		}) {
			say("%q went", member)
		}
	}
	return differs + r.untoldExits(now, told)
}

// untoldExits describes entries that left the pending list of a group without a record. It ignores entries for
// another group.
func (r *run) untoldExits(now stored, told []lua.Told) (differs string) {
	for group, before := range r.seen.Groups {
		for entry := range before.Pending {
			if _, still := now.Groups[group].Pending[entry]; still {
				continue
			}
			e := r.q.entry(entry)
			if e != nil && e.Fields[lua.FieldFor] != "" && e.Fields[lua.FieldFor] != group {
				continue
			}
			if !slices.ContainsFunc(told, func(t lua.Told) bool {
				return t.Entry == entry && t.Group == group && slices.Contains([]string{lua.EventAcknowledged, lua.EventRetried,
					lua.EventReleased, lua.EventSnoozed, lua.EventDead}, t.Event)
			}) {
				differs += fmt.Sprintf("the history does not tell how %s left %s; it tells %+v\n", entry, group, told)
			}
		}
	}
	return differs
}

// newlyTold reads the history since the last call.
func (r *run) newlyTold(ctx context.Context) (told []lua.Told) {
	from := "-"
	if r.told != "" {
		from = "(" + r.told
	}
	list := must(r.c.Do(ctx, r.c.B().Xrange().Key(r.k.History).Start(from).End("+").Build()).AsXRangeSlices())
	for _, e := range list {
		r.told = e.ID
		told = append(told, lua.ParseTold(e.ID, e.FieldValues)...)
	}
	return told
}

// idOf returns the message ID of a schedule member in the form of JSON.
func idOf(member string) string {
	id, _, _ := strings.Cut(member, lua.Separator)
	return string([]rune(id))
}
