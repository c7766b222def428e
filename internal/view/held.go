package view

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// HeldNotesOf asks for the notes of bridges about groups: since when consumers hold the groups' oldest deliveries. The
// answer has an element for each group; it is empty if the server refuses the question.
func HeldNotesOf(c rueidis.Client, keys lua.Keys, groups []string, notes *[]lua.HeldNotes) Question {
	fields := make([]string, len(groups))
	for i, group := range groups {
		fields[i] = lua.HeldField(group)
	}
	command := c.B().Hmget().Key(keys.Calm).Field(fields...).Build()
	return Into(command, notes, func(reply rueidis.RedisResult) ([]lua.HeldNotes, error) {
		values, err := reply.ToArray()
		list := make([]lua.HeldNotes, len(values))
		for i, value := range values {
			text, _ := value.ToString() // "" if there are no notes about the group
			list[i] = lua.ParseHeldNotes(text)
		}
		return list, err
	}).OrNothing()
}

// ReadHeldNotes returns the notes of bridges about a group. One round trip.
func ReadHeldNotes(ctx context.Context, c rueidis.Client, keys lua.Keys, group string) (lua.HeldNotes, error) {
	var notes []lua.HeldNotes
	if err := Ask(ctx, c, HeldNotesOf(c, keys, []string{group}, &notes)); err != nil || len(notes) == 0 {
		return lua.HeldNotes{Usual: -1}, err
	}
	return notes[0], nil
}

// Since returns since when the consumer holds the entry, as far as is known. now is the server's clock.
func (p Pending) Since(notes lua.HeldNotes, now time.Time) time.Time {
	return notes.Since(p.ID.String(), p.Consumer, now, p.Idle)
}
