package dashboard

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file tells the history of a message as a timeline.

// chapter is an event of the timeline.
type chapter struct {
	At     time.Time
	Parts  []textPart
	Facts  []fact
	Wait   time.Duration // since the event before
	Class  string        // of the mark: "bad", "good" or ""
	Future bool
}

// fact is a detail of an event.
type fact struct{ Name, Value string }

// maxChapters limits the events of a timeline. The newest ones are shown.
const maxChapters = 200

// Story returns the timeline: the recorded changes, or if there are none what Redis holds now, and what is to come.
func (s messageState) Story() []chapter {
	var all []chapter
	changes := s.story.Changes
	changes = changes[max(0, len(changes)-maxChapters):]
	queues := map[string]bool{}
	for _, c := range changes {
		queues[c.Queue] = true
	}
	for _, c := range changes {
		one := chapterOf(c)
		if len(queues) > 1 {
			one.Facts = append([]fact{{Name: "queue", Value: c.Queue}}, one.Facts...)
		}
		all = append(all, one)
	}
	for _, m := range s.finding.History {
		future := m.At.After(s.finding.At)
		if future || len(changes) == 0 {
			one := momentChapter(m, future)
			if s.Searched() > 1 && m.Queue != "" {
				one.Facts = append([]fact{{Name: "queue", Value: m.Queue}}, one.Facts...)
			}
			all = append(all, one)
		}
	}
	for i := 1; i < len(all); i++ { // a clock that was set back gives no wait
		if before, at := all[i-1].At, all[i].At; !before.IsZero() && at.After(before) {
			all[i].Wait = at.Sub(before)
		}
	}
	return all
}

// HistoryBegins returns the beginning of the history if it is later than the last known change of the message: the
// history has then lost this change. Otherwise it returns zero.
func (s messageState) HistoryBegins() time.Time {
	for _, m := range s.finding.History {
		if !m.At.After(s.finding.At) && !m.At.Before(s.story.Since) {
			return time.Time{}
		}
	}
	return s.story.Since
}

// OlderChapters returns how many recorded changes the timeline leaves out.
func (s messageState) OlderChapters() int { return max(0, len(s.story.Changes)-maxChapters) }

// KeepsHistory reports whether a story was read, or would have been if there were changes to read.
func (s messageState) KeepsHistory() bool {
	return s.noStory == nil || errors.Is(s.noStory, admin.ErrUntold)
}

// IsUntold reports whether a history exists that does not mention the message.
func (s messageState) IsUntold() bool { return errors.Is(s.noStory, admin.ErrUntold) }

// IsLongHistory reports whether the story was not read, because the history is too long.
func (s messageState) IsLongHistory() bool { return errors.Is(s.noStory, errLongHistory) }

// chapterOf returns the event of a recorded change.
func chapterOf(c admin.Change) chapter {
	one := chapter{At: c.At}
	say := func(format string, args ...any) {
		one.Parts = append(one.Parts, textPart{Text: fmt.Sprintf(format, args...)})
	}
	when := func(t time.Time) { one.Parts = append(one.Parts, textPart{At: t}) }
	group, attempt := "", ""
	if c.Group != "" {
		group = " for " + visible(c.Group)
	}
	if c.Attempt > 0 {
		attempt = fmt.Sprintf(", attempt %d", c.Attempt)
	}
	switch c.Event {
	case admin.EventScheduled:
		say("Scheduled for ")
		when(c.Due)
	case admin.EventRescheduled:
		say("Moved%s from ", group)
		when(c.Was)
		say(" to ")
		when(c.Due)
	case admin.EventCancelled:
		one.Class = "bad"
		say("Cancelled%s", group)
	case admin.EventReady:
		say("Ready%s%s", group, attempt)
		if c.Late > 0 {
			one.fact("late", span(c.Late))
		}
	case admin.EventAcknowledged:
		one.Class = "good"
		say("Acknowledged by %s%s", visible(c.Group), attempt)
	case admin.EventRetried:
		one.Class = "bad"
		say("Failed%s%s; retry at ", group, attempt)
		when(c.Due)
	case admin.EventReleased:
		say("Given back%s", group)
	case admin.EventSnoozed:
		say("Snoozed%s until ", group)
		when(c.Due)
	case admin.EventDead:
		one.Class = "bad"
		say("Dead%s%s", group, attempt)
	case admin.EventRedriven:
		say("Redriven%s, due ", group)
		when(c.Due)
	default:
		say("%s%s%s", visible(c.Event), group, attempt)
	}
	if c.Reason != "" {
		one.fact("reason", c.Reason)
	}
	if c.Error != "" {
		one.fact("error", c.Error)
	}
	if c.After > 0 {
		one.fact("after it was ready", span(c.After))
	}
	if c.Idle > 0 {
		one.fact("held for", span(c.Idle))
	}
	if c.Entry != "" {
		one.fact("entry", c.Entry)
	}
	if c.Letter != "" {
		one.fact("dead letter", c.Letter)
	}
	if c.Consumer != "" {
		one.fact("held by", c.Consumer)
	}
	if c.By != "" {
		one.fact("by", authorText(c.By))
	}
	return one
}

// authorText returns the author of a change in words: "client web-1 4711" is a client on host web-1.
func authorText(by string) string {
	role, process, _ := strings.Cut(by, " ")
	host, pid, ok := strings.Cut(process, " ")
	roles := map[string]string{lua.ActorClient: "a client", lua.ActorBridge: "the bridge", lua.ActorWorker: "a worker",
		lua.ActorOperator: "an operator"}
	if roles[role] == "" || !ok {
		return by
	}
	return fmt.Sprintf("%s on %s, process %s", roles[role], host, pid)
}

// maxFact limits the bytes of a detail.
const maxFact = 1 << 10

// fact adds a detail, which is text of others.
func (c *chapter) fact(name, value string) {
	text := visible(clip(value, maxFact))
	if len(value) > maxFact {
		text += fmt.Sprintf(" … (%s of %s bytes shown)", number(maxFact), number(len(value)))
	}
	c.Facts = append(c.Facts, fact{Name: name, Value: text})
}

// momentChapter returns the event of a moment.
func momentChapter(m admin.Moment, future bool) chapter {
	one := chapter{At: m.At, Future: future}
	text := map[string]string{
		admin.MomentMade: "Made: the time in its ID, by the producer's clock", admin.MomentDue: "Due",
		admin.MomentReady: "Ready", admin.MomentDelivered: "Delivered", admin.MomentDead: "Dead",
		admin.MomentExpires: "Expires: if it becomes ready later, it is dead-lettered instead of delivered",
	}[m.What]
	if text == "" {
		text = m.What
	}
	if m.Group != "" {
		text += " for " + visible(m.Group)
	}
	if m.Attempt > 0 {
		text += fmt.Sprintf(", attempt %d", m.Attempt)
	}
	one.Parts = []textPart{{Text: text}}
	if m.What == admin.MomentDead {
		one.Class = "bad"
	}
	if m.Entry != "" {
		one.fact("entry", m.Entry)
	}
	if m.Detail != "" {
		name := "note"
		if m.What == admin.MomentDelivered {
			name = "to"
		}
		one.fact(name, m.Detail)
	}
	return one
}

// ending is how the message ended for a group.
type ending struct {
	Group string
	Event string
	At    time.Time
}

// Endings returns how a message ended that is in no place, by its story: the last change of each group, or if it was
// cancelled for all groups that change alone.
func (s messageState) Endings() (all []ending) {
	at := map[string]int{}
	for _, c := range s.story.Changes {
		switch c.Event {
		case admin.EventScheduled, admin.EventRedriven:
			if c.Group == "" { // its story begins again
				all, at = nil, map[string]int{}
			}
			continue
		case admin.EventAcknowledged, admin.EventCancelled, admin.EventDead:
		default:
			continue
		}
		i, known := at[c.Group]
		if !known {
			i = len(all)
			at[c.Group] = i
			all = append(all, ending{})
		}
		all[i] = ending{c.Group, c.Event, c.At}
	}
	return all
}

// IsDone reports whether the message is in no place, because every group known from its story acknowledged it.
func (s messageState) IsDone() bool {
	endings := s.Endings()
	for _, e := range endings {
		if e.Event != admin.EventAcknowledged {
			return false
		}
	}
	return !s.Found() && len(endings) > 0
}

// Text describes the ending.
func (e ending) Text() string {
	switch {
	case e.Event == admin.EventAcknowledged:
		return "acknowledged by " + visible(e.Group)
	case e.Event == admin.EventDead:
		return "dead for " + visible(e.Group) + ", and its dead letter was deleted since; it died"
	case e.Group != "":
		return e.Event + " for " + visible(e.Group)
	}
	return e.Event
}
